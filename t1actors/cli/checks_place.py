"""Checks of the place where runs are kept: can it be written, how much fits, and does its file system do what a log needs.

Whatever can be tried is tried, in a directory that is removed again: permissions and mount options say less than a write.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from t1actors.cli.checks import Check
from t1actors.observe.quantities import size

RUN_BYTES = 2 * 10**9
"""A demonstration run writes less than half of this."""
RUN_FILES = 20_000
SLOW_FLUSH_S = 0.1
WATCHERS = 16
"""Every actor, the supervisor and the display hold one inotify instance."""
WATCHES = 1024
OVER_A_NETWORK = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs", "virtiofs",
    "vboxsf", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs", "fuse.glusterfs", "fuse.vmhgfs-fuse",
})  # fmt: skip
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
ELSEWHERE = "choose another place with --dir"


def of_the_place(directory: Path) -> list[Check]:
    """``directory`` need not exist: what it would be made in is looked at."""
    place = nearest_directory(directory)
    if any(above.exists() and not above.is_dir() for above in (directory, *directory.parents)):
        return [
            Check("disk", "bad", f"{directory} is no directory, or lies below what is none", ELSEWHERE),
            _watchers(),
        ]
    checks = [_disk(place)]
    if checks[0].verdict != "bad":
        checks += [_file_system(place), _features(place)]
    return [*checks, _watchers()]


def nearest_directory(directory: Path) -> Path:
    """It, or what is nearest above it."""
    absolute = directory.absolute()
    return next(place for place in (absolute, *absolute.parents) if place.is_dir())


def _disk(place: Path) -> Check:
    if place.resolve().is_relative_to("/usr"):
        return Check("disk", "bad", f"{place} lies under /usr, which every sandbox can read", ELSEWHERE)
    try:
        with tempfile.TemporaryDirectory(prefix=".t1-check-", dir=place) as scratch:
            (Path(scratch) / "written").write_bytes(b"x" * 4096)
    except OSError as error:
        return Check("disk", "bad", f"{place} cannot be written ({error.strerror})", ELSEWHERE)
    free = shutil.disk_usage(place).free
    if free < RUN_BYTES:
        fix = f"a run needs {size(RUN_BYTES)}: free some, or {ELSEWHERE}"
        return Check("disk", "bad", f"{size(free)} free in {place}", fix)
    found = os.statvfs(place)
    if found.f_files > 0 and found.f_favail < RUN_FILES:
        fix = f"a run needs room for {RUN_FILES:,} files: remove some, or {ELSEWHERE}"
        return Check("disk", "bad", f"room for {found.f_favail:,} more files in {place}", fix)
    return Check("disk", "good", f"{size(free)} free in {place}")


def _file_system(place: Path) -> Check:
    kind = kind_of_file_system(place)
    if kind in OVER_A_NETWORK:
        fix = f"journals need its locks and news of its changes: a local disk is safer and faster; {ELSEWHERE}"
        return Check("file system", "warning", f"{kind}, shared with other machines", fix)
    if kind in IN_MEMORY:
        return Check("file system", "warning", f"{kind}: runs use up memory and are gone with the next boot", ELSEWHERE)
    return Check("file system", "good", kind)


def kind_of_file_system(place: Path) -> str:
    """Its name as the kernel says it; "unknown" when no mount names the device."""
    device = place.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    best, kind = "", "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        mounted_at = fields[4].encode().decode("unicode_escape", errors="replace")
        on_the_way = place.is_relative_to(mounted_at)
        if (fields[2] == wanted or on_the_way) and len(mounted_at) >= len(best) and on_the_way:
            best, kind = mounted_at, right.split(" ")[0]
    return kind


def _features(place: Path) -> Check:
    """Locks, links, renames and flushes, each tried."""
    with tempfile.TemporaryDirectory(prefix=".t1-check-", dir=place) as scratch:
        folder = Path(scratch)
        steps: tuple[tuple[str, Callable[[Path], None]], ...] = (
            ("locks", _lock),
            ("symbolic links", _link),
            ("renames", _rename),
        )
        (folder / "file").write_bytes(b"x" * 4096)
        for name, step in steps:
            try:
                step(folder)
            except OSError as error:
                return Check("log", "bad", f"{name} do not work in {place} ({error.strerror})", ELSEWHERE)
        started_s = time.monotonic()
        with open(folder / "flushed", "wb") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
        flush_s = time.monotonic() - started_s
    found = f"locks, links and renames work; a flush took {flush_s * 1000:.1f} ms"
    if flush_s > SLOW_FLUSH_S:
        return Check("log", "warning", found, 'with run.log_durability="machine" a run waits for many of those')
    return Check("log", "good", found)


def _lock(folder: Path) -> None:
    with open(folder / "file") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _link(folder: Path) -> None:
    (folder / "link").symlink_to("file")


def _rename(folder: Path) -> None:
    (folder / "link").replace(folder / "renamed")


def _watchers() -> Check:
    """The limits count for a user, and other programs use them too: so as many as a run needs are made."""
    libc = ctypes.CDLL(None, use_errno=True)
    made: list[int] = []
    try:
        while len(made) < WATCHERS:
            descriptor = libc.inotify_init1(os.O_CLOEXEC)
            if descriptor < 0:
                found = f"only {len(made)} of {WATCHERS} can be made ({os.strerror(ctypes.get_errno())})"
                fix = "sysctl -w fs.inotify.max_user_instances=512 (and look at `ulimit -n`)"
                return Check("inotify", "bad", found, fix)
            made.append(descriptor)
    finally:
        for descriptor in made:
            os.close(descriptor)
    watches = _limit("max_user_watches")
    found = f"{_limit('max_user_instances'):,} instances and {watches:,} watches a user"
    if watches < WATCHES:
        return Check("inotify", "warning", found, f"sysctl -w fs.inotify.max_user_watches={64 * WATCHES}")
    return Check("inotify", "good", found)


def _limit(name: str) -> int:
    path = Path("/proc/sys/fs/inotify") / name
    return int(path.read_text()) if path.exists() else 0
