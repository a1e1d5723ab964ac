"""The shell protocol: one command at a time in a persistent bash, without trusting its output for anything.

In the sandbox's /dev/.t1, where only the shim makes files:  ``in``, a pipe that bash reads as its script and no other user
opens;  ``c``, the command, a file that its length delimits;  ``o``, this command's own output pipe. One line a command goes
into ``in``:

    . c </dev/null >o 2>&1 250>&-; builtin echo NUMBER "$?" >&250

Guarantees: what a command prints can't end it or change its status, for both come on descriptor 250, which is closed for
the command, under a number that grows; the output is what was in the pipe when the status came, so a process left behind
neither delays the answer nor writes into a later one; output is bounded in memory whatever is written; every command ends
within its limit. A shell that ends, by whatever means, is an answer too, and the next command gets a new one.

A process left behind goes on writing into its own old pipe. Those are emptied at a bounded rate, so that a server that
logs does not block and one that floods costs little.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import struct
import time
from collections.abc import Callable
from fcntl import F_SETPIPE_SZ, fcntl, ioctl
from typing import NamedTuple

from t1actors.sandbox.shim.limits import Counters
from t1actors.sandbox.shim.rootfs import CONTROL

TIME_LIMIT_EXIT_CODE = 124
KILLED_EXIT_CODE = 137

_FIONREAD = 0x541B
_STATUS_LINE = re.compile(rb"(\d+) (\d{1,3})\n")
_READ_BYTES = 1 << 16
_BIG_PIPE_BYTES = 1 << 20
_COALESCE_S = 0.05
_QUIET_S = 0.005
"""After a small read the output pipe is left alone this long: a chatty command then costs few wake-ups."""
_OLD_PIPES = 64
_OLD_PIPE_PERIOD_S = 0.1


class CommandResult(NamedTuple):
    """``chunks`` are (seconds since the start, text)."""

    chunks: list[tuple[float, str]]
    exit_code: int
    seconds: float
    truncated_bytes: int
    timed_out: bool
    shell_restarted: bool
    limit_hit: list[str]


class _Command:
    """The command in flight."""

    def __init__(self, number: int, output_fd: int, started_s: float, deadline_s: float) -> None:
        self.number = number
        self.output_fd = output_fd
        self.started_s = started_s
        self.deadline_s = deadline_s
        self.poll_again_s = started_s + _QUIET_S
        self.big_pipe = False
        self.kept_bytes = 0
        self.truncated_bytes = 0
        self.chunks: list[tuple[float, bytearray]] = []
        self.killing = ""
        """Why everything inside is being killed: a limit's name."""
        self.restarted = False


