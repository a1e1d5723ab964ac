"""What is known of a sealed segment without reading it: its hash, its sequences, and where in it which frame starts.

A sealed segment never changes, so beside ``000000000000.seg`` lies ``000000000000.seal``, one JSON object (see
``docs/log-format.md``). It holds nothing that the segment does not: whoever misses it reads the segment, and a writer
that opens the journal makes it again.

Guarantees: ``read_seal`` returns what ``write_seal`` wrote, bit for bit, for a segment of the size that it has now, or None.
It says nothing about the segment's bytes: ``Seal.holds`` compares them with the hash.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path

import msgspec
from blake3 import blake3

from t1actors.log.segments import segment_path

INDEX_EVERY_BYTES = 64 * 1024
"""A frame is listed when at least so many bytes lie between it and the one listed before."""

_HASH_BYTES = 64 * 1024
"""blake3 is four times faster a byte on this much at once than on a small frame."""


class Seal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one segment: ``size_bytes`` and ``blake3`` (hex) of its file, the sequences of its events (``first_sequence`` up to
    but not ``next_sequence``), the epoch of its last frame, and ``last_frame``, the hex digest that the next segment's first
    frame names as ``previous``. ``index``: (base sequence, offset) of some frames, ascending. ``check``: blake3 (hex) of the
    object as it is encoded with an empty ``check``."""

    size_bytes: int
    blake3: str
    first_sequence: int
    next_sequence: int
    epoch: int
    last_frame: str
    index: tuple[tuple[int, int], ...]
    check: str = ""

    def checked(self) -> str:
        """What ``check`` must be."""
        return blake3(msgspec.json.encode(msgspec.structs.replace(self, check=""))).hexdigest()

    def holds(self, data: memoryview) -> bool:
        """Whether ``data`` is the sealed file, byte for byte."""
        return len(data) == self.size_bytes and blake3(data).hexdigest() == self.blake3

    def offset_before(self, sequence: int) -> int:
        """The offset of a listed frame that starts before ``sequence``; 0 when none does."""
        place = bisect_right(self.index, sequence, key=lambda entry: entry[0])
        # One further back: frames without events share their sequence with the one behind them.
        while place and self.index[place - 1][0] >= sequence:
            place -= 1
        return self.index[place - 1][1] if place else 0


class SealBuilder:
    """Follows a segment as it grows."""

    def __init__(self) -> None:
        self._hasher = blake3()
        self._index: list[tuple[int, int]] = []
        self._first: int | None = None
        self._hashed = 0
        self._waiting = bytearray()

    def frame(self, offset: int, base_sequence: int) -> None:
        """A frame starts at ``offset``. Its bytes are given to ``hashed``."""
        if self._first is None:
            self._first = base_sequence
        if not self._index or offset - self._index[-1][1] >= INDEX_EVERY_BYTES:
            self._index.append((base_sequence, offset))

    def hashed(self, data: bytes | memoryview) -> None:
        """The file goes on with ``data``."""
        self._hashed += len(data)
        if len(self._waiting) + len(data) < _HASH_BYTES:
            self._waiting += data
            return
        self._hasher.update(self._waiting)
        self._hasher.update(data)
        self._waiting.clear()

    def seal(self, *, next_sequence: int, epoch: int, last_frame: bytes) -> Seal:
        """Of all that was given. At least one frame was."""
        assert self._first is not None
        self._hasher.update(self._waiting)
        self._waiting.clear()
        seal = Seal(
            size_bytes=self._hashed,
            blake3=self._hasher.hexdigest(),
            first_sequence=self._first,
            next_sequence=next_sequence,
            epoch=epoch,
            last_frame=last_frame.hex(),
            index=tuple(self._index),
        )
        return msgspec.structs.replace(seal, check=seal.checked())


def seal_path(directory: Path, segment: int) -> Path:
    """The file beside the journal's segment ``segment``."""
    return segment_path(directory, segment).with_suffix(".seal")


def write_seal(directory: Path, segment: int, seal: Seal) -> None:
    """Not flushed: what a power cut takes is made again. Raises ``OSError``."""
    path = seal_path(directory, segment)
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(msgspec.json.encode(seal) + b"\n")
    os.replace(temporary, path)


def read_seal(directory: Path, segment: int) -> Seal | None:
    """The segment's seal, if there is one that was written for a file of its present size."""
    try:
        seal = msgspec.json.decode(seal_path(directory, segment).read_bytes(), type=Seal)
        size = segment_path(directory, segment).stat().st_size
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return seal if seal.size_bytes == size and seal.check == seal.checked() else None
