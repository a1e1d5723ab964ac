"""The reader of a journal on disk: follows the durable end from segment to segment.

Guarantees: only bytes below the durable end are ever looked at, each frame is checksummed and its sequence continues
the one before it, and reading takes no lock: it can't disturb the writer. One small pread tells that there is nothing
new. Whoever begins before the first event that is kept, or is overtaken by the deletion of what it was to read next, gets
``Truncated``.
"""

from __future__ import annotations

import os
from pathlib import Path

from t1actors.log.errors import JournalDamaged, Truncated
from t1actors.log.frame import (
    HEADER_BYTES,
    Frame,
    FrameError,
    Header,
    decode_body,
    frame_digest,
    frame_length,
    verify_frame,
)
from t1actors.log.seal import read_seal
from t1actors.log.segments import START, Position, end_path, read_end, segment_path
from t1actors.log.trimmed import kept_segments, trimmed_of

_READ_BYTES = 1 << 20


class FileJournalReader:
    """Reads a journal's segment files; see ``log.interface.JournalReader``."""

    def __init__(self, name: str, directory: Path, from_sequence: int) -> None:
        self.name = name
        self.next_sequence = from_sequence
        self._directory = directory
        self._from = from_sequence
        self._position: Position | None = None
        self._expected: int | None = None
        self._end_fd = -1
        self._segment_fd = -1
        self._window = b""
        self._window_at = 0
        self._last = memoryview(b"")

    def read(self, *, max_frames: int = 256) -> list[Frame]:
        """As ``JournalReader.read``."""
        end = self._durable_end()
        if end is None or end == START:
            return []
        if self._position is None:
            self._position = self._place(end)
        frames: list[Frame] = []
        while self._position < end and len(frames) < max_frames:
            frame = self._step(self._position, end)
            if frame is not None:
                frames.append(frame)
        if frames:
            self.next_sequence = frames[-1].next_sequence
        return frames

    @property
    def position(self) -> Position:
        """Where the next frame starts or will start: for tools that report places."""
        return self._position or START

    @property
    def durable_next(self) -> int:
        """The sequence behind the last frame that was read or skipped."""
        return self._expected or 0

    def last_digest(self) -> bytes:
        """The digest (``frame.frame_digest``) of the frame that a ``read`` with ``max_frames=1`` has just returned."""
        return frame_digest(self._last)

    def close(self) -> None:
        """Idempotent."""
        for descriptor in (self._end_fd, self._segment_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._end_fd = self._segment_fd = -1
        self._window = b""

    def _durable_end(self) -> Position | None:
        if self._end_fd < 0:
            try:
                self._end_fd = os.open(end_path(self._directory), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        return read_end(self._end_fd)

    def _place(self, end: Position) -> Position:
        """A frame's start, at or before the wanted sequence: in the last segment that begins there, by its seal's index."""
        trimmed = trimmed_of(self._directory)
        if self._from < trimmed.first_sequence:
            raise Truncated(self.name, self._from, trimmed.first_sequence)
        if self._from > trimmed.first_sequence:
            segments = kept_segments(self._directory, trimmed)
            for segment in reversed([n for n in segments if trimmed.first_segment < n <= end.segment]):
                self._open(segment)
                first = self._verify(Position(segment, 0), end)
                if first.base_sequence < self._from:
                    self._check_order(segment, first.base_sequence, end)
                    return self._indexed(segment, end)
            self._shut()
            if end.segment > trimmed.first_segment:
                place = self._indexed(trimmed.first_segment, end)
                self._expected = None if place.offset else trimmed.first_sequence
                return place
        self._expected = trimmed.first_sequence
        return trimmed.start

    def _check_order(self, segment: int, base_sequence: int, end: Position) -> None:
        """Reading begins in the middle, so no gap would show: that the segment before begins earlier is asked here."""
        self._open(segment - 1)
        before = self._verify(Position(segment - 1, 0), end).base_sequence
        if before > base_sequence:
            reason = (
                f"it begins at sequence {base_sequence:,}, the segment before at {before:,}: the files were exchanged"
            )
            raise JournalDamaged(self.name, segment, 0, reason)
        self._shut()

    def _indexed(self, segment: int, end: Position) -> Position:
        """Within a segment that begins before the wanted sequence: as far on as its seal knows, if it has one."""
        seal = read_seal(self._directory, segment) if segment < end.segment else None
        place = Position(segment, seal.offset_before(self._from) if seal is not None else 0)
        if place.offset:
            try:
                if self._verify(place, end).base_sequence < self._from:
                    return place
            except JournalDamaged:
                pass  # of the seal or of the segment: reading from its start says which
        return Position(segment, 0)

    def _step(self, position: Position, end: Position) -> Frame | None:
        """Move over one frame; None when it lies before the wanted sequence."""
        header = self._verify(position, end)
        if self._expected not in (None, header.base_sequence):
            reason = f"sequence {header.base_sequence:,} where {self._expected:,} must follow: frames are missing"
            raise JournalDamaged(self.name, *position, reason)
        at = position.offset - self._window_at
        frame = None
        if header.base_sequence >= self._from or header.next_sequence > self._from:
            try:
                frame = decode_body(self.name, self._window, at, header)
            except FrameError as error:
                raise JournalDamaged(self.name, *position, str(error)) from error
        self._expected = header.next_sequence
        self._last = memoryview(self._window)[at : header.end]
        if header.seals:
            self._shut()
            self._position = Position(position.segment + 1, 0)
        else:
            self._position = Position(position.segment, self._window_at + header.end)
        return frame

    def _verify(self, position: Position, end: Position) -> Header:
        """The verified header of the frame at ``position``; afterwards the window holds the whole frame."""
        limit = end.offset if position.segment == end.segment else None
        if self._segment_fd < 0:
            self._open(position.segment)
        try:
            self._load(position.offset, HEADER_BYTES, limit)
            self._load(position.offset, frame_length(self._window, position.offset - self._window_at), limit)
            return verify_frame(self._window, position.offset - self._window_at, len(self._window))
        except FrameError as error:
            raise JournalDamaged(self.name, *position, str(error)) from error

    def _load(self, offset: int, size: int, limit: int | None) -> None:
        """Have the window hold ``size`` bytes from ``offset``, or as many as there are below ``limit``."""
        if self._window_at <= offset and offset + size <= self._window_at + len(self._window):
            return
        size = max(size, _READ_BYTES)
        self._window = os.pread(self._segment_fd, size if limit is None else min(size, limit - offset), offset)
        self._window_at = offset

    def _open(self, segment: int) -> None:
        self._shut()
        path = segment_path(self._directory, segment)
        try:
            self._segment_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            trimmed = trimmed_of(self._directory)
            if segment < trimmed.first_segment:
                raise Truncated(self.name, self._expected or self._from, trimmed.first_sequence) from None
            raise JournalDamaged(self.name, segment, 0, f"{path} is missing below the durable end") from None

    def _shut(self) -> None:
        if self._segment_fd >= 0:
            os.close(self._segment_fd)
        self._segment_fd = -1
        self._window, self._window_at = b"", 0
