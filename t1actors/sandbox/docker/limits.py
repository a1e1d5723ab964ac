"""The limits of one container: memory and processes are Docker's control groups, the disk is watched.

Guarantees: counters come from the kernel's own files of the group (``oom_kill``; Docker's ``OOMKilled`` stays false when
a process other than the first was killed), and keep their last value when the group is gone; the disk is what the
container's upper layer takes up, counted no further than a little beyond the limit.

Docker has no disk limit on most file systems, so a burst can overshoot: everything inside is killed at the second
look in a row that finds it full. So a command that begins with a full disk has a moment to make room.
"""

from __future__ import annotations

import contextlib
import os
import time

from t1actors.sandbox.archive import OPEN_DIRECTORY
from t1actors.sandbox.shim.limits import WATCHDOG_PERIOD_S, Counters, counter, hierarchies

_BLOCK_BYTES = 512
_LONGEST_PATH = 3000
_IDLE_PARTS = 10
"""A look that took long is followed by a rest this many times as long."""


class ContainerLimits:
    """Of the container whose first process is ``pid``."""

    def __init__(self, pid: int, upper: str, disk_mb: int) -> None:
        """Raises ``OSError`` when the process is gone."""
        self._upper = upper
        self._disk_mb = disk_mb
        self._last = Counters(0, 0)
        self._next_look_s = 0.0
        self._times_full = 0
        self.groups: list[str] = []
        """The directories of the control groups that a process has to be put into."""
        self.version = 2
        self.processes_group = ""
        self._memory_events = self._pids_events = -1
        for tree in hierarchies(str(pid)):
            if not os.path.exists(f"{tree.directory}/cgroup.procs") or tree.directory == tree.mount_point:
                continue
            self.groups.append(tree.directory)
            for name in ("memory", "pids"):
                if name in tree.controllers:
                    self.version = 1
                    self._watch(name, tree.directory, "oom_control")
                elif tree.version == 2 and os.path.exists(f"{tree.directory}/{name}.events"):
                    self._watch(name, tree.directory, "events")

    def _watch(self, name: str, group: str, memory_file: str) -> None:
        if name == "memory":
            self._memory_events = _open(f"{group}/memory.{memory_file}")
        else:
            self._pids_events = _open(f"{group}/pids.events")
            self.processes_group = group

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(fd for fd in (self._memory_events, self._pids_events) if fd >= 0)

    def counters(self) -> Counters:
        """How often each limit has bitten so far."""
        with contextlib.suppress(OSError):  # the group goes with the container
            memory = counter(self._memory_events, b"oom_kill ")
            self._last = Counters(memory, counter(self._pids_events, b"max "))
        return self._last

    def processes(self) -> set[int]:
        """All that lives inside, as the host numbers it."""
        try:
            with open(f"{self.processes_group}/cgroup.procs") as file:
                return set(map(int, file.read().split()))
        except OSError:
            return set()

    def disk_is_full(self) -> bool:
        """Whether what was written takes up all of the limit, or more entries than it has room for."""
        return takes_up(self._upper, self._disk_mb)

    def exceeded(self) -> str:
        """Names the limit that the watchdog found exceeded twice in a row; looks at most once a period."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return ""
        if now_s > self._next_look_s + WATCHDOG_PERIOD_S:  # nobody asked for a while: another command
            self._times_full = 0
        self._times_full = self._times_full + 1 if self.disk_is_full() else 0
        looked_s = time.monotonic() - now_s
        self._next_look_s = now_s + max(WATCHDOG_PERIOD_S, _IDLE_PARTS * looked_s)
        return "disk" if self._times_full > 1 else ""


def takes_up(upper: str, disk_mb: int) -> bool:
    """Whether a tree takes up a disk of this size, or more entries than it has room for: as many as the namespaces' tmpfs."""
    bases = [os.open(upper, OPEN_DIRECTORY)]
    try:
        return _takes_up(bases, disk_mb << 20, max(2048, disk_mb * 256))
    finally:
        for fd in bases:
            os.close(fd)


def _takes_up(bases: list[int], most_bytes: int, most_entries: int) -> bool:
    """Adds to ``bases`` the directories it opened on the way, for no path may be longer than the kernel takes."""
    used = entries = 0
    waiting = [(bases[0], ".")]
    while waiting:
        base, path = waiting.pop()
        try:
            fd = os.open(path, OPEN_DIRECTORY, dir_fd=base)
        except OSError:  # it changes while it is looked at
            continue
        if len(path) > _LONGEST_PATH:
            bases.append(fd)
            base, path = fd, "."
        with os.scandir(fd) as found:
            for entry in found:
                entries += 1
                with contextlib.suppress(FileNotFoundError):
                    used += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((base, f"{path}/{entry.name}"))
                if used >= most_bytes or entries >= most_entries:
                    break
        if fd != base:
            os.close(fd)
        if used >= most_bytes or entries >= most_entries:
            return True
    return False


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
