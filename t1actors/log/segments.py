"""The files of a journal on disk: their names, the durable end, and how to flush what.

A journal is a directory: segments ``000000000000.seg``, ``000000000001.seg``, ... (frames back to back; only the last
one grows), ``end`` (the durable end, 8 bytes, little endian: offset u32, segment u32) and ``lock``.

Guarantees: a ``Position`` is read and written as 8 aligned bytes at once, so a reader never sees half of one.
"""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import NamedTuple

_END = struct.Struct("<Q")
_SEGMENT_NAME = re.compile(r"(\d{12})\.seg")
MAX_SEGMENT_BYTES = 2**32 - 1


class Position(NamedTuple):
    """A byte in a journal. Ordered."""

    segment: int
    offset: int

    def encoded(self) -> bytes:
        """As the file ``end`` holds it."""
        return _END.pack(self.segment << 32 | self.offset)


START = Position(0, 0)


def segment_path(directory: Path, segment: int) -> Path:
    """The file of the journal's segment ``segment``."""
    return directory / f"{segment:012d}.seg"


def end_path(directory: Path) -> Path:
    """The file that says how far the journal is durable."""
    return directory / "end"


def list_segments(directory: Path) -> list[int]:
    """The numbers of the segment files there are, ascending."""
    matches = (_SEGMENT_NAME.fullmatch(name) for name in os.listdir(directory))
    return sorted(int(match[1]) for match in matches if match)


def write_end(descriptor: int, position: Position) -> None:
    """Publish: whatever lies before ``position`` must be durable already. A pwrite, because stores through a map and
    fdatasync wake no reader."""
    os.pwrite(descriptor, position.encoded(), 0)


def read_end(descriptor: int) -> Position | None:
    """The durable end; None when it was never written (the journal is just being made)."""
    raw = os.pread(descriptor, _END.size, 0)
    if len(raw) < _END.size:
        return None
    (value,) = _END.unpack(raw)
    return Position(value >> 32, value & 0xFFFFFFFF)


def read_end_of(directory: Path) -> Position | None:
    """The durable end of the journal in ``directory``; None when there is none."""
    try:
        descriptor = os.open(end_path(directory), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return read_end(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """pwrite all of ``data``: a short write (a full disk) goes on, and then raises what stopped it."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def written_bytes(data: bytes | memoryview) -> int:
    """How much of ``data`` is there without the zeros at its end, which a writer keeps ahead of its frames."""
    return len(bytes(data).rstrip(b"\0"))


def fsync_directory(path: Path) -> None:
    """Make the names in ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path) -> None:
    """``mkdir -p`` whose names survive a power cut."""
    if path.is_dir():
        return
    make_directories(path.parent)
    path.mkdir(exist_ok=True)
    fsync_directory(path.parent)
