"""The shim: one process per sandbox, outside it, that owns everything of it and outlives whoever asked for it.

It builds the sandbox on the first Create, answers orders on the sandbox's socket, keeps the result of every command by
key, and ends the sandbox on Kill, on SIGTERM, or when its lease runs out; then nothing of it is left when the answer
comes. Guarantees: a key never runs twice, and its result is kept as long as the sandbox; when the shim ends, by any
cause, every process inside ends with it (init dies with its parent, the pid namespace with init) and so do the mounts.
What a SIGKILL of the shim leaves, an empty directory and empty control groups, is the reaper's (``sandbox.reaper``).

The lease counts only while no connection is open: an open one is a living caller.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import time
from typing import NoReturn

from t1actors.sandbox.archive import archive_of_fd
from t1actors.sandbox.errors import ArchiveError, SandboxRefused
from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.limits import WATCHDOG_PERIOD_S
from t1actors.sandbox.shim.linux import StepFailed
from t1actors.sandbox.shim.machine import REPORT_BYTES, Built, Machine
from t1actors.sandbox.shim.shell import CommandResult
from t1actors.sandbox.wire import (
    Answer,
    Commit,
    Create,
    Done,
    Failed,
    Inbox,
    Kill,
    Made,
    Order,
    Ran,
    ReadFile,
    Renew,
    Run,
    Seal,
    WireError,
    encode,
)

_UNBUILT_LEASE_S = 30.0
_KILL_PATIENCE_S = 10.0
_READ_BYTES = 1 << 18


class _Connection:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.inbox = Inbox()
        self.out = memoryview(b"")
        self.waits_for = ""
        """The key of the command whose result it wants."""


class Shim:
    """One sandbox's server: orders in, answers out, a lease that runs."""

    def __init__(self, machine: Machine, name: str, listener_fd: int) -> None:
        self._name = name
        self._sandbox = machine
        self._listener_fd = listener_fd
        self._connections: dict[int, _Connection] = {}
        self._lease_s = _UNBUILT_LEASE_S
        self._lease_ends_s = time.monotonic() + self._lease_s
        self._built: Built | None = None
        self._alive = False
        """Whether processes can run inside: built, and neither sealed nor dead."""
        self._command_s = 0.0
        self._results: dict[str, Ran] = {}
        self._queue: list[Run] = []
        self._running: Run | None = None
        self._sealed = False
        self._death = ""
        """Why everything inside is dead although it was not sealed: a ``SandboxDied`` cause."""
        self._death_detail = ""
        self._kill_since_s: float | None = None

    # --- the loop ---

    def serve(self) -> NoReturn:
        """Never returns: ends the process when the sandbox is killed or its lease is over."""
        os.set_blocking(self._listener_fd, False)
        signal.signal(signal.SIGTERM, self._terminate)
        while True:
            ready = self._wait()
            now_s = time.monotonic()
            if self._listener_fd in ready:
                self._accept()
            if self._built is not None and self._alive:
                self._attend(self._built, ready)
            for connection in [c for fd, c in self._connections.items() if fd in ready]:
                if self._connections.get(connection.fd) is connection:
                    self._talk(connection)
            if self._built is not None and self._alive:
                self._start_next(self._built)
            if self._connections:
                self._lease_ends_s = now_s + self._lease_s
            elif now_s >= self._lease_ends_s:
                self._sandbox.remove()
                os._exit(0)

    def _terminate(self, _signal_number: int, _frame: object) -> None:
        self._sandbox.remove()
        os._exit(0)

    def _wait(self) -> set[int]:
        poll = select.poll()
        poll.register(self._listener_fd, select.POLLIN)
        for connection in self._connections.values():
            poll.register(connection.fd, select.POLLIN | (select.POLLOUT if connection.out else 0))
        wakes = [] if self._connections else [self._lease_ends_s]
        if self._built is not None and self._alive:
            poll.register(self._built.reports_fd, select.POLLIN)
            if self._built.network_fd is not None:
                poll.register(self._built.network_fd, select.POLLIN)
            shell = self._built.shell
            for fd, events in shell.fds():
                poll.register(fd, events)
            wake_s = shell.wake_s()
            if wake_s is not None:
                wakes.append(wake_s)
            if self._built.exceeded is not None and shell.busy:
                wakes.append(time.monotonic() + WATCHDOG_PERIOD_S)
        timeout_ms = None if not wakes else max(0.0, min(wakes) - time.monotonic()) * 1000 + 1
        return {fd for fd, _ in poll.poll(timeout_ms)}

    def _accept(self) -> None:
        try:
            fd = linux.accept(self._listener_fd)
        except OSError:  # whoever called has gone again
            return
        self._connections[fd] = _Connection(fd)

    def _talk(self, connection: _Connection) -> None:
        try:
            if connection.out:
                connection.out = connection.out[os.write(connection.fd, connection.out) :]
            data = os.read(connection.fd, _READ_BYTES)
            if not data:
                self._drop(connection)
                return
            connection.inbox.feed(data)
            message = connection.inbox.take()
        except BlockingIOError:
            return
        except (OSError, WireError):
            self._drop(connection)
            return
        if message is not None:
            order, content = message
            if isinstance(order, (Made, Ran, Done, Failed)):
                self._drop(connection)
            else:
                self._obey(connection, order, content)

    def _drop(self, connection: _Connection) -> None:
        del self._connections[connection.fd]
        os.close(connection.fd)

    def _answer(self, connection: _Connection, answer: Answer, data: bytes = b"") -> None:
        connection.waits_for = ""
        connection.out = memoryview(encode(answer, data))
        try:
            connection.out = connection.out[os.write(connection.fd, connection.out) :]
        except BlockingIOError:
            pass  # the loop sends the rest
        except OSError:
            self._drop(connection)

    # --- orders ---

    def _obey(self, connection: _Connection, order: Order, data: bytes) -> None:
        if isinstance(order, Kill):
            self._sandbox.remove()
            os.set_blocking(connection.fd, True)
            self._answer(connection, Done())
            os._exit(0)
        if isinstance(order, Create):
            self._create(connection, order, data)
        elif isinstance(order, Renew):  # being asked is all it takes, also while the sandbox is only being created
            self._answer(connection, Done())
        elif self._built is None:
            self._answer(connection, Failed("SandboxRefused", [f"sandbox {self._name}: create it first"]))
        elif isinstance(order, Run):
            self._run(connection, order)
        elif isinstance(order, ReadFile):
            content = self._read_file(order)
            self._answer(connection, Done(content is not None), content or b"")
        elif isinstance(order, Commit):
            self._commit(self._built, connection, order)
        else:
            assert isinstance(order, Seal)
            self._seal(self._built, connection, order)

    def _create(self, connection: _Connection, order: Create, data: bytes) -> None:
        if self._built is not None:
            self._answer(connection, self._built.made._replace(existed=True, phases={}))
            return
        try:
            self._built = self._sandbox.build(order, data)
        except StepFailed as error:
            failure = Failed("SandboxUnavailable", [error.step, error.reason, *([error.fix] if error.fix else [])])
        except OSError as error:
            failure = Failed("SandboxUnavailable", [f"building the sandbox at {error.filename}", str(error.strerror)])
        except (ArchiveError, SandboxRefused) as error:
            failure = Failed(type(error).__name__, [f"sandbox {self._name}: {error}"])
        else:
            self._alive = True
            self._lease_s, self._command_s = order.lease_s, order.command_s
            self._answer(connection, self._built.made)
            return
        self._sandbox.remove()
        os.set_blocking(connection.fd, True)
        self._answer(connection, failure)
        os._exit(1)

    def _run(self, connection: _Connection, order: Run) -> None:
        stored = self._results.get(order.key)
        if stored is not None:
            self._answer(connection, stored)
        elif self._sealed:
            text = f"sandbox {self._name}: sealed, so {order.key} can't run; commands come before the seal"
            self._answer(connection, Failed("SandboxSealed", [text]))
        elif self._death:
            self._answer(connection, self._died())
        else:
            connection.waits_for = order.key
            known = [*self._queue, *([self._running] if self._running else [])]
            if not any(other.key == order.key for other in known):
                self._queue.append(order)

    def _died(self) -> Failed:
        text = f"sandbox {self._name}: its processes are dead ({self._death_detail or self._death}); seal it or kill it"
        return Failed("SandboxDied", [text, self._death])

    def _read_file(self, order: ReadFile) -> bytes | None:
        """Through the merged tree, in which only what the trial may write is mounted."""
        try:
            merged = os.open(self._sandbox.merged, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fd = linux.open_beneath(merged, order.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, one_mount=True)
            finally:
                os.close(merged)
        except OSError:
            return None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > order.max_bytes:
                return None
            with open(fd, "rb", closefd=False) as file:
                data = file.read(order.max_bytes + 1)
        finally:
            os.close(fd)
        return data if len(data) <= order.max_bytes else None

    def _stop_for_good(self, built: Built) -> None:
        self._sealed = True
        if self._alive:
            text = f"sandbox {self._name}: was sealed while commands waited"
            self._stop_commands(built, Failed("SandboxSealed", [text]))

    def _commit(self, built: Built, connection: _Connection, order: Commit) -> None:
        # Few sandboxes are committed: the others need not carry what this takes.
        from t1actors.sandbox.layer_tar import commit_tree

        self._stop_for_good(built)
        try:
            commit_tree(self._sandbox.upper, order.file, first_uid=built.first_uid, max_bytes=order.max_bytes)
        except (ArchiveError, SandboxRefused) as error:
            self._answer(connection, Failed(type(error).__name__, [f"sandbox {self._name}: {error}"]))
        except OSError as error:
            text = f"sandbox {self._name}: {order.file} can't be written: {error.strerror}"
            self._answer(connection, Failed("SandboxError", [text]))  # the host's disk, not the tree
        else:
            self._answer(connection, Done())

    def _seal(self, built: Built, connection: _Connection, order: Seal) -> None:
        self._stop_for_good(built)
        wanted = [tuple(os.fsencode(n) for n in path.split("/") if n) for path in order.paths]

        def keep(names: tuple[bytes, ...]) -> bool:
            return any(names[: len(path)] == path[: len(names)] for path in wanted)

        upper = os.open(self._sandbox.upper, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            everything = () in wanted
            archive = archive_of_fd(
                upper,
                where=f"sandbox {self._name}",
                overlay=built.opaque_attribute,
                keep=None if everything else keep,
            )
        except ArchiveError as error:
            self._answer(connection, Failed("ArchiveError", [str(error)]))
        else:
            self._answer(connection, Done(), archive)
        finally:
            os.close(upper)

    # --- commands ---

    def _attend(self, built: Built, ready: set[int]) -> None:
        """What the shell and init have to say, and what is to be said to init."""
        if built.reports_fd in ready:
            self._hear_init(built)
        if self._alive and built.network_fd in ready:
            # What the trial does from here on would not be what it does with the network that its task asks for.
            self._death, self._death_detail = "killed", f"killed, for its network ended: {built.made.network}"
            self._stop_commands(built, self._died())
        if not self._alive:
            return
        self._settle(built.shell.step(ready))
        if built.exceeded is not None and built.shell.busy and (limit := built.exceeded()):
            built.shell.kill_all(limit)
        self._tell_init(built)
        if self._kill_since_s is not None and time.monotonic() - self._kill_since_s > _KILL_PATIENCE_S:
            os.kill(built.init_pid, signal.SIGKILL)

    def _start_next(self, built: Built) -> None:
        if self._running is None and self._queue:
            self._running = self._queue.pop(0)
            built.shell.start(self._running.command, min(self._running.limit_s, self._command_s))
            self._tell_init(built)

    def _settle(self, result: CommandResult | None) -> None:
        if result is None or self._running is None:
            return
        key, self._running = self._running.key, None
        self._kill_since_s = None
        answer = Ran(*result)
        self._results[key] = answer
        for connection in [c for c in self._connections.values() if c.waits_for == key]:
            self._answer(connection, answer)

    def _hear_init(self, built: Built) -> None:
        try:
            reports = os.read(built.reports_fd, REPORT_BYTES)
        except BlockingIOError:
            return
        for line in reports.splitlines():
            self._settle(built.shell.said_by_init(line))
        if reports:
            return
        # Init is dead and the namespace with it: the kernel ran out of memory inside, or someone outside did it.
        self._death = "memory" if built.shell.memory_was_exceeded() else "killed"
        self._stop_commands(built, self._died())

    def _tell_init(self, built: Built) -> None:
        while built.shell.to_init:
            order = built.shell.to_init.pop(0)
            if order == b"K\n":
                self._kill_since_s = time.monotonic()
            try:
                os.write(built.orders_fd, order)
            except BrokenPipeError:  # it died; hearing of that is the loop's business
                return

    def _stop_commands(self, built: Built, answer: Failed) -> None:
        """End everything inside; the command in flight gets a result, those that wait get ``answer``."""
        self._sandbox.kill_inside()
        self._alive = False
        self._settle(built.shell.init_died())
        waiting = {run.key for run in self._queue}
        self._queue.clear()
        for connection in [c for c in self._connections.values() if c.waits_for in waiting]:
            self._answer(connection, answer)


def run_shim(machine: Machine, root_directory: str, name: str, listener_fd: int) -> NoReturn:
    """The life of one shim, in a freshly forked child of the fork server."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(f"{root_directory}/{name}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, fd)
    linux.close_all_but([listener_fd])
    linux.set_name("t1-shim")
    linux.forbid_inspection()
    try:
        Shim(machine, name, listener_fd).serve()
    finally:  # a fault of this program: into the log it goes, and nothing of the fork server's runs in this child
        error = sys.exc_info()[1]
        if error is not None:
            sys.excepthook(type(error), error, error.__traceback__)
        os._exit(70)
