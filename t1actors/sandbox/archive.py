"""The canonical archive of a directory tree: one tree, one sequence of bytes, so a digest of it means something.

Format (little endian): ``T1AR1\\n``, then one record per entry, depth first, names in byte order within a directory:

    kind u8, mode u16, name length u16, name
    D  directory; its children follow, then an E record. The first record is the root: a D with an empty name
    O  a directory that hides what lies below it in an overlay; otherwise like D
    E  end of the directory (mode 0, empty name)
    F  file: size u64, extent count u32, then per extent offset u64, length u64, bytes
    L  symbolic link: target length u32, target
    W  whiteout: the name was deleted from the layer below

Kept: names (any bytes), permission bits, contents, links. Left out: owners, times, extended attributes, hard-link
identity (each name gets a copy), sockets, pipes and devices. A file's extents are its maximal runs of 4 KiB blocks
that are not all zero, so how sparsely it was written does not matter, and a file that claims a petabyte of holes costs
nothing.

Guarantees: equal trees give equal bytes; nothing recurses (a tree 3,000 deep is fine) and no path is ever joined;
reading a tree never follows a link; ``walk`` gives only well-formed records and raises ``ArchiveError`` for the rest.
``t1actors.sandbox.unpack`` lays an archive out. Only the standard library is used, for the shim runs this too.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Union

from t1actors.sandbox.errors import ArchiveError

if TYPE_CHECKING:
    from pathlib import Path  # not at run time: every shim would carry it

MAGIC = b"T1AR1\n"
BLOCK_BYTES = 4096

_HEAD = struct.Struct("<BHH")
_FILE = struct.Struct("<QI")
_EXTENT = struct.Struct("<QQ")
_TARGET = struct.Struct("<I")
_DIRECTORY, _OPAQUE, _END, _FILE_KIND, _LINK, _WHITEOUT = b"DOEFLW"
_ZERO_BLOCK = bytes(BLOCK_BYTES)
_CHUNK_BYTES = 256 * BLOCK_BYTES
OPAQUE_ATTRIBUTE = "trusted.overlay.opaque"
"""Marks a directory of an overlay's upper layer below which nothing of the lower ones shows."""
OPAQUE_ATTRIBUTE_OF_USERS = "user.overlay.opaque"
"""The same of an overlay that an ordinary user mounted."""
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class File(NamedTuple):
    """A file for ``archive_of_files``."""

    data: bytes
    mode: int = 0o644


class Extent(NamedTuple):
    """A run of a file's bytes that are not all zero."""

    offset: int
    data: bytes | memoryview


class Member(NamedTuple):
    """One record as ``walk`` gives it. ``depth`` is 0 for the root, 1 below it; an ``E`` has its directory's."""

    kind: str
    name: bytes
    mode: int
    depth: int
    start: int
    """Where the record begins in the archive."""
    end: int
    size_bytes: int = 0
    extents: tuple[Extent, ...] = ()
    target: bytes = b""


# --- writing ----------------------------------------------------------------------------------------------------------


class _Writer:
    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = [MAGIC]

    def _head(self, kind: int, mode: int, name: bytes) -> None:
        self._parts.append(_HEAD.pack(kind, mode, len(name)) + name)

    def open_directory(self, name: bytes, mode: int, *, opaque: bool = False) -> None:
        self._head(_OPAQUE if opaque else _DIRECTORY, mode, name)

    def close_directory(self) -> None:
        self._head(_END, 0, b"")

    def file(self, name: bytes, mode: int, size_bytes: int, extents: list[Extent]) -> None:
        self._head(_FILE_KIND, mode, name)
        self._parts.append(_FILE.pack(size_bytes, len(extents)))
        for extent in extents:
            self._parts.append(_EXTENT.pack(extent.offset, len(extent.data)))
            self._parts.append(extent.data)

    def link(self, name: bytes, target: bytes) -> None:
        self._head(_LINK, 0o777, name)
        self._parts.append(_TARGET.pack(len(target)) + target)

    def whiteout(self, name: bytes) -> None:
        self._head(_WHITEOUT, 0, name)

    def finish(self) -> bytes:
        return b"".join(self._parts)


