"""The process beside a container that starts and kills shells in it: what init is to a sandbox of our own.

It is forked by the shim as host root and speaks init's lines (``shim.init``): S start a shell -> P pid | E reason;  K kill
everything else -> K;  a shell that ends is told as X pid status. It stays outside, where nothing inside can see, trace or
signal it; only what it forks is born in the container's pid namespace. A shell enters the container's control groups and
namespaces by its own hand, gives up all but the capabilities of ``shim.init``, gets the same filter, and only then runs
anything of the container's. So the shells have the same powers whichever backend made the sandbox, and fewer than the
container's first process has: they cannot trace that one either.

When the shim goes away the attendant kills the container's first process, and everything inside dies with it. When that
process ends the attendant ends, which is how the shim hears of it.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from t1actors.sandbox.docker.limits import ContainerLimits
from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.init import INHERITED_SIGNALS, KEPT_CAPABILITIES, STATUS_FD, limit_resources
from t1actors.sandbox.shim.linux import StepFailed

SHELLS = ("/usr/bin/bash", "/bin/bash")
_READ_BYTES = 4096
_LOOK_AGAIN_S = 0.002


class Attended(NamedTuple):
    """All that an attendant needs to know. ``pid_fd`` is the container's first process, ``own_user`` whether the container
    has a user namespace of its own."""

    pid: int
    pid_fd: int
    own_user: bool
    limits: ContainerLimits
    workdir: str
    environment: dict[str, str]
    filter_program: bytes
    orders_fd: int
    reports_fd: int
    status_fd: int


def run_attendant(attended: Attended) -> NoReturn:
    """Never returns and never raises into the caller's stack: this is a forked child."""
    linux.set_name("t1-attendant")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    linux.forbid_inspection()  # what it forks inherits this, and is safe from the processes inside until it runs bash
    linux.close_all_but(
        (attended.pid_fd, attended.orders_fd, attended.reports_fd, attended.status_fd, *attended.limits.descriptors)
    )
    try:
        linux.enter(attended.pid_fd, linux.CLONE_NEWPID, "the container's pid namespace")
    except StepFailed as error:
        os.write(attended.reports_fd, f"E{error.error_number} {error.step}\n".encode())
        os._exit(1)
    os.write(attended.reports_fd, b"R\n")
    _Attendant(attended).serve()


def in_child(work: Callable[[], None]) -> None:
    """Do it in a forked child, so that what it enters is not entered by this process. Raises ``StepFailed``, the child's."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _guarded(work, write)
    os.close(write)
    try:
        _raise_report(read)
    finally:
        os.close(read)
        os.waitpid(pid, 0)


def _guarded(work: Callable[[], None], report_fd: int) -> NoReturn:
    """What a forked child does: the work, or a word of what failed."""
    try:
        work()
    except StepFailed as error:
        os.write(report_fd, f"{error.error_number} {error.step}".encode())
    except OSError as error:
        os.write(report_fd, f"{error.errno} working inside the container at {error.filename}".encode())
    finally:
        os._exit(0)


def _raise_report(report_fd: int) -> None:
    report = os.read(report_fd, _READ_BYTES).decode()
    if report:
        number, _, step = report.partition(" ")
        raise StepFailed(step, int(number))


class _Attendant:
    def __init__(self, attended: Attended) -> None:
        self._attended = attended
        self._shells: set[int] = set()

    def serve(self) -> NoReturn:
        attended = self._attended
        woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        poll = select.poll()
        for fd in (attended.orders_fd, attended.pid_fd, woken):
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if woken in ready:
                os.read(woken, _READ_BYTES)
                self._reap(os.WNOHANG)
            if attended.pid_fd in ready:  # the container ended, and all in it
                self._reap(0)
                os._exit(0)
            if attended.orders_fd in ready:
                order = os.read(attended.orders_fd, 2)
                if order == b"S\n":
                    self._start_shell()
                elif order == b"K\n":
                    self._kill_all()
                else:  # the shim is gone
                    signal.pidfd_send_signal(attended.pid_fd, signal.SIGKILL)
                    os._exit(0)

    def _report(self, line: str) -> None:
        os.write(self._attended.reports_fd, f"{line}\n".encode())

    def _start_shell(self) -> None:
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()
            if pid == 0:
                os.close(read)
                _guarded(self._become_shell, write)
            os.close(write)
            self._shells.add(pid)
            _raise_report(read)
        except (OSError, StepFailed) as error:
            number = error.error_number if isinstance(error, StepFailed) else error.errno
            self._report(f"E{number} starting the shell")
        else:
            self._report(f"P{pid}")
        finally:
            os.close(read)

    def _become_shell(self) -> None:
        attended = self._attended
        for group in attended.limits.groups:
            linux.write_file(f"{group}/cgroup.procs", "0")
        limit_resources()
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.setsid()
        os.umask(0o022)
        linux.enter_all(attended.pid_fd, user=attended.own_user)
        os.dup2(attended.status_fd, STATUS_FD)
        # The directory that a process enters with is the root of the container's mount namespace.
        try:
            os.chdir(attended.workdir)
        except OSError:  # the trial deleted it
            os.chdir("/")
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        linux.keep_only_capabilities(KEPT_CAPABILITIES)
        linux.install_filter(attended.filter_program)
        linux.forbid_inspection()  # a change of ids takes it back
        for number in INHERITED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        arguments = ["bash", "--noprofile", "--norc", "/dev/.t1/in"]
        for shell in SHELLS:
            try:
                os.execve(shell, arguments, attended.environment)
            except FileNotFoundError:
                continue
        raise StepFailed("finding bash in the container", errno.ENOENT)

    def _kill_all(self) -> None:
        """A process of the namespace reaches every other one of it but the first, and all at once."""
        pid = os.fork()
        if pid == 0:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                pass
            finally:
                os._exit(0)
        self._reap(0)
        while self._attended.limits.processes() - {self._attended.pid}:
            time.sleep(_LOOK_AGAIN_S)
        self._report("K")

    def _reap(self, flags: int) -> None:
        """Tell of the shells that ended; without ``WNOHANG``, wait for all children."""
        while True:
            try:
                pid, status = os.waitpid(-1, flags)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._shells:
                self._shells.discard(pid)
                self._report(f"X{pid} {status}")
