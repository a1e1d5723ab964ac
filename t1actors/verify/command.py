"""The command that runs a task's tests, and what lies beside them: the same words for both modes of grading.

Guarantees: PATH begins with the tool layer where there is one; the subject's user id is none of root's; the tests can
be read by the subject only where the task says so.
"""

from __future__ import annotations

import shlex

from t1actors.sandbox.archive import EMPTY, subtree
from t1actors.sandbox.interface import Layer
from t1actors.tasks.task import Task
from t1actors.verify.inside.places import GRADED, PROGRAMS, SUBJECT

SUBJECT_UID = 61_000
USES_PYTEST = b"pytest"
PLAIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def closed(task: Task, tests: Layer) -> Layer:
    """``tests``, which only the grader can read unless the task says that the subject may."""
    if task.grading.tests_readable:
        return tests
    return Layer(archive=subtree(tests.archive, "/", mode=0o700) or EMPTY, at=tests.at, read_only=tests.read_only)


def uses_pytest(tests: Layer) -> bool:
    """Whether these tests need the tool layer: they name pytest somewhere."""
    return USES_PYTEST in tests.archive


def tests_command(task: Task, *, tools: bool, subject: bool) -> str:
    """One command of the sandbox's shell; its status is the script's."""
    variables = {
        "PATH": f"{PROGRAMS}:{PLAIN_PATH}" if tools else PLAIN_PATH,
        SUBJECT: str(SUBJECT_UID) if subject else "",
        GRADED: ":".join(task.graded_paths),
    }
    path = dict(task.environment.env).get("PATH")
    if path is not None:
        variables["PATH"] = f"{PROGRAMS}:{path}" if tools else path
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return f"{words} /bin/bash --noprofile --norc /tests/test.sh"
