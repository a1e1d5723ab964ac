"""Memory and process limits of one sandbox: control groups where this host lets us make them, else rlimits and a
watchdog.

Guarantees: ``active`` says what really holds, controller by controller; counters tell which limit has bitten since they
were last read; ``remove`` leaves no group behind. Versions 1 and 2 of control groups, and hosts that mix them, are found
by looking at what is mounted. The disk limit is the size of the sandbox's tmpfs (``rootfs``).

The fallback is weaker, and ``active`` says so: the watchdog looks at anonymous memory a few times a second, so a burst
can overshoot it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import time
from typing import NamedTuple

from t1actors.sandbox.shim.linux import StepFailed, write_file

WATCHDOG_PERIOD_S = 0.25
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Controller(NamedTuple):
    """A directory under which groups with this controller can be made."""

    parent: str
    version: int


class Controllers(NamedTuple):
    """None where this host does not let us make groups with that controller."""

    memory: Controller | None
    pids: Controller | None


def find_controllers(probe_name: str) -> Controllers:
    """What works here, found by making and removing a group called ``probe_name``."""
    return Controllers(_find("memory", probe_name), _find("pids", probe_name))


class Hierarchy(NamedTuple):
    """A mounted tree of groups: ``directory`` is the group of the process asked about. Version 2 has no ``controllers``
    here."""

    version: int
    controllers: tuple[str, ...]
    mount_point: str
    directory: str


def hierarchies(pid: str = "self") -> list[Hierarchy]:
    """Every tree of groups, with the group that ``pid`` is in. Raises ``OSError`` if there is no such process."""
    own: dict[str, str] = {}
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            own[controller] = path
    found: list[Hierarchy] = []
    for line in _read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        root, mount_point = left.split(" ")[3:5]
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup":
            names = tuple(name for name in options.split(",") if name in own)
            directory = _below(mount_point, root, own[names[0]] if names else "/")
            found.append(Hierarchy(1, names, mount_point, directory))
        elif kind == "cgroup2":
            found.append(Hierarchy(2, (), mount_point, _below(mount_point, root, own.get("", "/"))))
    return found


def _find(name: str, probe_name: str) -> Controller | None:
    for tree in hierarchies():
        if name in tree.controllers:
            if _works(f"{tree.directory}/{probe_name}", name, version=1):
                return Controller(tree.directory, 1)
        elif tree.version == 2:
            # A version 2 group with processes of its own can't have limited children, so the nearest ancestor that can
            # is taken.
            parent = tree.directory
            while len(parent) >= len(tree.mount_point):
                with contextlib.suppress(OSError):
                    write_file(f"{parent}/cgroup.subtree_control", f"+{name}")
                if _works(f"{parent}/{probe_name}", name, version=2):
                    return Controller(parent, 2)
                parent = os.path.dirname(parent)
    return None


def _below(mount_point: str, root: str, own: str) -> str:
    """Where the own group is, if it can be seen from here; else the top of what can."""
    inside = own[len(root) :] if root != "/" and own.startswith(root) else own
    directory = f"{mount_point}/{inside.strip('/')}".rstrip("/")
    return directory if os.path.isdir(directory) else mount_point


def _works(group: str, name: str, *, version: int) -> bool:
    limit_file = {"memory": "memory.limit_in_bytes" if version == 1 else "memory.max", "pids": "pids.max"}[name]
    try:
        os.mkdir(group)
        files = [f"{group}/{limit_file}", f"{group}/cgroup.procs"]
        if version == 2:  # to move a process into a group takes the right to move it within the one above
            files.append(f"{os.path.dirname(group)}/cgroup.procs")
        writable = all(os.access(file, os.W_OK) for file in files)
        os.rmdir(group)
    except OSError:
        return False
    return writable


class Counters(NamedTuple):
    """How often a limit has bitten so far."""

    memory: int
    processes: int


class Guard:
    """The limits of one sandbox. Made by the shim, outside; ``enter`` and ``limit_processes`` are
    called by the first process inside."""

    def __init__(self, controllers: Controllers, name: str, *, memory_mb: int, processes: int) -> None:
        self._memory_mb = memory_mb
        self._processes = processes
        self._groups: list[str] = []
        self._memory_events = -1
        self._pids_events = -1
        self.watches_memory = controllers.memory is None
        active: list[str] = []
        memory, pids = controllers
        try:
            if memory is not None:
                group = self._make(memory, name)
                limit = str(memory_mb << 20)
                if memory.version == 1:
                    write_file(f"{group}/memory.limit_in_bytes", limit)
                    self._memory_events = _open(f"{group}/memory.oom_control")
                else:
                    write_file(f"{group}/memory.max", limit)
                    if os.path.exists(f"{group}/memory.swap.max"):
                        write_file(f"{group}/memory.swap.max", "0")
                    self._memory_events = _open(f"{group}/memory.events")
                active.append(f"memory={memory_mb}MB cgroup-v{memory.version}")
            else:
                active.append(f"memory={memory_mb}MB watchdog")
            if pids is not None:
                group = self._make(pids, name)
                write_file(f"{group}/pids.max", str(processes + 1))  # one more for the sandbox's init
                self._pids_events = _open(f"{group}/pids.events")
                active.append(f"processes={processes} cgroup-v{pids.version}")
            else:
                active.append(f"processes={processes} rlimit")
        except OSError as error:
            self.remove()
            raise StepFailed(f"making control group {name}", error.errno or 0) from error
        self._limits_processes_itself = pids is not None
        self.active = tuple(active)

    def _make(self, controller: Controller, name: str) -> str:
        group = f"{controller.parent}/{name}"
        if group not in self._groups:
            with contextlib.suppress(FileExistsError):
                os.mkdir(group)
            self._groups.append(group)
        return group

    def enter(self) -> None:
        """Put the calling process, and all it will start, under the limits. Before it gives up root."""
        for group in self._groups:
            write_file(f"{group}/cgroup.procs", "0")

    def limit_processes(self) -> None:
        """Where no group does it. Set by a user that nobody else on the host is, it is also the limit of the user namespace
        made next, so it holds over all users inside together; set there, over each of them."""
        if not self._limits_processes_itself:
            resource.setrlimit(resource.RLIMIT_NPROC, (self._processes + 1, self._processes + 1))

    def counters(self) -> Counters:
        """How often each limit has bitten so far."""
        return Counters(counter(self._memory_events, b"oom_kill "), counter(self._pids_events, b"max "))

    def memory_exceeded(self, init_pid: int) -> bool:
        """For the watchdog: whether the anonymous memory of all processes inside is above the limit."""
        total = 0
        pending = [init_pid]
        while pending:
            pid = pending.pop()
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    pending += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
                _, resident, shared = map(int, _read(f"/proc/{pid}/statm").split()[:3])
                if pid != init_pid:
                    total += (resident - shared) * _PAGE_BYTES
        return total > self._memory_mb << 20

    def remove(self) -> None:
        """Remove the groups; every process that was in them must be dead."""
        for fd in (self._memory_events, self._pids_events):
            if fd >= 0:
                os.close(fd)
        self._memory_events = self._pids_events = -1
        while self._groups:
            remove_group(self._groups.pop())


def remove_group(group: str) -> None:
    """Fine if it is not there. A group stays busy for a moment after its last process was reaped."""
    for _ in range(200):
        try:
            os.rmdir(group)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            time.sleep(0.002)
        else:
            return


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def counter(fd: int, label: bytes) -> int:
    """The number behind ``label`` in an open file of a group; 0 if there is none."""
    if fd < 0:
        return 0
    for line in os.pread(fd, 4096, 0).splitlines():
        if line.startswith(label):
            return int(line[len(label) :])
    return 0