def _extents(pieces: Iterable[tuple[int, bytes]]) -> list[Extent]:
    """Maximal runs of non-zero blocks. Each piece starts at a block border, in order, and only the last may end within
    a block."""
    runs: list[tuple[int, list[bytes]]] = []
    run_end = -1

    def add(offset: int, data: bytes) -> None:
        nonlocal run_end
        if offset == run_end:
            runs[-1][1].append(data)
        else:
            runs.append((offset, [data]))
        run_end = offset + len(data)

    for base, data in pieces:
        tail = len(data) % BLOCK_BYTES
        if _ZERO_BLOCK not in data and not (tail and not any(data[-tail:])):
            if data:
                add(base, data)
            continue
        for at in range(0, len(data), BLOCK_BYTES):
            block = data[at : at + BLOCK_BYTES]
            if block.count(0) != len(block):
                add(base + at, block)
    return [Extent(offset, b"".join(parts)) for offset, parts in runs]


def _file_pieces(fd: int, size_bytes: int, where: str) -> Iterator[tuple[int, bytes]]:
    """The file's data, holes skipped, from block borders on."""
    position = 0
    while position < size_bytes:
        try:
            data_at = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == 6:  # ENXIO: only a hole is left
                return
            raise
        hole_at = min(os.lseek(fd, data_at, os.SEEK_HOLE), size_bytes)
        position = max(position, data_at - data_at % BLOCK_BYTES)
        while position < hole_at:
            wanted = min(_CHUNK_BYTES, size_bytes - position)
            data = os.pread(fd, wanted, position)
            if len(data) != wanted:
                raise ArchiveError(
                    f"{where}: the file became shorter while it was read; archive a tree that is at rest"
                )
            yield position, data
            position += wanted


def archive_of_directory(path: Path) -> bytes:
    """The archive of the tree at ``path`` (which may not itself be a link). Raises ``ArchiveError``."""
    try:
        fd = os.open(path, OPEN_DIRECTORY)
    except OSError as error:
        raise ArchiveError(f"{path}: cannot be archived: {error.strerror}; give a readable directory") from error
    try:
        return archive_of_fd(fd, where=str(path))
    finally:
        os.close(fd)


def archive_of_fd(
    directory_fd: int, *, where: str, overlay: str = "", keep: Callable[[tuple[bytes, ...]], bool] | None = None
) -> bytes:
    """The archive of the tree under an open directory, which must be at rest.

    Args:
        where: what to call the tree in errors.
        overlay: the tree is an overlay's upper layer, which marks its opaque directories with this attribute: record
            those and its whiteouts. Empty: it is not.
        keep: called with the names from the root to an entry; False leaves it and all below it out. It is only asked
            down to where it matters to the caller, so it must be cheap.
    """
    writer = _Writer()
    current = os.open(".", OPEN_DIRECTORY, dir_fd=directory_fd)
    try:
        status = os.fstat(current)
        writer.open_directory(b"", stat.S_IMODE(status.st_mode))
        levels = [_Level(status, _names(current))]
        names: list[bytes] = []
        while levels:
            level = levels[-1]
            if not level.pending:
                writer.close_directory()
                levels.pop()
                if levels:
                    names.pop()
                    current = move(current, "..")
                    _check_same(current, levels[-1].status, where)
                continue
            name = level.pending.pop()
            if keep is not None and not keep((*names, name)):
                continue
            entry = os.stat(name, dir_fd=current, follow_symlinks=False)
            mode = stat.S_IMODE(entry.st_mode)
            if stat.S_ISDIR(entry.st_mode):
                current = move(current, name)
                writer.open_directory(name, mode, opaque=bool(overlay) and _is_opaque(current, overlay))
                levels.append(_Level(entry, _names(current)))
                names.append(name)
            elif stat.S_ISREG(entry.st_mode):
                _write_file(writer, current, name, where)
            elif stat.S_ISLNK(entry.st_mode):
                writer.link(name, os.readlink(name, dir_fd=current))
            elif overlay and stat.S_ISCHR(entry.st_mode) and entry.st_rdev == 0:
                writer.whiteout(name)
        return writer.finish()
    except OSError as error:
        raise ArchiveError(f"{where}: cannot be archived: {error.strerror} at {error.filename!r}") from error
    finally:
        os.close(current)


