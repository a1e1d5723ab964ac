"""Finds by name what is left of the sandboxes of one directory, and removes what nobody owns.

What a sandbox consists of carries the name of its directory: the log that its shim and its network hold open, the mounts, the
control groups. Normally nothing is left: a dead shim takes its processes and mounts along, and leaves an empty directory and
empty groups. The rest is for what nobody planned: a run's directory that was deleted under living sandboxes, say.

Guarantees: a sandbox that lives is never touched, nor looked at in a way that renews its lease. It lives when a shim is
found that holds its log, or when its socket answers; one whose directory was deleted can be reached by nobody, so no
lease of it can be renewed, and it does not count. What is being made or taken apart is left alone: such shims must be
found twice. Nothing of another directory is touched, nor what is no sandbox. Works where the directory is gone. Root may
reap anybody's, an ordinary user its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from t1actors.sandbox.interface import Leftover, LeftoverKind
from t1actors.sandbox.shim.limits import remove_group
from t1actors.sandbox.shim.linux import StepFailed, unmount
from t1actors.sandbox.shim.network import TOOL
from t1actors.sandbox.unpack import remove_tree
from t1actors.sandbox.wire import group_prefix

_SECOND_LOOK_S = 1.0
_PATIENCE_S = 10.0
_PARTS = {"sock", "log", "fs", "control", "merged"}
_DELETED = " (deleted)"
_SHIM = "t1-shim"


class _Logger(NamedTuple):
    """A process that holds a sandbox's log. ``name`` is that of its directory, which may have been ``deleted``."""

    pid: int
    name: str
    deleted: bool


def holds_sandboxes(root: Path) -> bool:
    """Whether the directory can be one of sandboxes: nothing else is in it."""
    try:
        parts = [set(_listed(root / name)) for name in os.listdir(root)]
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    return all(found <= _PARTS for found in parts) and (not parts or any(parts))


def made_by_docker(root: Path) -> bool:
    """Whether something in the directory is left of a container's sandbox; the containers themselves only a daemon knows."""
    return any((root / name / "control" / "alive").exists() for name in _listed(root))


def reap(root: Path, *, dry_run: bool = False) -> list[Leftover]:
    """What was found, with what became of it. ``root`` is the backend's directory, named as the backend was given it.

    Raises:
        PermissionError: the directory is another user's, whose shims only root can see.
    """
    if os.geteuid() != 0 and root.exists() and root.stat().st_uid != os.geteuid():
        raise PermissionError(
            errno.EPERM, "another user's sandboxes can only be looked after by that user or root", str(root)
        )
    reaper = _Reaper(root.absolute(), dry_run=dry_run)
    return [*reaper.shims(), *reaper.networks(), *reaper.mounts(), *reaper.directories(), *reaper.groups()]


def sandbox_mounts(root: str, mountinfo: str) -> list[tuple[str, str]]:
    """(directory name, mount point) of what is mounted at ROOT/NAME/fs or below, and nowhere else; innermost first."""
    found: list[tuple[str, str]] = []
    for line in mountinfo.splitlines():
        point = line.split(" ")[4].encode().decode("unicode_escape")
        if point.startswith(f"{root}/"):
            name, *below = point[len(root) + 1 :].split("/")
            if below[:1] == ["fs"]:
                found.append((name, point))
    return sorted(found, key=lambda mount: mount[1], reverse=True)


