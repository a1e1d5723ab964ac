"""The command that runs a task's tests, and what lies beside them: the same words for both modes of grading.

Guarantees: PATH begins with the tool layer where there is one; the subject's user id is none of root's, or it is behind a
fence, or the verdict warns; the tests can be read by the subject only where the task says so.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from t1actors.events import Isolation
from t1actors.sandbox.archive import EMPTY, subtree
from t1actors.sandbox.interface import Layer, RunRequest, SandboxBackend
from t1actors.tasks.task import Task
from t1actors.verify.inside.landlock import OLDEST, SIGNALS, version
from t1actors.verify.inside.places import FENCED, GRADED, OPENED, PROGRAMS, SUBJECT
from t1actors.verify.tools import find_tools
from t1actors.verify.verdict import Verdict

SUBJECT_UID = 61_000
USES_PYTEST = b"pytest"
ONE_USER = "the sandbox has one user id only: programs that tests start"
NO_TOOLS = (
    "the image lacks the Python that the tool layer is made for: pytest, if it has any, is its own, and programs that tests "
    "start run as the grader's user"
)
_PROBE_S = 30.0
PLAIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def closed(task: Task, tests: Layer) -> Layer:
    """``tests``, which only the grader can read unless the task says that the subject may."""
    if task.grading.tests_readable:
        return tests
    return Layer(archive=subtree(tests.archive, "/", mode=0o700) or EMPTY, at=tests.at, read_only=tests.read_only)


def uses_pytest(tests: Layer) -> bool:
    """Whether these tests need the tool layer: they name pytest somewhere."""
    return USES_PYTEST in tests.archive


async def has_grader(backend: SandboxBackend, sandbox: str) -> bool:
    """Whether the sandbox has the Python that tool layers are made for, at the same place; its name holds its version."""
    command = f"{shlex.quote(find_tools().interpreter)} -I -S -c ''"
    request = RunRequest(key=f"{sandbox}/python", command=command, limit_s=_PROBE_S)
    return (await backend.run(sandbox, request)).exit_code == 0


def without_tools(verdict: Verdict) -> Verdict:
    """``verdict``, which says that tests which name pytest did without the tool layer: where they are not graded, that may be
    why."""
    detail = verdict.detail if verdict.outcome == "graded" else f"{verdict.detail}; {NO_TOOLS}"
    return replace(verdict, warnings=(*verdict.warnings, NO_TOOLS), detail=detail)


def subject_in(isolation: Isolation) -> tuple[str, tuple[str, ...]]:
    """Who the subject is in a sandbox (the variable ``SUBJECT``), and what the verdict must say of that."""
    ids = isolation.uid_map.split()
    if len(ids) != 3 or int(ids[2]) > SUBJECT_UID:
        return str(SUBJECT_UID), ()
    if (have := version()) < OLDEST:
        return "", (f"{ONE_USER} run as the grader's user: this kernel has no Landlock to keep them from it",)
    signals = "" if have >= SIGNALS else ", though they can end it by a signal"
    return FENCED, (f"{ONE_USER} are kept from the grader by Landlock and not by another user{signals}",)


def tests_command(task: Task, *, tools: bool, subject: str, image: bool) -> str:
    """One command of the sandbox's shell; its status is the script's. On an ``image`` PATH and bash are the image's, as the
    shell of a fresh sandbox has them."""
    path, shell = shlex.quote(dict(task.environment.env).get("PATH", PLAIN_PATH)), "/bin/bash"
    if image:
        path, shell = '"$PATH"', '"$BASH"'
    variables = {
        "PATH": f"{PROGRAMS}:{path}" if tools else path,
        SUBJECT: subject or "''",
        **({OPENED: "1"} if subject == FENCED and task.grading.tests_readable else {}),
        GRADED: shlex.quote(":".join(task.graded_paths)),
    }
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    return f"{words} {shell} --noprofile --norc /tests/test.sh"
