"""Opening a journal after whatever happened to its writer.

The rule (docs/log-format.md): a writer has one frame in flight, so only the bytes past the durable end may be torn, and
only when no whole frame lies behind them.
- Anything bad or missing *below* the durable end, or below what another journal has read (asked after the machine
  itself was lost), is damage: refused, with the place.
- Whole frames *past* the durable end are kept. They may be only in the page cache (kill -9 between write and flush), so
  they are written again and flushed before they are published.
- A bad stretch past the end with a whole frame *behind* it is damage too: a torn tail has nothing behind it.
- What remains is the torn tail of a frame that was never acknowledged: cut off, and its size is reported.
- Zeros at the very end are what the writer keeps ahead of its frames (``log.ahead``): cut off, and nothing to report.

Guarantees: after ``recover`` the durable end is the end of the files, so nothing is left behind it that could later be taken
for frames; every frame was checksummed (or its sealed segment hashed as a whole); sequences have no gap; every sealed segment
has its seal beside it. A journal that is refused is left as it was. The caller holds the lock.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from t1actors.log.errors import JournalDamaged
from t1actors.log.frame import MAGIC_BYTES, FrameError, Header, frame_digest, verify_frame
from t1actors.log.seal import Seal, SealBuilder, read_seal, write_seal
from t1actors.log.segments import (
    START,
    Position,
    end_path,
    fsync_directory,
    read_end,
    read_end_of,
    segment_path,
    write_all,
    write_end,
    written_bytes,
)
from t1actors.log.trimmed import Trimmed, kept_segments, trimmed_of


@dataclass(frozen=True)
class Recovered:
    """Where the journal goes on (``sealed``: in the next segment), the digest of its last frame (empty: it has none), and
    what was found past the durable end: ``kept_frames`` whole ones, and ``torn_bytes`` of one that never was
    acknowledged. ``growing`` is the last segment's seal so far."""

    position: Position
    sealed: bool
    next_sequence: int
    epoch: int
    last_frame: bytes
    growing: SealBuilder
    kept_frames: int
    torn_bytes: int


class Consumed(NamedTuple):
    """Journal ``by`` rests on events up to ``sequence``."""

    by: str
    sequence: int


