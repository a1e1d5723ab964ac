"""pytest as the grader runs it, whatever the script asked for: started as ``python -I launch.py ARGUMENTS``.

Plugins, configuration and conftest files come from outside: no cache, no setup.cfg, no entry points, no PYTEST_*
variables, and a conftest only where the tests ship one. Every case is written down by ``cases``; programs run as the
subject. A pytest that tests start, on the agent's own suite say, is theirs: it is run as it was asked for, and reports to
nobody.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

sys.path.insert(0, os.path.abspath(f"{os.path.dirname(__file__)}/../../.."))

from t1actors.verify.inside.places import CASES, FENCED, GRADED, NESTED, OPENED, PROGRAMS, SCRATCH, SUBJECT, TESTS

OWN_WITH_VALUE = ("-c", "--config-file", "--rootdir", "--confcutdir", "--basetemp", "-o", "--override-ini")
OWN = ("--noconftest", "--cache-clear", "--lf", "--ff", "--last-failed", "--failed-first")


def arguments(given: Sequence[str], *, conftest: bool) -> list[str]:
    """The command line of a run of which the script asked ``given``."""
    kept: list[str] = []
    skip = False
    for word in given:
        if skip:
            skip = False
        elif word in OWN_WITH_VALUE:
            skip = True
        elif word not in OWN and not word.startswith(tuple(f"{name}=" for name in OWN_WITH_VALUE if name[:2] == "--")):
            kept.append(word)
    own = ["-p", "no:cacheprovider", "-c", "/dev/null", f"--rootdir={TESTS}", f"--confcutdir={TESTS}"]
    return [*own, f"--basetemp={SCRATCH}/pytest", *([] if conftest else ["--noconftest"]), *kept]


def main(given: Sequence[str]) -> int:
    """Run pytest; its exit status."""
    if os.environ.get(NESTED) or os.geteuid() != 0:
        import pytest

        return int(pytest.main(list(given)))
    for name in [name for name in os.environ if name.startswith(("PYTEST_", "PYTHON"))]:
        del os.environ[name]
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", NESTED: "1"}
    sys.dont_write_bytecode = True
    sys.executable = f"{PROGRAMS}/python3"  # the same Python, which also knows where pytest is
    import pytest

    from t1actors.verify.inside.cases import Cases
    from t1actors.verify.inside.links import guard
    from t1actors.verify.inside.subject import fence, separate

    guard()
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(CASES, flags, 0o644)
    os.makedirs(SCRATCH, mode=0o755, exist_ok=True)
    uid = os.environ.pop(SUBJECT, "")
    opened = bool(os.environ.pop(OPENED, ""))
    if uid == FENCED:
        fence(tests_readable=opened)
    elif uid:
        separate(int(uid))
    graded = os.environ.pop(GRADED, "").split(":")
    conftest = any("conftest.py" in files for _, _, files in os.walk(TESTS))
    return int(pytest.main(arguments(given, conftest=conftest), plugins=[Cases(file, graded)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