class Shell:
    """The shim's side of the sandbox's shell. The owner polls ``fds()``, calls ``step()`` when one is ready or ``wake_s``
    is due, hands on what init says, and sends init what ``to_init`` holds. ``owner`` is what the shell's user is outside."""

    def __init__(
        self,
        control_directory: str,
        status_fd: int,
        disk_is_full: Callable[[], bool],
        counters: Callable[[], Counters],
        output_bytes: int,
        owner: int,
    ) -> None:
        self._directory = os.open(control_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._status_fd = status_fd
        self._disk_is_full = disk_is_full
        self._count = counters
        self._output_bytes = output_bytes
        self._owner = owner
        self._script_fd = -1
        self._pid = 0
        self._starting = False
        self._ever_started = False
        self._lost = False
        self._number = 0
        self._command: _Command | None = None
        self._status = b""
        self._old: dict[int, float] = {}
        self._null_fd = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        self._counters = counters()
        self.to_init: list[bytes] = []

    # --- what the owner calls ---

    @property
    def busy(self) -> bool:
        return self._command is not None

    def start(self, command: str, limit_s: float) -> None:
        """Begin ``command``; NUL characters, which no shell line can hold, are left out."""
        now_s = time.monotonic()
        if not self._pid and not self._starting:
            self._start_shell()
        data = command.replace("\0", "").encode("utf-8", "replace")
        self._number += 1
        self._write_file("c", data)
        self._make_pipe("o", 0o666)
        output_fd = os.open("o", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._directory)
        self._command = _Command(self._number, output_fd, now_s, now_s + limit_s)
        self._command.restarted = self._lost
        self._lost = False
        self._discard_status()
        line = f'. {CONTROL}/c </dev/null >{CONTROL}/o 2>&1 250>&-;builtin echo {self._number} "$?" >&250\n'
        os.write(self._script_fd, line.encode())

    def fds(self) -> list[tuple[int, int]]:
        """Descriptors to poll now, with their events."""
        found = [(self._status_fd, select.POLLIN)]
        now_s = time.monotonic()
        if self._command is not None and now_s >= self._command.poll_again_s:
            found.append((self._command.output_fd, select.POLLIN))
        found += [(fd, select.POLLIN) for fd, again_s in self._old.items() if now_s >= again_s]
        return found

    def wake_s(self) -> float | None:
        """When ``step`` is due at the latest, on the monotonic clock."""
        now_s = time.monotonic()
        due = [again_s for again_s in self._old.values() if again_s > now_s]
        if self._command is not None:
            due.append(self._command.deadline_s if not self._command.killing else now_s + 1.0)
            if self._command.poll_again_s > now_s:
                due.append(self._command.poll_again_s)
        return min(due, default=None)

    def step(self, ready: set[int]) -> CommandResult | None:
        """Take in what is there; the result if that ends the command."""
        now_s = time.monotonic()
        for fd in [fd for fd in self._old if fd in ready]:
            self._empty_old(fd, now_s)
        command = self._command
        if self._status_fd in ready:
            result = self._take_status(now_s)
            if result is not None:
                return result
        if command is None or self._command is None:
            return None
        if command.output_fd in ready:
            self._take_output(command, now_s)
        if not command.killing and now_s >= command.deadline_s:
            self.kill_all("time")
        return None

    def kill_all(self, why: str) -> None:
        """Have init kill everything inside; the command in flight ends when it has."""
        if self._command is not None and not self._command.killing:
            self._command.killing = why
            self.to_init.append(b"K\n")

    def said_by_init(self, line: bytes) -> CommandResult | None:
        """Take in a line of init's; the finished command's result when that was its end."""
        now_s = time.monotonic()
        kind, rest = line[:1], line[1:]
        if kind == b"P":
            self._pid, self._starting = int(rest), False
        elif kind == b"E":  # no process could be started: make room, and give up this command
            self._starting = False
            self.kill_all("processes")
        elif kind == b"X":
            pid, status = map(int, rest.split())
            if pid == self._pid:
                self._pid = 0
                if self._command is None:
                    self._lost = True
                elif not self._command.killing:
                    result = self._take_status(now_s)  # its last word may be in the pipe
                    if result is not None:
                        self._lost = True
                        return result
                    code = os.waitstatus_to_exitcode(status)
                    return self._finish(now_s, 128 - code if code < 0 else code, restarted=True)
        elif kind == b"K" and self._command is not None:
            self._pid = 0
            code = TIME_LIMIT_EXIT_CODE if self._command.killing == "time" else KILLED_EXIT_CODE
            return self._finish(now_s, code, restarted=True)
        return None

    def init_died(self) -> CommandResult | None:
        """Every process inside is dead."""
        self._pid, self._starting = 0, False
        if self._command is None:
            return None
        return self._finish(time.monotonic(), KILLED_EXIT_CODE, restarted=True)

    def memory_was_exceeded(self) -> bool:
        """Whether the kernel killed for memory since the last command ended."""
        return self._count().memory > self._counters.memory

    # --- parts ---

    def _start_shell(self) -> None:
        if self._script_fd >= 0:
            os.close(self._script_fd)
        # What is written here the shell does, with its own power: no other user inside may.
        self._make_pipe("in", 0o600)
        # Open for both: it never blocks, and the shell sees no end of file between commands.
        self._script_fd = os.open("in", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._directory)
        os.write(self._script_fd, b"BASH_ARGV0=bash\n")
        self._starting = True
        self.to_init.append(b"S\n")

    def _make_pipe(self, name: str, mode: int) -> None:
        # A new pipe each time: whoever still has the old one can't reach this one's reader or writer.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._directory)
        os.mkfifo(name, 0o600, dir_fd=self._directory)
        os.chown(name, self._owner, self._owner, dir_fd=self._directory)
        os.chmod(name, mode, dir_fd=self._directory)

    def _write_file(self, name: str, data: bytes) -> None:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644, dir_fd=self._directory)
        try:
            if os.write(fd, data) != len(data):
                raise OSError(28, "the command does not fit the shim's file system")
        finally:
            os.close(fd)

    def _discard_status(self) -> None:
        self._status = b""
        try:
            while os.read(self._status_fd, _READ_BYTES):
                pass
        except BlockingIOError:
            pass

    def _take_status(self, now_s: float) -> CommandResult | None:
        try:
            self._status = (self._status + os.read(self._status_fd, _READ_BYTES))[-_READ_BYTES:]
        except BlockingIOError:
            return None
        if self._command is None or self._command.killing:
            return None
        for number, code in _STATUS_LINE.findall(self._status):
            if int(number) == self._command.number:
                return self._finish(now_s, int(code), restarted=False)
        return None

    def _take_output(self, command: _Command, now_s: float) -> None:
        closed = False
        if command.kept_bytes >= self._output_bytes:
            # Nothing more is kept: let the kernel throw pages away.
            try:
                count = os.splice(command.output_fd, self._null_fd, _BIG_PIPE_BYTES)
            except BlockingIOError:
                count = 0
            else:
                closed = not count
            command.truncated_bytes += count
        else:
            try:
                data = os.read(command.output_fd, _READ_BYTES)
            except BlockingIOError:
                data = b""
            else:
                closed = not data
            count = len(data)
            self._keep(command, data, now_s)
        if count >= _READ_BYTES and not command.big_pipe:
            command.big_pipe = True
            with contextlib.suppress(OSError):  # only a matter of speed
                fcntl(command.output_fd, F_SETPIPE_SZ, _BIG_PIPE_BYTES)
        if count < _READ_BYTES // 2:
            # A pipe that nobody holds any more stays ready for ever: look again seldom.
            command.poll_again_s = now_s + (_OLD_PIPE_PERIOD_S if closed else _QUIET_S)

    def _keep(self, command: _Command, data: bytes, now_s: float) -> None:
        room = self._output_bytes - command.kept_bytes
        kept = data[:room]
        command.truncated_bytes += len(data) - len(kept)
        command.kept_bytes += len(kept)
        if not kept:
            return
        at_s = now_s - command.started_s
        if command.chunks and at_s - command.chunks[-1][0] < _COALESCE_S:
            command.chunks[-1][1].extend(kept)
        else:
            command.chunks.append((at_s, bytearray(kept)))

    def _finish(self, now_s: float, exit_code: int, *, restarted: bool) -> CommandResult:
        command = self._command
        assert command is not None
        self._command = None
        self._drain(command, now_s)
        limits = self._limits_hit(command)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        chunks = [(at_s, decoder.decode(bytes(data))) for at_s, data in command.chunks]
        rest = decoder.decode(b"", final=True)
        if rest:
            chunks[-1] = (chunks[-1][0], chunks[-1][1] + rest)
        return CommandResult(
            chunks=chunks,
            exit_code=exit_code,
            seconds=now_s - command.started_s,
            truncated_bytes=command.truncated_bytes,
            timed_out=command.killing == "time",
            shell_restarted=restarted or command.restarted,
            limit_hit=limits,
        )

    def _drain(self, command: _Command, now_s: float) -> None:
        """What is in the pipe now belongs to the command; what comes later does not."""
        left = struct.unpack("i", ioctl(command.output_fd, _FIONREAD, bytes(4)))[0]
        while left > 0:
            data = os.read(command.output_fd, min(left, _READ_BYTES))
            if not data:
                break
            left -= len(data)
            self._keep(command, data, now_s)
        with contextlib.suppress(FileNotFoundError):
            os.unlink("o", dir_fd=self._directory)
        self._write_file("c", b"")
        poll = select.poll()
        poll.register(command.output_fd, 0)
        if poll.poll(0):  # hung up: no process holds it
            os.close(command.output_fd)
            return
        self._old[command.output_fd] = now_s + _OLD_PIPE_PERIOD_S
        if len(self._old) > _OLD_PIPES:
            oldest = next(iter(self._old))
            del self._old[oldest]
            os.close(oldest)

    def _empty_old(self, fd: int, now_s: float) -> None:
        try:
            count = os.splice(fd, self._null_fd, _BIG_PIPE_BYTES)
        except BlockingIOError:
            count = -1
        if count == 0:
            del self._old[fd]
            os.close(fd)
        else:
            self._old[fd] = now_s + _OLD_PIPE_PERIOD_S

    def _limits_hit(self, command: _Command) -> list[str]:
        before, self._counters = self._counters, self._count()
        checks = {
            "time": command.killing == "time",
            "memory": command.killing == "memory" or self._counters.memory > before.memory,
            "processes": command.killing == "processes" or self._counters.processes > before.processes,
            "disk": command.killing == "disk" or self._disk_is_full(),
            "output": command.truncated_bytes > 0,
        }
        return [name for name, hit in checks.items() if hit]
