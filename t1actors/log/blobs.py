"""The blob store: bytes named by what they are (blake3 hex), ``RUN/blobs/<first two hex>/<digest>``.

Guarantees: ``put`` returns when the blob is durable (with ``durability="machine"``), so the event that names it may
follow, also when the same bytes were there as a volatile blob; a name never shows half a blob that was put alone, and
flushed, and a bad one is found by its digest; what ``get`` returns has been checked against its name when it was first
opened here, else ``BlobError`` names the file. Putting what is there already changes nothing but its time, unless it is
damaged: then it is written anew. What blobs mean, and when they may go, is left to others.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from t1actors.log.segments import fsync_directory, make_directories, write_all
from t1actors.payloads import BlobError, digest_of

_MAP_FROM_BYTES = 1 << 20
"""Smaller blobs are read: each map keeps a descriptor open while its bytes are in use."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_libc = ctypes.CDLL(None, use_errno=True)


def is_digest(text: str) -> bool:
    """Whether ``text`` can name a blob."""
    return _DIGEST.fullmatch(text) is not None


def _checked_name(digest: str) -> str:
    if not is_digest(digest):
        raise BlobError(f"{digest[:80]!r} does not name a blob: a name is 64 lower-case hexadecimal digits")
    return digest


class FileBlobs:
    """A blob store under ``root``, shared by any number of processes and threads."""

    def __init__(self, root: Path, durability: Literal["machine", "process"] = "machine") -> None:
        self.root = root
        self._flushes = durability == "machine"
        self._verified: dict[str, tuple[int, int, int]] = {}
        self._named: set[Path] = set()
        """Directories whose names this object has seen to: who made them may have been killed before it did."""

    def put(self, data: bytes | memoryview, *, volatile: bool = False) -> str:
        """Store ``data``; returns its digest once it is durable. ``volatile``: nothing is flushed."""
        digest = digest_of(data)
        path = self.path(digest)
        flushes = self._flushes and not volatile
        try:
            if not self._is_whole(digest) or not self._is_put_again(path):
                self._write(path, data, flush=flushes)
            elif flushes:  # it may have been put volatile
                _fsync_file(path)
            if flushes:
                fsync_directory(path.parent)
                self._flush_names_of(path.parent)
        except OSError as error:
            raise _unstored(path, error) from error
        return digest

    def put_many(self, blobs: Sequence[bytes | memoryview]) -> list[str]:
        """Store all, with one flush of the file system at the end instead of two for each."""
        digests = [digest_of(data) for data in blobs]
        path = self.root
        try:
            for digest, data in zip(digests, blobs, strict=True):
                path = self.path(digest)
                if not self._is_whole(digest) or not self._is_put_again(path):
                    self._write(path, data, flush=False)
            if digests and self._flushes:
                sync_file_system(self.root)
        except OSError as error:
            raise _unstored(path, error) from error
        return digests

    def flush(self) -> None:
        """All blobs are durable, whoever put them, and with them the rest of the file system."""
        if self._flushes and self.root.is_dir():
            try:
                sync_file_system(self.root)
            except OSError as error:
                raise _unstored(self.root, error) from error

    def get(self, digest: str) -> memoryview:
        """The blob's bytes, read-only. Raises ``BlobError``: missing or damaged."""
        path = self.path(digest)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise BlobError(
                f"blob {digest[:16]}…: {path} is missing; restore it from a copy of the run, or recompute what made it"
            ) from None
        try:
            status = os.fstat(descriptor)
            if status.st_size < _MAP_FROM_BYTES:
                data = memoryview(os.pread(descriptor, status.st_size, 0))
            else:
                data = memoryview(mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)
        identity = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self._verified.get(digest) != identity:
            found = digest_of(data)
            if found != digest:
                raise BlobError(
                    f"blob {digest[:16]}…: the {status.st_size:,} bytes of {path} have digest {found[:16]}…: damaged; "
                    "restore it from a copy of the run, or delete it and recompute what made it"
                )
            self._verified[digest] = identity
        return data

    def has(self, digest: str) -> bool:
        """Whether a blob of that name is there; it may yet turn out damaged."""
        return self.path(digest).exists()

    def size(self, digest: str) -> int:
        """Raises ``BlobError`` when it is missing."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            raise BlobError(f"blob {digest[:16]}…: {self.path(digest)} is missing") from None

    def delete(self, digest: str) -> None:
        """Forget the blob; one that is not there is forgotten already. Bytes in use stay readable."""
        self.path(digest).unlink(missing_ok=True)
        self._verified.pop(digest, None)

    def path(self, digest: str) -> Path:
        """Where the blob is or would be."""
        return self.root / _checked_name(digest)[:2] / digest

    def digests(self) -> Iterator[str]:
        """The names of all blobs, sorted."""
        if not self.root.is_dir():
            return
        for directory in sorted(path for path in self.root.iterdir() if path.is_dir()):
            yield from sorted(name for name in os.listdir(directory) if is_digest(name))

    def put_before(self, digest: str, wall_s: float) -> bool:
        """Whether the blob is there and was put, for the last time, before ``wall_s``: by then an event may name it again."""
        try:
            return self.path(digest).stat().st_mtime < wall_s
        except FileNotFoundError:
            return False

    def _is_put_again(self, path: Path) -> bool:
        """Notes that a blob that was there was put now; False: it is not there any more."""
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        except PermissionError:  # somebody else's, who will not delete it
            return True
        status = path.stat()
        self._verified[path.name] = (status.st_ino, status.st_mtime_ns, status.st_size)
        return True

    def _is_whole(self, digest: str) -> bool:
        try:
            self.get(digest)
        except BlobError:
            return False
        return True

    def _flush_names_of(self, directory: Path) -> None:
        for path in (directory, self.root):
            if path not in self._named:
                fsync_directory(path.parent)
                self._named.add(path)

    def _write(self, path: Path, data: bytes | memoryview, *, flush: bool) -> None:
        """A temporary file in the same directory, flushed, then renamed."""
        make_directories(path.parent)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            write_all(descriptor, data, 0)
            if flush:
                os.fsync(descriptor)
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)
        os.rename(temporary, path)


class MemoryBlobs:
    """The same in this process's memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blobs: dict[str, bytes] = {}

    def put(self, data: bytes | memoryview, *, volatile: bool = False) -> str:
        del volatile  # nothing here survives the process
        digest = digest_of(data)
        with self._lock:
            self._blobs[digest] = bytes(data)
        return digest

    def put_many(self, blobs: Sequence[bytes | memoryview]) -> list[str]:
        """``put`` for each."""
        return [self.put(data) for data in blobs]

    def flush(self) -> None:
        """Nothing to do."""

    def get(self, digest: str) -> memoryview:
        with self._lock:
            data = self._blobs.get(_checked_name(digest))
        if data is None:
            raise BlobError(f"blob {digest[:16]}… is missing from this process's memory")
        return memoryview(data)

    def has(self, digest: str) -> bool:
        with self._lock:
            return _checked_name(digest) in self._blobs

    def size(self, digest: str) -> int:
        """The blob's size in bytes. Raises ``BlobError``."""
        return len(self.get(digest))

    def delete(self, digest: str) -> None:
        with self._lock:
            self._blobs.pop(_checked_name(digest), None)

    def digests(self) -> Iterator[str]:
        """The names of all blobs, sorted."""
        with self._lock:
            names = sorted(self._blobs)
        yield from names


def _unstored(path: Path, error: OSError) -> BlobError:
    return BlobError(f"{path} could not be stored ({error}); see to the disk, then start again")


def _fsync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(root: Path) -> None:
    """Flush everything written to the file system that holds ``root``."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _syncfs(descriptor)
    finally:
        os.close(descriptor)


def _syncfs(descriptor: int) -> None:
    if _libc.syncfs(descriptor):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
