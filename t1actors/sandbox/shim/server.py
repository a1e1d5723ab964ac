"""The shim: one process per sandbox, outside it, that owns everything of it and outlives whoever asked for it.

It builds the sandbox on the first Create, answers orders on the sandbox's socket, keeps the result of every command by
key, and ends the sandbox on Kill or when its lease runs out. Guarantees: a key never runs twice and its result is kept as
long as the sandbox; when the shim ends, by any cause, every process inside ends with it (init dies with its parent, and
the pid namespace with init) and so do the mounts; on a Kill or a lost lease the control groups and the directory go too,
before the answer. What a SIGKILL of the shim leaves (an empty directory and empty control groups) the next fork server
clears away.

The lease counts only while no connection is open: an open one is a living caller.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import stat
import sys
import time
from typing import NamedTuple, NoReturn

from t1actors.sandbox.archive import archive_of_fd
from t1actors.sandbox.errors import ArchiveError
from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.init import NAMESPACES, Inside, run_init, uid_map
from t1actors.sandbox.shim.limits import WATCHDOG_PERIOD_S, Controllers, Guard
from t1actors.sandbox.shim.linux import StepFailed
from t1actors.sandbox.shim.rootfs import HostFiles, LayerBytes, Root, make_root, plan_root
from t1actors.sandbox.shim.shell import CommandResult, Shell
from t1actors.sandbox.unpack import remove_tree
from t1actors.sandbox.wire import (
    Answer,
    Create,
    Done,
    Failed,
    Inbox,
    Kill,
    Made,
    Order,
    Ran,
    ReadFile,
    Run,
    Seal,
    WireError,
    encode,
)

_FIRST_UID = 0x10000000
_UIDS = 65_536
_UID_RANGES = 8192
_UNBUILT_LEASE_S = 30.0
_KILL_PATIENCE_S = 10.0
_READ_BYTES = 1 << 18
_MESSAGE_BYTES = 4096
_BASE_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C",
    "HOME": "/root",
    "TERM": "dumb",
}


class Prepared(NamedTuple):
    """What the fork server found out once, for every shim it forks."""

    root_directory: str
    group_prefix: str
    host_files: HostFiles
    controllers: Controllers
    filter_program: bytes


class _Connection:
    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self.inbox = Inbox()
        self.out = memoryview(b"")
        self.waits_for = ""
        """The key of the command whose result it wants."""


class Shim:
    def __init__(self, prepared: Prepared, name: str, listener: socket.socket) -> None:
        self._prepared = prepared
        self._name = name
        self._directory = f"{prepared.root_directory}/{name}"
        self._listener = listener
        self._connections: dict[int, _Connection] = {}
        self._lease_s = _UNBUILT_LEASE_S
        self._lease_ends_s = time.monotonic() + self._lease_s
        self._made: Made | None = None
        self._root: Root | None = None
        self._guard: Guard | None = None
        self._shell: Shell | None = None
        self._control: socket.socket | None = None
        self._init_pid = 0
        self._uid_lock: socket.socket | None = None
        self._command_s = 0.0
        self._results: dict[str, Ran] = {}
        self._queue: list[Run] = []
        self._running: Run | None = None
        self._sealed = False
        self._death = ""
        """Why everything inside is dead although it was not sealed: a ``SandboxDied`` cause."""
        self._kill_since_s: float | None = None

    # --- the loop ---

    def serve(self) -> NoReturn:
        self._listener.setblocking(False)
        while True:
            ready = self._wait()
            now_s = time.monotonic()
            if self._listener.fileno() in ready:
                self._accept()
            if self._control is not None and self._control.fileno() in ready:
                self._hear_init()
            if self._shell is not None:
                self._settle(self._shell.step(ready))
                self._watch_memory()
                self._tell_init()
            for connection in [c for fd, c in self._connections.items() if fd in ready]:
                if connection.stream.fileno() >= 0:
                    self._talk(connection)
            self._start_next()
            if self._connections:
                self._lease_ends_s = now_s + self._lease_s
            elif now_s >= self._lease_ends_s:
                self._end()
                os._exit(0)

    def _wait(self) -> set[int]:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        for connection in self._connections.values():
            poll.register(connection.stream, select.POLLIN | (select.POLLOUT if connection.out else 0))
        wakes = [] if self._connections else [self._lease_ends_s]
        if self._control is not None:
            poll.register(self._control, select.POLLIN)
        if self._shell is not None and self._control is not None:
            for fd, events in self._shell.fds():
                poll.register(fd, events)
            wake_s = self._shell.wake_s()
            if wake_s is not None:
                wakes.append(wake_s)
            if self._guard is not None and self._guard.watches_memory and self._shell.busy:
                wakes.append(time.monotonic() + WATCHDOG_PERIOD_S)
        timeout_ms = None if not wakes else max(0.0, min(wakes) - time.monotonic()) * 1000 + 1
        return {fd for fd, _ in poll.poll(timeout_ms)}

    def _accept(self) -> None:
        try:
            stream, _ = self._listener.accept()
        except BlockingIOError:
            return
        stream.setblocking(False)
        self._connections[stream.fileno()] = _Connection(stream)

    def _talk(self, connection: _Connection) -> None:
        try:
            if connection.out:
                sent = connection.stream.send(connection.out)
                connection.out = connection.out[sent:]
            data = connection.stream.recv(_READ_BYTES)
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
        del self._connections[connection.stream.fileno()]
        connection.stream.close()

    def _answer(self, connection: _Connection, answer: Answer, data: bytes = b"") -> None:
        connection.waits_for = ""
        connection.out = memoryview(encode(answer, data))
        try:
            connection.out = connection.out[connection.stream.send(connection.out) :]
        except BlockingIOError:
            pass  # the loop sends the rest
        except OSError:
            self._drop(connection)

    # --- orders ---

    def _obey(self, connection: _Connection, order: Order, data: bytes) -> None:
        if isinstance(order, Kill):
            self._end()
            connection.stream.setblocking(True)
            self._answer(connection, Done())
            os._exit(0)
        if isinstance(order, Create):
            self._create(connection, order, data)
        elif self._made is None:
            self._answer(connection, Failed("SandboxRefused", [f"sandbox {self._name}: create it first"]))
        elif isinstance(order, Run):
            self._run(connection, order)
        elif isinstance(order, ReadFile):
            content = self._read_file(order)
            self._answer(connection, Done(content is not None), content or b"")
        elif isinstance(order, Seal):
            self._seal(connection, order)
        else:  # Renew: being asked is all it takes
            self._answer(connection, Done())

    def _create(self, connection: _Connection, order: Create, data: bytes) -> None:
        if self._made is not None:
            self._answer(connection, self._made._replace(existed=True, phases={}))
            return
        try:
            self._made = self._build(order, data)
        except StepFailed as error:
            failure = Failed("SandboxUnavailable", [error.step, error.reason])
        except OSError as error:
            failure = Failed("SandboxUnavailable", [f"building the sandbox at {error.filename}", str(error.strerror)])
        except ArchiveError as error:
            failure = Failed("ArchiveError", [str(error)])
        else:
            self._answer(connection, self._made)
            return
        self._end()
        connection.stream.setblocking(True)
        self._answer(connection, failure)
        os._exit(1)

    def _build(self, order: Create, data: bytes) -> Made:
        started_s = time.monotonic()
        prepared = self._prepared
        self._lease_s, self._command_s = order.lease_s, order.command_s
        layers: list[LayerBytes] = []
        at = 0
        for place, read_only, size_bytes in order.layers:
            layers.append(LayerBytes(place, read_only, data[at : at + size_bytes]))
            at += size_bytes
        self._uid_lock, first_uid = _lock_uids()
        self._guard = Guard(
            prepared.controllers,
            prepared.group_prefix + self._name,
            memory_mb=order.memory_mb,
            processes=order.processes,
        )
        os.mkdir(f"{self._directory}/fs")
        self._root = plan_root(f"{self._directory}/fs", prepared.host_files, layers)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        status_read, status_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(status_read, False)
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWPID, "mount and pid namespaces")
        inside = Inside(
            root=self._root,
            guard=self._guard,
            first_uid=first_uid,
            memory_mb=order.memory_mb,
            workdir=order.workdir,
            environment={**_BASE_ENVIRONMENT, **dict(order.environment)},
            filter_program=prepared.filter_program,
            control=theirs,
            status_fd=status_write,
        )
        # Forked as early as can be: what this process writes to its memory from here on is not copied twice, and the
        # two work side by side.
        self._init_pid = os.fork()
        if self._init_pid == 0:
            try:
                run_init(inside)
            finally:  # whatever happens, a child never goes on as a second shim
                os._exit(70)
        theirs.close()
        os.close(status_write)
        make_root(self._root, prepared.host_files, layers, uid=first_uid, workdir=order.workdir, disk_mb=order.disk_mb)
        laid_out_s = time.monotonic()
        self._control.send(b"G")
        self._expect(b"U")
        mapping = uid_map(first_uid)
        for kind in ("uid_map", "gid_map"):
            with open(f"/proc/{self._init_pid}/{kind}", "w") as file:
                file.write(mapping + "\n")
        self._control.send(b"M")
        self._expect(b"R")
        self._control.setblocking(False)
        self._shell = Shell(self._root.control, status_read, self._root.disk, self._guard, order.output_bytes)
        ended_s = time.monotonic()
        return Made(
            existed=False,
            namespaces=list(NAMESPACES),
            uid_map=mapping,
            limits=[*self._guard.active, f"disk={order.disk_mb}MB tmpfs", f"output={order.output_bytes}B"],
            warnings=["memory is only watched, a burst can overshoot"] if self._guard.watches_memory else [],
            phases={"root_s": round(laid_out_s - started_s, 6), "isolate_s": round(ended_s - laid_out_s, 6)},
        )

    def _expect(self, wanted: bytes) -> None:
        assert self._control is not None
        message = self._control.recv(_MESSAGE_BYTES)
        if message == wanted:
            return
        if message[:1] == b"E":
            number, _, step = message[1:].decode().partition(" ")
            raise StepFailed(step, int(number))
        raise StepFailed("starting the first process inside", errno.ECHILD)

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
        text = f"sandbox {self._name}: its processes are dead ({self._death}); seal it or kill it"
        return Failed("SandboxDied", [text, self._death])

    def _read_file(self, order: ReadFile) -> bytes | None:
        """Through the merged tree, in which only what the trial may write is mounted."""
        assert self._root is not None
        try:
            merged = os.open(self._root.merged, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fd = linux.open_beneath(merged, order.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
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

    def _seal(self, connection: _Connection, order: Seal) -> None:
        self._sealed = True
        self._stop_commands(Failed("SandboxSealed", [f"sandbox {self._name}: was sealed while commands ran"]))
        assert self._root is not None
        wanted = [tuple(os.fsencode(n) for n in path.split("/") if n) for path in order.paths]

        def keep(names: tuple[bytes, ...]) -> bool:
            return any(names[: len(path)] == path[: len(names)] for path in wanted)

        upper = os.open(self._root.upper, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            everything = () in wanted
            archive = archive_of_fd(
                upper, where=f"sandbox {self._name}", overlay=True, keep=None if everything else keep
            )
        except ArchiveError as error:
            self._answer(connection, Failed("ArchiveError", [str(error)]))
        else:
            self._answer(connection, Done(), archive)
        finally:
            os.close(upper)

    # --- commands ---

    def _start_next(self) -> None:
        if self._shell is None or self._running is not None or not self._queue or self._control is None:
            return
        self._running = self._queue.pop(0)
        self._shell.start(self._running.command, min(self._running.limit_s, self._command_s))
        self._tell_init()

    def _settle(self, result: CommandResult | None) -> None:
        if result is None or self._running is None:
            return
        key, self._running = self._running.key, None
        self._kill_since_s = None
        answer = Ran(*result)
        self._results[key] = answer
        for connection in [c for c in self._connections.values() if c.waits_for == key]:
            self._answer(connection, answer)

    def _hear_init(self) -> None:
        assert self._control is not None
        assert self._shell is not None
        try:
            message = self._control.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            message = b""
        if message:
            self._settle(self._shell.said_by_init(message))
            return
        # Init is dead and the namespace with it: the kernel ran out of memory inside, or someone outside did it.
        self._death = "memory" if self._shell.memory_was_exceeded() else "killed"
        self._stop_commands(self._died())

    def _tell_init(self) -> None:
        if self._shell is None or self._control is None:
            return
        while self._shell.to_init:
            message = self._shell.to_init.pop(0)
            if message == b"K":
                self._kill_since_s = time.monotonic()
            try:
                self._control.send(message)
            except OSError:  # it died; hearing of that is the loop's business
                return
        if self._kill_since_s is not None and time.monotonic() - self._kill_since_s > _KILL_PATIENCE_S:
            os.kill(self._init_pid, signal.SIGKILL)

    def _watch_memory(self) -> None:
        if self._guard is None or self._shell is None or not (self._guard.watches_memory and self._shell.busy):
            return
        if self._guard.memory_exceeded(self._init_pid):
            self._shell.kill_all("memory")

    def _stop_commands(self, answer: Failed) -> None:
        """End everything inside; the command in flight gets a result, those that wait get ``answer``."""
        self._kill_inside()
        if self._shell is not None:
            self._settle(self._shell.init_died())
        waiting = {run.key for run in self._queue}
        self._queue.clear()
        for connection in [c for c in self._connections.values() if c.waits_for in waiting]:
            self._answer(connection, answer)

    # --- the end ---

    def _kill_inside(self) -> None:
        """Every process inside is dead and reaped when this returns."""
        if self._init_pid:
            try:
                os.kill(self._init_pid, signal.SIGKILL)
                os.waitpid(self._init_pid, 0)  # returns only after the whole pid namespace is gone
            except (ProcessLookupError, ChildProcessError):
                pass
            self._init_pid = 0
        if self._control is not None:
            self._control.close()
            self._control = None

    def _end(self) -> None:
        """Leave nothing behind but this process."""
        self._kill_inside()
        with contextlib.suppress(StepFailed):  # nothing was mounted yet
            linux.unmount(f"{self._directory}/fs")
        if self._guard is not None:
            self._guard.remove()
        root = os.open(self._prepared.root_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        remove_tree(self._name, root)
        os.close(root)


def _lock_uids() -> tuple[socket.socket, int]:
    """A range of user ids that no other sandbox of this host has: the name of an abstract socket is the lock, so it ends
    with this process."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    start = os.getpid()
    for offset in range(_UID_RANGES):
        number = (start + offset) % _UID_RANGES
        try:
            lock.bind(f"\0t1actors-uids-{number}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise StepFailed("reserving user ids", error.errno or 0) from error
        else:
            return lock, _FIRST_UID + number * _UIDS
    raise StepFailed(f"reserving user ids: all {_UID_RANGES} ranges are taken", errno.EADDRINUSE)


def run_shim(prepared: Prepared, name: str, listener: socket.socket) -> NoReturn:
    """The life of one shim, in a freshly forked child of the fork server."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(f"{prepared.root_directory}/{name}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, fd)
    linux.close_all_but([listener.fileno()])
    linux.set_name("t1-shim")
    linux.forbid_inspection()
    try:
        Shim(prepared, name, listener).serve()
    finally:  # a fault of this program: into the log it goes, and nothing of the fork server's runs in this child
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        os._exit(70)
