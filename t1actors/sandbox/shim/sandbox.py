"""Everything that makes up one sandbox, owned by its shim: built in one go, and taken apart without a rest.

Guarantees: after ``kill_inside`` every process inside is dead and reaped; after ``remove`` there is no process, mount,
control group or directory of the sandbox, however far ``build`` came. The shim's own process is not its matter.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from typing import NamedTuple

from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.init import NAMESPACES, Inside, run_init
from t1actors.sandbox.shim.limits import Controllers, Guard, remove_group
from t1actors.sandbox.shim.linux import StepFailed
from t1actors.sandbox.shim.machine import REPORT_BYTES, Built
from t1actors.sandbox.shim.network import RESOLV_CONF, Network, find_tool, start_network
from t1actors.sandbox.shim.own_directory import is_anothers
from t1actors.sandbox.shim.rootfs import Base, HostFiles, Root, make_root, opaque_attribute, plan_root
from t1actors.sandbox.shim.shell import Shell
from t1actors.sandbox.shim.users import Users
from t1actors.sandbox.unpack import remove_tree
from t1actors.sandbox.wire import NO_NETWORK, Create, Made, split_layers

_WATCHED = "memory is only watched, a burst can overshoot"
HOST_ENVIRONMENT = {"LC_ALL": "C"}
"""An image has a locale of its own, or none."""
BASE_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
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
    users: Users


class Namespaces:
    """The ``Kind`` whose sandboxes are namespaces of our own."""

    def __init__(self, prepared: Prepared) -> None:
        self.root_directory = prepared.root_directory
        self._prepared = prepared

    def machine(self, name: str) -> Sandbox:
        return Sandbox(self._prepared, name)

    def clear(self, name: str) -> None:
        for controller in self._prepared.controllers:
            if controller is not None:
                with contextlib.suppress(OSError):  # still busy: the reaper removes it
                    remove_group(f"{controller.parent}/{self._prepared.group_prefix}{name}")


class Sandbox:
    """One sandbox, from nothing to nothing: a ``Machine``."""

    def __init__(self, prepared: Prepared, name: str) -> None:
        self._prepared = prepared
        self._name = name
        self._directory = f"{prepared.root_directory}/{name}"
        self._guard: Guard | None = None
        self._root: Root | None = None
        self._init_pid = 0
        self._network: Network | None = None

    @property
    def merged(self) -> str:
        assert self._root is not None
        return self._root.merged

    @property
    def upper(self) -> str:
        assert self._root is not None
        return self._root.upper

    def build(self, order: Create, data: bytes) -> Built:
        """
        Raises:
            StepFailed, OSError: what the host refused.
            ArchiveError: a layer's bytes.
            SandboxRefused: the layers are too large.
        """
        started_s = time.monotonic()
        prepared = self._prepared
        layers = split_layers(order, data)
        online = order.network != NO_NETWORK
        if online:
            find_tool()  # before anything is made
        users = prepared.users.claim()
        first_uid, privileged = users.ids.first, prepared.users.privileged
        guard = self._guard = Guard(
            prepared.controllers,
            prepared.group_prefix + self._name,
            memory_mb=order.memory_mb,
            processes=order.processes,
        )
        os.mkdir(f"{self._directory}/fs")
        base = Base(order.base_host, tuple(order.base_layers), tuple(order.base_holds))
        root = self._root = plan_root(f"{self._directory}/fs", prepared.host_files, layers, base, network=online)
        own_environment = HOST_ENVIRONMENT if base.host else {}
        their_orders, orders = os.pipe2(os.O_CLOEXEC)
        reports, their_reports = os.pipe2(os.O_CLOEXEC)
        status, their_status = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(status, False)
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWPID, "mount and pid namespaces")
        inside = Inside(
            root=root,
            guard=guard,
            users=users,
            memory_mb=order.memory_mb,
            workdir=order.workdir,
            environment={**BASE_ENVIRONMENT, **own_environment, **dict(order.environment)},
            filter_program=prepared.filter_program,
            orders_fd=their_orders,
            reports_fd=their_reports,
            status_fd=their_status,
        )
        # Forked as early as can be: what this process writes to its memory from here on is not copied twice, and the
        # two work side by side.
        self._init_pid = os.fork()
        if self._init_pid == 0:
            try:
                run_init(inside)
            finally:  # whatever happens, a child never goes on as a second shim
                os._exit(70)
        for fd in (their_orders, their_reports, their_status):
            os.close(fd)
        make_root(
            root,
            prepared.host_files,
            layers,
            uid=first_uid,
            workdir=order.workdir,
            disk_mb=order.disk_mb,
            resolv_conf=RESOLV_CONF if online else "",
            privileged=privileged,
        )
        laid_out_s = time.monotonic()
        agree(orders, reports, b"G\n", b"U\n")
        if online:
            self._network = start_network(self._init_pid, order.refused)
        for kind in ("uid_map", "gid_map"):
            linux.write_file(f"/proc/{self._init_pid}/{kind}", users.mapping + "\n")
        agree(orders, reports, b"M\n", b"R\n")
        os.set_blocking(reports, False)

        def disk_is_full() -> bool:
            disk = os.statvfs(root.disk)
            return disk.f_bavail == 0 or disk.f_favail == 0

        def exceeded() -> str:
            return "memory" if guard.memory_exceeded(self._init_pid) else ""

        shell = Shell(root.control, status, disk_is_full, guard.counters, order.output_bytes, first_uid)
        ended_s = time.monotonic()
        made = Made(
            existed=False,
            base=order.base,
            namespaces=list(NAMESPACES),
            uid_map=users.recorded,
            limits=[*guard.active, f"disk={order.disk_mb}MB tmpfs", f"output={order.output_bytes}B"],
            warnings=[*users.warnings, *([_WATCHED] if guard.watches_memory else [])],
            network=self._network.active if self._network else NO_NETWORK,
            phases={"root_s": round(laid_out_s - started_s, 6), "isolate_s": round(ended_s - laid_out_s, 6)},
        )
        return Built(
            made,
            first_uid,
            shell,
            orders,
            reports,
            self._init_pid,
            exceeded if guard.watches_memory else None,
            self._network.pid_fd if self._network else None,
            opaque_attribute(privileged=privileged),
        )

    def kill_inside(self) -> None:
        """Every process inside is dead and reaped when this returns."""
        if self._init_pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._init_pid, signal.SIGKILL)
                os.waitpid(self._init_pid, 0)  # returns only after the whole pid namespace is gone
            self._init_pid = 0
        if self._network is not None:
            self._network.stop()
            self._network = None

    def remove(self) -> None:
        """Leave nothing behind, but for what is another sandbox's by now."""
        self.kill_inside()
        with contextlib.suppress(StepFailed):  # nothing was mounted yet
            linux.unmount(f"{self._directory}/fs")
        if is_anothers(self._directory):
            return
        if self._guard is not None:
            self._guard.remove()
        root = os.open(self._prepared.root_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        remove_tree(self._name, root)
        os.close(root)


def agree(orders_fd: int, reports_fd: int, say: bytes, expect: bytes) -> None:
    """Tell init to go on and wait for it. Raises the ``StepFailed`` that it reports."""
    with contextlib.suppress(BrokenPipeError):  # it failed already, and its report waits here
        os.write(orders_fd, say)
    report = os.read(reports_fd, REPORT_BYTES)
    if report == expect:
        return
    if report[:1] == b"E":
        number, _, step = report[1:].decode().strip().partition(" ")
        raise StepFailed(step, int(number))
    raise StepFailed("starting the first process inside", errno.ECHILD)
