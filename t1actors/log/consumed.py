"""What other journals have read of one, found without reading them whole.

A frame's vector is transitive and only grows, so the last frame of each journal says it all. Guarantees nothing about
damaged journals: their own opening reports them, here they count as having read nothing.
"""

from __future__ import annotations

from pathlib import Path

from t1actors.log.frame import Frame, FrameError, decode_body, frame_length, verify_frame
from t1actors.log.recovery import Consumed, mapped
from t1actors.log.segments import end_path, list_segments, read_end_of, segment_path


def consumed_by_others(directory: Path) -> Consumed | None:
    """The highest sequence of the journal in ``directory`` that a journal beside it rests on."""
    read: list[Consumed] = []
    for other in sorted(directory.parent.iterdir()):
        if other != directory and end_path(other).exists():
            frame = _last_frame(other)
            if frame is not None and directory.name in frame.head.vector:
                read.append(Consumed(other.name, frame.head.vector[directory.name]))
    return max(read, key=lambda consumed: consumed.sequence, default=None)


def _last_frame(directory: Path) -> Frame | None:
    """The last whole frame: found by stepping over frames by their length up to the durable end, which is not flushed and may
    lag, and from there on by verifying each."""
    end = read_end_of(directory)
    if end is None or not segment_path(directory, end.segment).exists():
        return None
    found: Frame | None = None
    for segment in list_segments(directory):
        if segment >= end.segment:
            found = _last_of(directory, segment, end.offset if segment == end.segment else 0) or found
    return found


def _last_of(directory: Path, segment: int, durable: int) -> Frame | None:
    """The last whole frame of a segment of which ``durable`` bytes are durable."""
    last = None
    with mapped(segment_path(directory, segment)) as data:
        offset = 0
        try:
            while offset < min(durable, len(data)):
                last, offset = offset, offset + frame_length(data, offset)
            while offset < len(data):
                header = verify_frame(data, offset, len(data))
                last, offset = offset, header.end
        except FrameError:
            pass  # a torn tail, or damage that the journal's own opening reports
        try:
            return (
                None if last is None else decode_body(directory.name, data, last, verify_frame(data, last, len(data)))
            )
        except FrameError:
            return None
