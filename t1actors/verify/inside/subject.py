"""Programs that tests start run as the subject: a user that can neither write the report nor touch the grader's
processes.

``separate(uid)`` changes this process: children get the subject's user id, whether they come from ``subprocess``,
``os.system``, ``os.fork`` or ``pty``; temporary files and directories that tests make belong to the subject, so that
its programs can use them. What would replace the grader's own program or start one around this (``os.exec*`` here,
``os.posix_spawn``) is refused.

They are not told which case runs (its id holds a case's parameters, so what it expects): neither a variable of pytest's nor
the name of a temporary directory says it.

``fence()`` does the same where there is no other user: children are the grader's user behind a fence (``landlock``), which
keeps reports, tests, the grader's processes and its files from them.

It cannot help tests that import the agent's modules: those run in the grader's process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from functools import wraps
from typing import Any

import pytest

from t1actors.verify.inside.landlock import Fence, hedge
from t1actors.verify.inside.places import SCRATCH, SUBJECT_HOME, TESTS

ROOT_HOME = "/root"
OPEN_DIRECTORIES = ("/proc", "/tmp", "/var/tmp")
"""Where every user may write, as far as the kernel lets it, beside what is in /dev."""
_OOM = "/proc/self/oom_score_adj"
NOT_CHANGED = 126
"""Exit status of a child that could not be made the subject (no memory, say): it runs nothing."""
_CASE = "PYTEST_CURRENT_TEST"


class SubjectRefused(RuntimeError):
    """A way to start programs that would make them the grader's."""


def separate(uid: int) -> None:
    """From here on what this process starts belongs to ``uid``. Cannot be taken back."""
    apart = (
        hedge()
    )  # one user's programs could else look into each other: the agent's into a git that tests start later

    def change() -> None:
        _become(uid)
        if apart is not None:
            apart.enter()

    _change_what_starts(uid, change)


def fence(*, tests_readable: bool) -> None:
    """From here on what this process starts is behind a fence. Cannot be taken back. Raises ``OSError`` without Landlock."""
    closed = {"dev", "logs", "root", *(() if tests_readable else (TESTS.strip("/"),))}
    devices = [entry.path for entry in os.scandir("/dev") if not (entry.name[0] == "." or entry.is_symlink())]
    around = Fence(
        read=[f"/{name}" for name in os.listdir("/") if name not in closed], write=[*OPEN_DIRECTORIES, *devices]
    )
    _change_what_starts(os.geteuid(), around.enter)


def _change_what_starts(uid: int, change: Callable[[], None]) -> None:
    os.makedirs(SCRATCH, mode=0o755, exist_ok=True)
    os.makedirs(SUBJECT_HOME, mode=0o700, exist_ok=True)
    os.chown(SUBJECT_HOME, uid, uid)
    grader = os.getpid()
    is_subject = False

    def begin() -> None:
        nonlocal is_subject
        if is_subject:  # the child of one
            return
        try:
            os.environ.pop(_CASE, None)
            change()
            is_subject = True
        finally:
            if not is_subject:  # Python would go on, as the grader
                os._exit(NOT_CHANGED)

    os.register_at_fork(after_in_child=begin)
    _start_by_forking(grader)
    _give_temporary_files_to(uid)
    os.system = lambda command: _wait_status(subprocess.call(command, shell=True))

    def watch(event: str, _arguments: tuple[Any, ...]) -> None:
        if event == "os.posix_spawn" or (event == "os.exec" and os.getpid() == grader):
            raise SubjectRefused(f"{event}: tests start programs with subprocess, so that they run as the subject")

    sys.addaudithook(watch)


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _start_by_forking(grader: int) -> None:
    one_at_a_time = threading.Lock()
    start = subprocess.Popen.__init__

    @wraps(start)
    def __init__(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        names = subprocess.Popen.__init__.__wrapped__.__code__.co_varnames[2:]  # type: ignore[attr-defined]
        options.update(zip(names, rest, strict=False))
        options["preexec_fn"] = options.get("preexec_fn") or _nothing
        for name in ("user", "group", "extra_groups"):
            options.pop(name, None)
        options["env"] = _environment(options.get("env"))
        if os.getpid() != grader:
            start(self, args, **options)
            return
        with one_at_a_time, _first_to_go():
            start(self, args, **options)

    subprocess.Popen.__init__ = __init__  # type: ignore[method-assign]


def _nothing() -> None:
    """Having one makes ``subprocess`` fork as ``os.fork`` does, so that the child changes itself."""


@contextlib.contextmanager
def _first_to_go() -> Generator[None]:
    """What is started meanwhile is what the kernel kills when memory runs out, not the grader."""
    try:
        with open(_OOM, encoding="ascii") as file:
            before = file.read()
        with open(_OOM, "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:  # a kernel or a container that does not offer it
        yield
        return
    try:
        yield
    finally:
        with open(_OOM, "w", encoding="ascii") as file:
            file.write(before)


def _environment(given: Any) -> dict[Any, Any]:
    env = dict(os.environ if given is None else given)
    env.pop(_CASE, None)
    if env.get("HOME") == ROOT_HOME:
        env["HOME"] = SUBJECT_HOME
    # The agent's repositories belong to root, and git trusts only its own user's.
    env.setdefault("GIT_CONFIG_COUNT", "1")
    env.setdefault("GIT_CONFIG_KEY_0", "safe.directory")
    env.setdefault("GIT_CONFIG_VALUE_0", "*")
    return env


def _give_temporary_files_to(uid: int) -> None:
    def given(make: Callable[..., Any], path_of: Callable[[Any], Any]) -> Callable[..., Any]:
        @wraps(make)
        def made(*arguments: Any, **options: Any) -> Any:
            result = make(*arguments, **options)
            os.chown(path_of(result), uid, uid)
            return result

        return made

    tempfile.mkdtemp = given(tempfile.mkdtemp, lambda path: path)
    tempfile.mkstemp = given(tempfile.mkstemp, lambda made: made[0])
    inner = "_mkstemp_inner"  # what NamedTemporaryFile uses
    setattr(tempfile, inner, given(getattr(tempfile, inner), lambda made: made[0]))
    make = given(pytest.TempPathFactory.mktemp, lambda path: path)

    @wraps(make)
    def mktemp(self: pytest.TempPathFactory, basename: str, numbered: bool = True) -> Any:
        return make(self, "case" if numbered else basename, numbered)

    pytest.TempPathFactory.mktemp = mktemp  # type: ignore[method-assign]
    base = pytest.TempPathFactory.getbasetemp

    @wraps(base)
    def getbasetemp(self: pytest.TempPathFactory) -> Any:
        path = base(self)
        os.chmod(path, 0o755)
        return path

    pytest.TempPathFactory.getbasetemp = getbasetemp  # type: ignore[method-assign]


def _wait_status(code: int) -> int:
    """What ``os.system`` returns for a program that ended with ``code`` (negative: by a signal)."""
    return -code if code < 0 else code << 8