class _Reaper:
    def __init__(self, root: Path, *, dry_run: bool) -> None:
        self._root = root
        self._resolved = os.path.realpath(root)
        self._prefix = group_prefix(str(root))
        self._dry_run = dry_run

    def shims(self) -> Iterator[Leftover]:
        """Shims that nobody can reach: their directory is gone, or another sandbox's by now."""
        unreachable = self._unreachable()
        if unreachable:
            time.sleep(_SECOND_LOOK_S)  # one that is just ending is gone by then
            unreachable &= self._unreachable()
        for shim in sorted(unreachable):
            trouble = "" if self._dry_run else _end(shim.pid, _SHIM)
            yield Leftover(kind="process", name=f"shim {shim.pid} of {shim.name}", trouble=trouble)

    def networks(self) -> Iterator[Leftover]:
        """What gave sandboxes a network, and was not started by a shim that lives."""
        for found in list(self._loggers(TOOL)):
            if _name_of_process(_parent(found.pid)) != _SHIM:
                trouble = "" if self._dry_run else _end(found.pid, TOOL)
                yield Leftover(kind="process", name=f"{TOOL} {found.pid} of {found.name}", trouble=trouble)

    def mounts(self) -> Iterator[Leftover]:
        """Mounts of dead sandboxes that this process can see: a living one's cannot be seen from outside it."""
        alive = {shim.name for shim in self._shims()}
        for name, point in sandbox_mounts(self._resolved, Path("/proc/self/mountinfo").read_text()):
            if name not in alive:
                yield self._removed("mount", point, unmount)

    def directories(self) -> Iterator[Leftover]:
        """Those of dead shims, with their control groups, and those that a dead fork server was just making."""
        alive = {shim.name for shim in self._shims()}  # also one that is just taking it apart
        for name in sorted(_listed(self._root)):
            path = self._root / name
            if not _is_sandbox(path):
                continue
            if name.startswith("."):
                maker = name.rpartition("-")[2]
                if maker.isdigit() and _name_of_process(int(maker)) == "t1-forkserver":
                    continue
            elif name in alive or answers(path):
                continue
            yield from (self._removed("control group", group, _end_group) for group in _groups(self._prefix, name))
            yield self._removed("directory", str(path), _remove_tree)

    def groups(self) -> Iterator[Leftover]:
        """Control groups without a directory: a sandbox has its directory longer than its groups."""
        for group in _groups(self._prefix):
            name = os.path.basename(group).removeprefix(self._prefix)
            probe = name.removeprefix(".probe-")
            making = probe != name and probe.isdigit() and _name_of_process(int(probe)) == "t1-forkserver"
            if not making and not (self._root / name).exists() and os.path.isdir(group):
                yield self._removed("control group", group, _end_group)

    def _removed(self, kind: LeftoverKind, name: str, remove: Callable[[str], None]) -> Leftover:
        trouble = ""
        if not self._dry_run:
            try:
                remove(name)
            except (OSError, StepFailed) as error:
                trouble = str(error)
        return Leftover(kind=kind, name=name, trouble=trouble)

    def _shims(self) -> Iterator[_Logger]:
        return self._loggers(_SHIM)

    def _loggers(self, called: str) -> Iterator[_Logger]:
        for pid in _processes():
            if _name_of_process(pid) != called:
                continue
            with contextlib.suppress(OSError):
                log = os.readlink(f"/proc/{pid}/fd/1")
                directory, _, last = log.removesuffix(_DELETED).rpartition("/")
                parent, _, name = directory.rpartition("/")
                if parent == self._resolved and last == "log":
                    yield _Logger(pid, name, log.endswith(_DELETED))

    def _unreachable(self) -> set[_Logger]:
        shims = list(self._shims())
        reachable = {shim.name for shim in shims if not shim.deleted}
        return {s for s in shims if s.deleted and (s.name in reachable or not answers(self._root / s.name))}


def _end(pid: int, called: str) -> str:
    """Kill the process of that name, and with a shim all that is inside; why it is still there, if it is. It is not asked
    first: one that hangs would not hear it."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return ""
    try:
        if _name_of_process(pid) == called:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            if not select.select([process], [], [], _PATIENCE_S)[0]:
                return f"killed, and still there: /proc/{pid}/stack says what it waits for"
        return ""
    finally:
        os.close(process)


def _is_sandbox(path: Path) -> bool:
    """Whether nothing but a sandbox's parts is in the directory; what else somebody put there is not ours."""
    try:
        return not path.is_symlink() and set(os.listdir(path)) <= _PARTS and not any(_listed(path / "fs"))
    except (FileNotFoundError, NotADirectoryError):
        return False


def answers(directory: Path) -> bool:
    """Whether a sandbox listens there: a directory, by way of whose descriptor the address is short enough."""
    try:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(f"/proc/self/fd/{fd}/sock")
            return True
    except OSError:
        return False
    finally:
        os.close(fd)


def _remove_tree(path: str) -> None:
    parent, _, name = path.rpartition("/")
    fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):  # somebody else removes it, too
            remove_tree(name, fd)
    finally:
        os.close(fd)


def _end_group(group: str) -> None:
    """Kill who is in it, and remove it."""
    with contextlib.suppress(FileNotFoundError):
        for pid in Path(group, "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    remove_group(group)
    if os.path.isdir(group):
        raise OSError(errno.EBUSY, "processes in it do not end", group)


def _groups(prefix: str, name: str | None = None) -> list[str]:
    """Control groups whose name begins so (and ends with ``name``), in every hierarchy that is mounted here."""
    found: set[str] = set()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.split(" ", 1)[0] in ("cgroup", "cgroup2"):
            for directory, below, _ in os.walk(left.split(" ")[4]):
                found |= {
                    f"{directory}/{n}" for n in below if n.startswith(prefix) and name in (None, n[len(prefix) :])
                }
    return sorted(found)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _name_of_process(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _listed(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
