"""Trees as image layers: the tar that Docker and OCI images are made of, whiteouts included.

Guarantees: entries come in byte order, a directory before what it holds, with numeric owners and whole seconds, so that
equal trees give equal bytes; a link is stored, never followed; nothing recurses; a file that claims more than the caller
allows is refused by name. ``images.layer`` lays such a tar out.

Left out: extended attributes, devices, sockets.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from t1actors.sandbox.archive import OPAQUE_ATTRIBUTE, OPEN_DIRECTORY, move
from t1actors.sandbox.errors import ArchiveError, SandboxRefused

WHITEOUT_PREFIX = ".wh."
OPAQUE_MARK = ".wh..wh..opq"
_IDS = 65_536


class Entry(NamedTuple):
    """One entry of a tree: the names from the tree's root down, and the open directory that holds the last of them."""

    names: tuple[bytes, ...]
    status: os.stat_result
    parent_fd: int


def walk_tree(directory_fd: int, enter: Callable[[tuple[bytes, ...]], bool] | None = None) -> Iterator[Entry]:
    """Every entry below the open directory, in order, each directory before what it holds. ``enter`` says of a directory's
    names whether to go into it. The tree must be at rest."""
    current = os.open(".", OPEN_DIRECTORY, dir_fd=directory_fd)
    try:
        pending = [_names(current)]
        path: list[bytes] = []
        while pending:
            if not pending[-1]:
                pending.pop()
                if pending:
                    path.pop()
                    current = move(current, "..")
                continue
            name = pending[-1].pop()
            status = os.stat(name, dir_fd=current, follow_symlinks=False)
            names = (*path, name)
            yield Entry(names, status, current)
            if stat.S_ISDIR(status.st_mode) and (enter is None or enter(names)):
                current = move(current, name)
                path.append(name)
                pending.append(_names(current))
    finally:
        os.close(current)


def _names(fd: int) -> list[bytes]:
    return sorted(map(os.fsencode, os.listdir(fd)), reverse=True)


class LayerWriter:
    """Writes one layer. ``max_bytes`` bounds the sum of what its files claim. Close it to end the tar."""

    def __init__(self, file: IO[bytes], *, max_bytes: int) -> None:
        self._tar = tarfile.open(  # noqa: SIM115  # closed by ``close``
            fileobj=file, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape"
        )
        self._max_bytes = max_bytes
        self._left_bytes = max_bytes
        self._links: dict[tuple[int, int], str] = {}

    def add(self, entry: Entry, name: str, *, uid: int, gid: int, mode: int, mtime_s: int) -> None:
        """The file, directory, link or pipe of ``entry`` under ``name``; other kinds are left out."""
        status = entry.status
        info = tarfile.TarInfo(name)
        info.uid, info.gid, info.mode, info.mtime = uid, gid, mode, mtime_s
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(status.st_mode):
            info.type = tarfile.SYMTYPE
            info.linkname = os.fsdecode(os.readlink(entry.names[-1], dir_fd=entry.parent_fd))
        elif stat.S_ISFIFO(status.st_mode):
            info.type = tarfile.FIFOTYPE
        elif stat.S_ISREG(status.st_mode):
            self._add_file(entry, info)
            return
        else:
            return
        self._tar.addfile(info)

    def _add_file(self, entry: Entry, info: tarfile.TarInfo) -> None:
        status = entry.status
        if status.st_nlink > 1:
            first = self._links.setdefault((status.st_dev, status.st_ino), info.name)
            if first != info.name:
                info.type, info.linkname = tarfile.LNKTYPE, first
                self._tar.addfile(info)
                return
        info.size = status.st_size
        self._left_bytes -= info.size
        if self._left_bytes < 0:
            raise SandboxRefused(
                f"/{info.name}: with this file of {info.size:,} bytes the layer exceeds {self._max_bytes:,}"
            )
        fd = os.open(
            entry.names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=entry.parent_fd
        )
        with open(fd, "rb") as file:
            self._tar.addfile(info, file)

    def directory(self, name: str, *, uid: int = 0, gid: int = 0, mode: int = 0o755, mtime_s: int) -> None:
        """A directory that need not be anywhere yet."""
        info = tarfile.TarInfo(name)
        info.type, info.uid, info.gid, info.mode, info.mtime = tarfile.DIRTYPE, uid, gid, mode, mtime_s
        self._tar.addfile(info)

    def file(self, name: str, data: bytes = b"", *, mode: int = 0o644, mtime_s: int = 0) -> None:
        """A file of root's, or an empty one that marks a whiteout."""
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = len(data), mode, mtime_s
        self._tar.addfile(info, io.BytesIO(data))

    def close(self) -> None:
        """End the tar; the file stays open."""
        self._tar.close()


def commit_tree(upper: str, file: str, *, first_uid: int, max_bytes: int) -> None:
    """Write an overlay's upper layer, whose root's user is ``first_uid``, into the new ``file``.

    Raises:
        SandboxRefused: its files claim more than ``max_bytes``.
        ArchiveError: it cannot be read.
        OSError: the file cannot be written.
    """
    directory = os.open(upper, OPEN_DIRECTORY)
    try:
        with open(file, "xb") as out:
            writer = LayerWriter(out, max_bytes=max_bytes)
            for entry in walk_tree(directory):
                _commit_entry(writer, entry, first_uid)
            writer.close()
    finally:
        os.close(directory)


def _commit_entry(writer: LayerWriter, entry: Entry, first_uid: int) -> None:
    status = entry.status
    *parents, last = map(os.fsdecode, entry.names)
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        writer.file("/".join([*parents, f"{WHITEOUT_PREFIX}{last}"]))
        return
    if last.startswith(WHITEOUT_PREFIX):
        raise ArchiveError(
            f"/{'/'.join([*parents, last])}: no image can hold a name that begins with {WHITEOUT_PREFIX}"
        )
    uid, gid = status.st_uid - first_uid, status.st_gid - first_uid
    name = "/".join([*parents, last])
    if not (0 <= uid < _IDS and 0 <= gid < _IDS):
        raise ArchiveError(f"/{name}: belongs to nobody of the sandbox")
    mtime_s = max(0, int(status.st_mtime))
    writer.add(entry, name, uid=uid, gid=gid, mode=stat.S_IMODE(status.st_mode), mtime_s=mtime_s)
    if stat.S_ISDIR(status.st_mode) and _is_opaque(entry):
        writer.file(f"{name}/{OPAQUE_MARK}")


def _is_opaque(entry: Entry) -> bool:
    fd = os.open(entry.names[-1], OPEN_DIRECTORY, dir_fd=entry.parent_fd)
    try:
        return os.getxattr(fd, OPAQUE_ATTRIBUTE) == b"y"
    except OSError:  # no such attribute
        return False
    finally:
        os.close(fd)
