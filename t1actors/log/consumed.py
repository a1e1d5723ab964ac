"""What other journals have read of one, found without reading them whole.

A frame's vector is transitive and only grows, so the last frame of each journal says it all. Guarantees nothing about
damaged journals: their own opening reports them, here they count as having read nothing.
"""

from __future__ import annotations

from pathlib import Path

from t1actors.log.frame import Frame, FrameError, decode_body, frame_length, verify_frame
from t1actors.log.recovery import Consumed, mapped
from t1actors.log.segments import end_path, read_end_of, segment_path


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
    """The last durable frame: found by stepping over frames by their length, then verified."""
    end = read_end_of(directory)
    if end is None or not end.offset or not segment_path(directory, end.segment).exists():
        return None
    with mapped(segment_path(directory, end.segment)) as data:
        limit = min(end.offset, len(data))
        last = offset = 0
        try:
            while offset < limit:
                last, offset = offset, offset + frame_length(data[:limit], offset)
            return decode_body(directory.name, data, last, verify_frame(data, last, limit))
        except FrameError:
            return None
