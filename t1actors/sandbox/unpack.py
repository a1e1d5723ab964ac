"""Laying a canonical archive out as a directory tree, and deleting trees of any depth.

Guarantees: every record is checked before the first one is acted on; no link is followed, whatever lies in the way;
nothing recurses. Left to the caller: which user owns what is made (the process's file-system user), and that nobody
else changes the tree meanwhile.
"""

from __future__ import annotations

import os
import stat

from t1actors.sandbox.archive import OPEN_DIRECTORY, Member, move, walk


def unpack(archive: bytes | memoryview, directory_fd: int, *, overlay: str = "") -> None:
    """Lay the archive out over what is in the open directory, owned by the caller's file-system user.

    Nobody else may change the tree meanwhile. An entry replaces what has its name, except that directories merge (an
    opaque one empties first). A whiteout deletes; with ``overlay`` (the directory is an overlay's upper layer, which marks
    opaque directories with that attribute) both also leave the overlay's own marks. Raises ``ArchiveError`` (bytes) or
    ``OSError`` (for example, no space left).
    """
    for _ in walk(archive):  # all of it is checked before anything is touched
        pass
    current = os.open(".", OPEN_DIRECTORY, dir_fd=directory_fd)
    modes: list[int] = []
    try:
        for member in walk(archive):
            if member.kind == "E":
                finished = current
                if len(modes) > 1:  # leave the directory before its mode may forbid that
                    current = os.open("..", OPEN_DIRECTORY, dir_fd=finished)
                os.fchmod(finished, modes.pop())
                if finished != current:
                    os.close(finished)
            elif member.kind in "DO":
                if member.name:
                    current = _enter(current, member, overlay=overlay)
                modes.append(member.mode)
            else:
                remove_tree(member.name, current)
                _make(current, member, overlay=overlay)
    finally:
        os.close(current)


def _enter(current: int, member: Member, *, overlay: str) -> int:
    opaque = member.kind == "O"
    try:
        existing = stat.S_ISDIR(os.stat(member.name, dir_fd=current, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        existing = False
    if opaque or not existing:
        remove_tree(member.name, current)
        os.mkdir(member.name, 0o700, dir_fd=current)
    current = move(current, member.name)
    if opaque and overlay:
        os.setxattr(current, overlay, b"y")
    return current


def _make(current: int, member: Member, *, overlay: str) -> None:
    if member.kind == "L":
        os.symlink(member.target, member.name, dir_fd=current)
    elif member.kind == "F":
        fd = os.open(
            member.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=current
        )
        try:
            os.ftruncate(fd, member.size_bytes)
            for extent in member.extents:
                rest = memoryview(extent.data)
                while rest:
                    rest = rest[os.pwrite(fd, rest, extent.offset + len(extent.data) - len(rest)) :]
            os.fchmod(fd, member.mode)
        finally:
            os.close(fd)
    elif overlay:  # a whiteout is a character device 0:0
        os.mknod(member.name, stat.S_IFCHR, 0, dir_fd=current)


def remove_tree(name: bytes | str, directory_fd: int) -> None:
    """Delete ``name`` and all below it, without recursion and without following links; fine if it is not there."""
    try:
        status = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=directory_fd)
        return
    current = os.open(name, OPEN_DIRECTORY, dir_fd=directory_fd)
    try:
        entered: list[bytes] = []
        while True:
            below: bytes | None = None
            for child in os.listdir(current):
                try:
                    os.unlink(child, dir_fd=current)
                except IsADirectoryError:
                    below = os.fsencode(child)
                    break
            if below is not None:
                current = move(current, below)
                entered.append(below)
            elif entered:
                current = move(current, "..")
                os.rmdir(entered.pop(), dir_fd=current)
            else:
                break
    finally:
        os.close(current)
    os.rmdir(name, dir_fd=directory_fd)
