"""Everything that makes up one sandbox, owned by its shim: built in one go, and taken apart without a rest.

Guarantees: after ``kill_inside`` every process inside is dead and reaped; after ``remove`` there is no process, mount,
control group or directory of the sandbox, however far ``build`` came. The shim's own process is not its matter.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import time
from typing import NamedTuple

from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.init import NAMESPACES, Inside, run_init, uid_map
from t1actors.sandbox.shim.limits import Controllers, Guard
from t1actors.sandbox.shim.linux import StepFailed
from t1actors.sandbox.shim.rootfs import HostFiles, LayerBytes, Root, make_root, plan_root
from t1actors.sandbox.shim.shell import Shell
from t1actors.sandbox.unpack import remove_tree
from t1actors.sandbox.wire import Create, Made

MESSAGE_BYTES = 4096
_FIRST_UID = 0x10000000
_UIDS = 65_536
_UID_RANGES = 8192
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


class Built(NamedTuple):
    """A sandbox that is ready. ``control`` speaks with init (``init``)."""

    made: Made
    root: Root
    guard: Guard
    shell: Shell
    control: socket.socket
    init_pid: int


class Sandbox:
    """One sandbox, from nothing to nothing."""

    def __init__(self, prepared: Prepared, name: str) -> None:
        self._prepared = prepared
        self._name = name
        self._directory = f"{prepared.root_directory}/{name}"
        self._guard: Guard | None = None
        self._init_pid = 0
        self._uid_lock: socket.socket | None = None

    def build(self, order: Create, data: bytes) -> Built:
        """
        Raises:
            StepFailed, OSError: what the host refused.
            ArchiveError: a layer's bytes.
        """
        started_s = time.monotonic()
        prepared = self._prepared
        layers: list[LayerBytes] = []
        at = 0
        for place, read_only, size_bytes in order.layers:
            layers.append(LayerBytes(place, read_only, data[at : at + size_bytes]))
            at += size_bytes
        self._uid_lock, first_uid = _lock_uids()
        guard = self._guard = Guard(
            prepared.controllers,
            prepared.group_prefix + self._name,
            memory_mb=order.memory_mb,
            processes=order.processes,
        )
        os.mkdir(f"{self._directory}/fs")
        root = plan_root(f"{self._directory}/fs", prepared.host_files, layers)
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        status_read, status_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(status_read, False)
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWPID, "mount and pid namespaces")
        inside = Inside(
            root=root,
            guard=guard,
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
        make_root(root, prepared.host_files, layers, uid=first_uid, workdir=order.workdir, disk_mb=order.disk_mb)
        laid_out_s = time.monotonic()
        _agree(control, b"G", b"U")
        mapping = uid_map(first_uid)
        for kind in ("uid_map", "gid_map"):
            with open(f"/proc/{self._init_pid}/{kind}", "w") as file:
                file.write(mapping + "\n")
        _agree(control, b"M", b"R")
        control.setblocking(False)
        shell = Shell(root.control, status_read, root.disk, guard, order.output_bytes)
        ended_s = time.monotonic()
        made = Made(
            existed=False,
            namespaces=list(NAMESPACES),
            uid_map=mapping,
            limits=[*guard.active, f"disk={order.disk_mb}MB tmpfs", f"output={order.output_bytes}B"],
            warnings=["memory is only watched, a burst can overshoot"] if guard.watches_memory else [],
            phases={"root_s": round(laid_out_s - started_s, 6), "isolate_s": round(ended_s - laid_out_s, 6)},
        )
        return Built(made, root, guard, shell, control, self._init_pid)

    def kill_inside(self) -> None:
        """Every process inside is dead and reaped when this returns."""
        if self._init_pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._init_pid, signal.SIGKILL)
                os.waitpid(self._init_pid, 0)  # returns only after the whole pid namespace is gone
            self._init_pid = 0

    def remove(self) -> None:
        """Leave nothing behind."""
        self.kill_inside()
        with contextlib.suppress(StepFailed):  # nothing was mounted yet
            linux.unmount(f"{self._directory}/fs")
        if self._guard is not None:
            self._guard.remove()
        root = os.open(self._prepared.root_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        remove_tree(self._name, root)
        os.close(root)


def _agree(control: socket.socket, say: bytes, expect: bytes) -> None:
    """Tell init to go on and wait for it. Raises the ``StepFailed`` that it reports."""
    with contextlib.suppress(BrokenPipeError):  # it failed already, and its report waits here
        control.send(say)
    message = control.recv(MESSAGE_BYTES)
    if message == expect:
        return
    if message[:1] == b"E":
        number, _, step = message[1:].decode().partition(" ")
        raise StepFailed(step, int(number))
    raise StepFailed("starting the first process inside", errno.ECHILD)


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
