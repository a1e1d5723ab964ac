"""Layers as they are packed: plain, gzip, or zstd with the package ``zstandard`` (``pip install 't1actors[images]'``).

Told from the first bytes, whatever the image says of it. Guarantees: what unpacking takes in memory is bounded.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO

from t1actors.images.errors import ImageRefused
from t1actors.images.layer import Measured

_ZSTD = b"\x28\xb5\x2f\xfd"
_GZIP = b"\x1f\x8b"
_WINDOW_BYTES = 128 << 20
"""The most that one zstd frame may look back."""


@contextmanager
def plain(stream: IO[bytes] | Measured, where: str) -> Generator[IO[bytes]]:
    """The stream unpacked. Raises ``ImageRefused``: it is damaged, or nothing here unpacks it."""
    head = _Headed(stream)
    begin = head.peek(6)
    if begin.startswith(_ZSTD):
        with _zstd(head, where) as tar:
            yield tar
    elif begin.startswith(_GZIP):
        try:
            with gzip.GzipFile(fileobj=head) as tar:  # type: ignore[arg-type]
                yield tar  # type: ignore[misc]
        except (zlib.error, gzip.BadGzipFile, EOFError) as error:
            raise ImageRefused(f"{where}: not a whole gzip file: {error}") from error
    else:
        yield head  # type: ignore[misc]


@contextmanager
def _zstd(head: _Headed, where: str) -> Generator[IO[bytes]]:
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise ImageRefused(
            f"{where}: compressed with zstd, which takes the package zstandard: pip install 't1actors[images]'; or save the "
            "image with gzip"
        ) from error
    unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    try:
        # Several frames, some of which hold no data, are one stream.
        with unpacker.stream_reader(head, read_across_frames=True) as tar:  # type: ignore[arg-type]
            yield tar  # type: ignore[misc]
    except zstandard.ZstdError as error:
        raise ImageRefused(f"{where}: not a whole zstd file: {error}") from error


class _Headed:
    """A stream whose first bytes were looked at."""

    def __init__(self, stream: IO[bytes] | Measured) -> None:
        self._stream = stream
        self._head = b""

    def peek(self, size_bytes: int) -> bytes:
        while len(self._head) < size_bytes and (data := self._stream.read(size_bytes - len(self._head))):
            self._head += data
        return self._head

    def read(self, size_bytes: int = -1) -> bytes:
        if not self._head:
            return self._stream.read(size_bytes)
        data, self._head = (self._head, b"") if size_bytes < 0 else (self._head[:size_bytes], self._head[size_bytes:])
        return data + self._stream.read() if size_bytes < 0 else data