@contextmanager
def mapped(path: Path) -> Generator[memoryview]:
    """The file's bytes, unread until touched; an empty view for an empty file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            yield memoryview(b"")
            return
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as whole, memoryview(whole) as view:
            yield view
    finally:
        os.close(descriptor)


def recover(journal: str, directory: Path, *, consumed: Consumed | None = None) -> Recovered:
    """Check the journal, settle its tail and publish it. Starts the journal when there is none. ``consumed`` is what
    another journal is known to have read of this one. Raises ``JournalDamaged``, ``OSError``."""
    trimmed = trimmed_of(directory)
    segments = kept_segments(directory, trimmed)
    durable = _durable_end(journal, directory, segments, trimmed)
    scan = _Scan(journal, directory, durable, trimmed)
    for segment in segments:
        scan.segment(segment)
    scan.finish(consumed)
    _settle(directory, segments, durable, scan.good)
    for segment, seal in scan.unsealed.items():
        write_seal(directory, segment, seal)
    return Recovered(
        position=scan.good,
        sealed=scan.sealed,
        next_sequence=scan.next_sequence,
        epoch=scan.epoch,
        last_frame=scan.last_frame,
        growing=scan.growing,
        kept_frames=scan.kept_frames,
        torn_bytes=scan.torn_bytes,
    )


def _durable_end(journal: str, directory: Path, segments: list[int], trimmed: Trimmed) -> Position:
    """The durable end on disk. It is made before the first frame is written, so only an empty journal may lack it."""
    path = end_path(directory)
    durable = read_end_of(directory)
    if durable is None:
        if any(segment_path(directory, segment).stat().st_size for segment in segments):
            raise JournalDamaged(journal, 0, 0, f"frames are there but the durable end {path} is missing")
        return START
    # Not by counting up to the durable end: a flipped bit may have made that a number beyond all memory.
    first = trimmed.first_segment
    missing = next((n for n, segment in enumerate(segments, first) if segment != n), first + len(segments))
    if missing <= durable.segment and durable != START:
        reason = f"segment file is missing: segment {durable.segment} was acknowledged, up to offset {durable.offset:,}"
        raise JournalDamaged(journal, missing, 0, reason)
    return durable


class _Scan:
    """One pass over all segments. ``good`` is where the last whole frame ends; ``unsealed`` are the seals that sealed
    segments should have beside them and have not."""

    def __init__(self, journal: str, directory: Path, durable: Position, trimmed: Trimmed) -> None:
        self._start = trimmed.start
        self._journal = journal
        self._directory = directory
        self._durable = durable
        self._fault: JournalDamaged | None = None
        self.good = trimmed.start
        self.sealed = False
        self.next_sequence: int = trimmed.first_sequence
        self.epoch: int = 0
        self.last_frame: bytes = trimmed.previous
        self.growing = SealBuilder()
        self.unsealed: dict[int, Seal] = {}
        self.kept_frames = 0
        self.torn_bytes = 0

    def segment(self, segment: int) -> None:
        with mapped(segment_path(self._directory, segment)) as data:
            offset = 0
            if self._fault is None:
                self._begin(segment, data)
            if self._fault is None:
                if self._skip_sealed(segment, data):
                    return
                offset = self._frames(segment, data)
            if self._fault is not None:
                self._refuse_frames_behind(segment, data, offset)
                self.torn_bytes += written_bytes(data[offset:])

    def finish(self, consumed: Consumed | None) -> None:
        """All segments are seen: nothing that was acknowledged or read may be missing at their end."""
        reason = ""
        if self.good < self._durable:
            place = f"segment {self._durable.segment}, offset {self._durable.offset:,}"
            reason = f"everything up to {place} was acknowledged"
        elif consumed is not None and consumed.sequence >= self.next_sequence:
            reason = f"journal {consumed.by} has read up to sequence {consumed.sequence:,}"
        if reason:
            reason = f"frames are missing: this journal ends here, at sequence {self.next_sequence:,}, but {reason}"
            raise JournalDamaged(self._journal, *self.good, reason)

    def _begin(self, segment: int, data: memoryview) -> None:
        """A segment begins where the one before it was sealed."""
        follows = Position(self.good.segment + 1, 0) if self.sealed else self._start
        if data and Position(segment, 0) != follows:
            reason = f"the frame that ends this segment is missing, yet segment {segment} follows"
            self._fault = JournalDamaged(self._journal, *self.good, reason)
            if self.good < self._durable:
                raise self._fault

    def _skip_sealed(self, segment: int, data: memoryview) -> bool:
        """Whether the segment was acknowledged in full, and is what its seal says: then no frame need be looked at."""
        seal = read_seal(self._directory, segment) if segment < self._durable.segment else None
        if seal is None or seal.first_sequence != self.next_sequence or seal.epoch < self.epoch or not seal.holds(data):
            return False
        self.next_sequence, self.epoch, self.last_frame = seal.next_sequence, seal.epoch, bytes.fromhex(seal.last_frame)
        self.good, self.sealed = Position(segment, len(data)), True
        return True

    def _frames(self, segment: int, data: memoryview) -> int:
        """Step over whole frames; returns where they stop."""
        self.growing = SealBuilder()
        offset = self._step_over(segment, data)
        self.growing.hashed(data[:offset])
        if self.sealed and self.good.segment == segment:
            self.unsealed[segment] = self.growing.seal(
                next_sequence=self.next_sequence, epoch=self.epoch, last_frame=self.last_frame
            )
        return offset

    def _step_over(self, segment: int, data: memoryview) -> int:
        limit = len(data)  # of the frames that were acknowledged
        if segment >= self._durable.segment:
            limit = min(limit, self._durable.offset) if segment == self._durable.segment else 0
        offset = last = 0
        while offset < len(data):
            below = offset < limit
            try:
                if self.sealed and self.good.segment == segment:
                    raise FrameError("bytes behind the frame that ends the segment")
                header = verify_frame(data, offset, limit if below else len(data))
            except FrameError as error:
                self._fault = JournalDamaged(self._journal, segment, offset, str(error))
                if below:
                    raise self._fault from error
                break
            self._expect(segment, offset, header)
            self.growing.frame(offset, header.base_sequence)
            self.kept_frames += not below
            last, offset = offset, header.end
            self.good, self.sealed = Position(segment, offset), header.seals
        if offset:
            self.last_frame = frame_digest(data[last:offset])
        return offset

    def _expect(self, segment: int, offset: int, header: Header) -> None:
        if header.base_sequence != self.next_sequence:
            reason = f"sequence {header.base_sequence:,} where {self.next_sequence:,} must follow: frames are missing"
            raise JournalDamaged(self._journal, segment, offset, reason)
        if header.epoch < self.epoch:
            reason = f"a frame of epoch {header.epoch} behind one of epoch {self.epoch}: a fenced writer wrote it"
            raise JournalDamaged(self._journal, segment, offset, reason)
        self.next_sequence, self.epoch = header.next_sequence, header.epoch

    def _refuse_frames_behind(self, segment: int, data: memoryview, offset: int) -> None:
        """The bytes from ``offset`` on may be a torn tail only when no whole frame is among them."""
        assert self._fault is not None
        whole = bytes(data[offset:])
        at = whole.find(MAGIC_BYTES)
        while at != -1:
            try:
                header = verify_frame(whole, at, len(whole))
            except FrameError:
                header = None
            if header is not None and header.base_sequence >= self.next_sequence:
                fault = self._fault
                reason = (
                    f"{fault.reason}, with a whole frame (sequence {header.base_sequence:,}) behind it at segment "
                    f"{segment}, offset {offset + at:,}; this is damage, not a torn tail"
                )
                raise JournalDamaged(self._journal, fault.segment, fault.offset, reason)
            at = whole.find(MAGIC_BYTES, at + 1)


def _settle(directory: Path, segments: list[int], durable: Position, good: Position) -> None:
    """Make what was found durable, cut what was torn, publish."""
    for segment in segments:
        if segment > good.segment:
            segment_path(directory, segment).unlink()
        elif segment >= durable.segment:
            start = durable.offset if segment == durable.segment else 0
            _rewrite(segment_path(directory, segment), start, good.offset if segment == good.segment else None)
    if good.segment not in segments:
        descriptor = os.open(segment_path(directory, good.segment), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.fsync(descriptor)
        os.close(descriptor)
    descriptor = os.open(end_path(directory), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if read_end(descriptor) != good:
            write_end(descriptor, good)
        os.fsync(descriptor)  # always: who wrote it may have been killed before it did
    finally:
        os.close(descriptor)
    fsync_directory(directory)


def _rewrite(path: Path, start: int, stop: int | None) -> None:
    """Write bytes ``start`` to ``stop`` (None: the file's end) over themselves, cut the file there, flush."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        stop = size if stop is None else stop
        step = 1 << 20
        for offset in range(start, stop, step):
            write_all(descriptor, os.pread(descriptor, min(step, stop - offset), offset), offset)
        if size > stop:
            os.ftruncate(descriptor, stop)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
