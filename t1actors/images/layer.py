"""Lays an image layer's tar out as a directory that an overlay can take as a lower layer.

Guarantees: nothing is written outside the directory, whatever the tar says: names are plain and relative, no entry goes
through a link, a hard link leads to a file of the same layer; what breaks this is refused by the entry's name, and so are
devices (those under dev/ are left out: a sandbox has its own /dev), owners beyond 65,535, and a tar that unpacks to more
bytes or entries than allowed. Whiteouts and opaque directories become the overlay's own marks.

Kept: owners, modes with setuid bits (a sandbox's mounts are nosuid, so they give nothing there), whole seconds, hard links,
pipes. Left out: extended attributes. The digest is over the tar's bytes, uncompressed, as the OCI's diff id is.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tarfile
from typing import IO, NamedTuple, cast

from t1actors.images.errors import ImageRefused
from t1actors.sandbox.archive import OPAQUE_ATTRIBUTE, OPEN_DIRECTORY
from t1actors.sandbox.layer_tar import OPAQUE_MARK, WHITEOUT_PREFIX
from t1actors.sandbox.unpack import remove_tree

MAX_ENTRIES = 2_000_000
_IDS = 65_536
_COPY_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 20
_LAST_SECOND = 1 << 34
_AUFS_PREFIX = ".wh..wh."


class Unpacked(NamedTuple):
    """``digest`` is ``sha256:...`` of the tar, ``size_bytes`` its length."""

    digest: str
    size_bytes: int
    entries: int


class Measured:
    """A stream that hashes what is read from it and refuses to give more than ``max_bytes``."""

    def __init__(self, stream: IO[bytes], max_bytes: int, where: str) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._where = where
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def read(self, size_bytes: int = -1) -> bytes:
        """As a file's."""
        data = self._stream.read(size_bytes)
        self.size_bytes += len(data)
        if self.size_bytes > self._max_bytes:
            raise ImageRefused(
                f"{self._where}: unpacks to more than {self._max_bytes:,} bytes; raise the limit if it is to be so large"
            )
        self._hash.update(data)
        return data

    def drain(self) -> None:
        """Read to the end."""
        while self.read(_COPY_BYTES):
            pass

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def unpack_layer(stream: IO[bytes], directory: str, *, where: str, max_bytes: int) -> Unpacked:
    """Lay the uncompressed tar out in the empty ``directory``. Raises ``ImageRefused``, ``OSError`` (no space, say)."""
    measured = Measured(stream, max_bytes, where)
    root = os.open(directory, OPEN_DIRECTORY)
    try:
        entries = _Unpacking(root, where, max_bytes).run(measured)
    finally:
        os.close(root)
    measured.drain()  # what follows the tar's end is part of the digest
    return Unpacked(measured.digest, measured.size_bytes, entries)