class _Level(NamedTuple):
    status: os.stat_result
    pending: list[bytes]
    """Names still to come, last first."""


def _names(fd: int) -> list[bytes]:
    return sorted(map(os.fsencode, os.listdir(fd)), reverse=True)


def move(current: int, name: bytes | str) -> int:
    """Close ``current`` and return its child or parent ``name``: one descriptor however deep the tree is."""
    there = os.open(name, OPEN_DIRECTORY, dir_fd=current)
    os.close(current)
    return there


def _check_same(fd: int, expected: os.stat_result, where: str) -> None:
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) != (expected.st_dev, expected.st_ino):
        raise ArchiveError(f"{where}: a directory was moved while the tree was read; archive a tree that is at rest")


def _is_opaque(fd: int, attribute: str) -> bool:
    try:
        return os.getxattr(fd, attribute) == b"y"
    except OSError:  # no such attribute, or a file system without any
        return False


def _write_file(writer: _Writer, directory_fd: int, name: bytes, where: str) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        status = os.fstat(fd)
        size_bytes = status.st_size
        writer.file(name, stat.S_IMODE(status.st_mode), size_bytes, _extents(_file_pieces(fd, size_bytes, where)))
    finally:
        os.close(fd)


_Tree = dict[bytes, Union["_Tree", File]]


def archive_of_files(files: Mapping[str, bytes | File], *, directory_mode: int = 0o755) -> bytes:
    """An archive from memory. Keys are relative paths with ``/``; one that ends in ``/`` makes an empty directory."""
    root: _Tree = {}
    for path, value in files.items():
        names = [os.fsencode(name) for name in path.rstrip("/").split("/")]
        if not all(map(_is_name, names)):
            raise ArchiveError(f"{path!r}: not a relative path of plain names")
        *parents, last = [*names, b""] if path.endswith("/") else names
        tree = root
        for name in parents:
            child = tree.setdefault(name, {})
            if isinstance(child, File):
                raise ArchiveError(f"{path!r}: {os.fsdecode(name)!r} is a file and a directory")
            tree = child
        if last:
            if last in tree:
                raise ArchiveError(f"{path!r}: is a file and a directory")
            tree[last] = value if isinstance(value, File) else File(value)
    writer = _Writer()
    writer.open_directory(b"", directory_mode)
    levels = [sorted(root.items(), reverse=True, key=_first)]
    while levels:
        if not levels[-1]:
            levels.pop()
            writer.close_directory()
            continue
        name, node = levels[-1].pop()
        if isinstance(node, File):
            writer.file(name, node.mode, len(node.data), _extents([(0, node.data)]))
        else:
            writer.open_directory(name, directory_mode)
            levels.append(sorted(node.items(), reverse=True, key=_first))
    return writer.finish()


def _first(item: tuple[bytes, _Tree | File]) -> bytes:
    return item[0]


EMPTY = archive_of_files({})
"""The archive of an empty directory."""


# --- reading ----------------------------------------------------------------------------------------------------------


def _is_name(name: bytes) -> bool:
    return 0 < len(name) <= 255 and b"/" not in name and b"\0" not in name and name not in (b".", b"..")