class _Header(tarfile.TarInfo):
    """Refuses long names and attributes so long that only a bomb has them: they are read into memory whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> tarfile.TarInfo:
        header = super().frombuf(buf, encoding, errors)  # type: ignore[arg-type]
        if header.type not in tarfile.REGULAR_TYPES and not -1 < header.size <= _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {header.size:,} bytes")
        return header


class _Unpacking:
    def __init__(self, root: int, where: str, max_bytes: int) -> None:
        self._root = root
        self._where = where
        self._left_bytes = max_bytes
        self._times: dict[tuple[str, ...], int] = {}

    def run(self, measured: Measured) -> int:
        entries = 0
        try:
            # The stream needs no seeking: ``r|`` reads it once, in order.
            with tarfile.open(
                fileobj=cast("IO[bytes]", measured),
                mode="r|",
                tarinfo=_Header,
                encoding="utf-8",
                errors="surrogateescape",
            ) as tar:
                while (member := tar.next()) is not None:
                    entries += 1
                    tar.members.clear()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # it would keep every header
                    if entries > MAX_ENTRIES:
                        raise ImageRefused(f"{self._where}: more than {MAX_ENTRIES:,} entries; no image needs so many")
                    self._entry(tar, member)
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise ImageRefused(f"{self._where}: not a whole tar ({error}); make it again") from error
        for names, mtime_s in reversed(self._times.items()):
            try:
                fd = self._open(names, names)
            except ImageRefused:  # a later entry took its place
                continue
            os.utime(fd, (mtime_s, mtime_s))
            os.close(fd)
        return entries

    def _refuse(self, name: str, why: str) -> ImageRefused:
        return ImageRefused(f"{self._where}: entry {name!r} {why}")

    def _names(self, name: str, whole: str) -> tuple[str, ...]:
        if name.startswith("/"):
            raise self._refuse(whole, "has an absolute name; an image's names are relative")
        names = tuple(part for part in name.split("/") if part not in ("", "."))
        if ".." in names:
            raise self._refuse(whole, "has a name with `..`, which would lead out of the image")
        if any(len(os.fsencode(part)) > 255 or "\0" in part for part in names):
            raise self._refuse(whole, "has a part of its name that no file system holds")
        return names

    def _entry(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        names = self._names(member.name, member.name)
        if not names:
            if not member.isdir():
                raise self._refuse(member.name, "names the root, which must be a directory")
            self._owners(member, self._root)
            os.fchmod(self._root, member.mode & 0o7777)
            return
        if not (0 <= member.uid < _IDS and 0 <= member.gid < _IDS):
            raise self._refuse(
                member.name, f"belongs to {member.uid}:{member.gid}; a sandbox has users and groups 0 to {_IDS - 1:,}"
            )
        self._left_bytes -= member.size
        if self._left_bytes < 0 or member.size < 0:
            raise self._refuse(member.name, f"claims {member.size:,} bytes, more than is allowed in all")
        if member.ischr() or member.isblk():
            if names[0] == "dev":
                return
            raise self._refuse(member.name, "is a device; a sandbox has none but those of its own /dev")
        *parents, last = names
        parent = self._open(tuple(parents), names, make=True)
        try:
            self._make(tar, member, parent, last, names)
        finally:
            os.close(parent)

    def _open(self, names: tuple[str, ...], whole: tuple[str, ...], *, make: bool = False) -> int:
        current = os.open(".", OPEN_DIRECTORY, dir_fd=self._root)
        for name in names:
            try:
                try:
                    below = os.open(name, OPEN_DIRECTORY, dir_fd=current)
                except FileNotFoundError:
                    if not make:
                        raise
                    os.mkdir(name, dir_fd=current)
                    below = os.open(name, OPEN_DIRECTORY, dir_fd=current)
                    os.fchmod(below, 0o755)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT):
                    raise
                text = f"goes through {name!r}, which is a link or no directory in this layer"
                raise self._refuse("/".join(whole), text) from error
            finally:
                os.close(current)
            current = below
        return current

    def _make(
        self, tar: tarfile.TarFile, member: tarfile.TarInfo, parent: int, last: str, names: tuple[str, ...]
    ) -> None:
        if last == OPAQUE_MARK:
            os.setxattr(parent, OPAQUE_ATTRIBUTE, b"y")
            return
        if last.startswith(_AUFS_PREFIX):
            return
        if last.startswith(WHITEOUT_PREFIX):
            gone = last.removeprefix(WHITEOUT_PREFIX)
            if gone in ("", ".", ".."):
                raise self._refuse(member.name, "deletes no name that a file can have")
            remove_tree(gone, parent)
            os.mknod(gone, 0o020000, 0, dir_fd=parent)  # an overlay's whiteout is a character device 0:0
            return
        if member.isdir():
            self._directory(member, parent, last, names)
            return
        if member.islnk():
            self._hard_link(member, parent, last)
            return
        if not (member.isreg() or member.issym() or member.isfifo()):
            raise self._refuse(member.name, f"is of a kind that images do not have ({member.type!r})")
        if member.issparse():
            raise self._refuse(member.name, "is stored sparsely; pack it without that")
        remove_tree(last, parent)
        if member.issym():
            if not member.linkname or "\0" in member.linkname:
                raise self._refuse(member.name, "is a link to nothing")
            os.symlink(member.linkname, last, dir_fd=parent)
            os.chown(last, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
            os.utime(last, _times(member), dir_fd=parent, follow_symlinks=False)
            return
        if member.isfifo():
            os.mkfifo(last, 0o600, dir_fd=parent)
            flags = os.O_RDONLY | os.O_NONBLOCK
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        fd = os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
        try:
            if member.isreg():
                self._content(tar, member, fd)
            self._owners(member, fd)
            os.fchmod(fd, member.mode & 0o7777)
            os.utime(fd, _times(member))
        finally:
            os.close(fd)

    def _owners(self, member: tarfile.TarInfo, fd: int) -> None:
        os.fchown(fd, member.uid, member.gid)

    def _content(self, tar: tarfile.TarFile, member: tarfile.TarInfo, fd: int) -> None:
        source = tar.extractfile(member)
        assert source is not None
        left = member.size
        while left > 0:
            data = source.read(min(_COPY_BYTES, left))
            if not data:
                raise self._refuse(member.name, "is cut short")
            left -= len(data)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]

    def _directory(self, member: tarfile.TarInfo, parent: int, last: str, names: tuple[str, ...]) -> None:
        try:
            fd = os.open(last, OPEN_DIRECTORY, dir_fd=parent)
        except OSError:  # not there, or something else
            remove_tree(last, parent)
            os.mkdir(last, 0o700, dir_fd=parent)
            fd = os.open(last, OPEN_DIRECTORY, dir_fd=parent)
        try:
            self._owners(member, fd)
            os.fchmod(fd, member.mode & 0o7777)
        finally:
            os.close(fd)
        self._times.pop(names, None)
        self._times[names] = _times(member)[0]

    def _hard_link(self, member: tarfile.TarInfo, parent: int, last: str) -> None:
        *above, name = self._names(member.linkname, member.name) or ("",)
        there = self._open(tuple(above), tuple(member.name.split("/")))
        try:
            if not name or not _is_file(name, there):
                raise self._refuse(
                    member.name, f"is a hard link to {member.linkname!r}, which is no file of this layer"
                )
            if name == last and os.path.samestat(os.fstat(there), os.fstat(parent)):
                return
            remove_tree(last, parent)
            os.link(name, last, src_dir_fd=there, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(there)


def _times(member: tarfile.TarInfo) -> tuple[int, int]:
    seconds = int(member.mtime) if 0 <= member.mtime < _LAST_SECOND else 0
    return seconds, seconds


def _is_file(name: str, directory_fd: int) -> bool:
    try:
        status = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