def walk(archive: bytes | memoryview) -> Iterator[Member]:
    """Every record, checked: well-formed, plain names in order, nothing after the end; or ``ArchiveError``."""
    view = memoryview(archive)
    at: int = len(MAGIC)
    kind: int
    mode: int
    name_bytes: int
    target_bytes: int
    length: int

    def bad(what: str) -> ArchiveError:
        return ArchiveError(f"archive of {len(archive):,} bytes, offset {at:,}: {what}; take it again from its source")

    def need(size_bytes: int) -> int:
        if size_bytes > len(view) - at:
            raise bad("cut short")
        return at + size_bytes

    if archive[: len(MAGIC)] != MAGIC:
        at = 0
        raise bad("does not begin like an archive")
    previous: list[bytes] = []
    while True:
        start = at
        kind, mode, name_bytes = _HEAD.unpack(view[at : need(_HEAD.size)])
        at += _HEAD.size
        name = bytes(view[at : need(name_bytes)])
        at += name_bytes
        depth = len(previous)
        if kind == _END:
            if not previous or name or mode:
                raise bad("a directory ends that did not begin")
            previous.pop()
            yield Member("E", b"", 0, depth - 1, start, at)
            if not previous:
                break
            continue
        if mode > 0o7777:
            raise bad(f"mode {mode:o}")
        if depth == 0:
            if kind != _DIRECTORY or name:
                raise bad("the root is not a directory")
        elif not _is_name(name) or name <= previous[-1]:
            raise bad(f"name {name!r} is not plain or not in order")
        else:
            previous[-1] = name
        if kind in (_DIRECTORY, _OPAQUE):
            previous.append(b"")
            yield Member(chr(kind), name, mode, depth, start, at)
        elif kind == _FILE_KIND:
            size_bytes, count = _FILE.unpack(view[at : need(_FILE.size)])
            at += _FILE.size
            extents: list[Extent] = []
            free_from = 0
            for _ in range(count):
                offset, length = _EXTENT.unpack(view[at : need(_EXTENT.size)])
                at += _EXTENT.size
                if offset < free_from or offset % BLOCK_BYTES or not length or offset + length > size_bytes:
                    raise bad(f"file {name!r} has extents out of order")
                extents.append(Extent(offset, view[at : need(length)]))
                at += length
                free_from = offset + length + 1
            yield Member("F", name, mode, depth, start, at, size_bytes, tuple(extents))
        elif kind == _LINK:
            (target_bytes,) = _TARGET.unpack(view[at : need(_TARGET.size)])
            at += _TARGET.size
            target = bytes(view[at : need(target_bytes)])
            at += target_bytes
            if not target or b"\0" in target:
                raise bad(f"link {name!r} has no target")
            yield Member("L", name, mode, depth, start, at, target=target)
        elif kind == _WHITEOUT:
            yield Member("W", name, mode, depth, start, at)
        else:
            raise bad(f"unknown kind {kind}")
    if at != len(archive):
        raise bad("bytes after the end")


def _locate(archive: bytes | memoryview, path: str) -> Iterator[Member]:
    """The member at the absolute or relative ``path`` and, for a directory, everything in it up to its end."""
    wanted = [os.fsencode(name) for name in path.strip("/").split("/") if name]
    matched = 0
    for member in walk(archive):
        if matched == len(wanted) + 1:
            yield member
            if member.kind == "E" and member.depth == len(wanted):
                return
        elif member.kind != "E" and member.depth == matched and (not matched or member.name == wanted[matched - 1]):
            matched += 1
            if matched == len(wanted) + 1:
                yield member
                if member.kind not in "DO":
                    return


def subtree(archive: bytes | memoryview, path: str, *, mode: int | None = None) -> bytes | None:
    """The directory at ``path`` as an archive of its own; None when the archive holds no directory there. ``mode``: its
    permission bits, if not as they are."""
    members = list(_locate(archive, path))
    if not members or members[0].kind not in "DO":
        return None
    first = members[0]
    return (
        MAGIC + _HEAD.pack(_DIRECTORY, first.mode if mode is None else mode, 0) + archive[first.end : members[-1].end]
    )


def find_file(archive: bytes | memoryview, path: str) -> bytes | None:
    """The content of the regular file at ``path``, holes filled; None when there is none."""
    member = next(_locate(archive, path), None)
    if member is None or member.kind != "F":
        return None
    data = bytearray(member.size_bytes)
    for extent in member.extents:
        data[extent.offset : extent.offset + len(extent.data)] = extent.data
    return bytes(data)
