"""Zeros in front of a growing segment, so that flushing a frame is flushing its bytes and nothing else.

A frame that is appended changes the file's size and its extents, and its flush waits for the file system's own journal too. A
frame that is written over zeros that lie on the disk already waits for its own bytes alone (docs/decisions/017).

Guarantees: writes only behind the frames, and not behind the segment's configured size: the frame that seals a segment starts
there or later, so a sealed segment never has zeros at its end. Flushes nothing: zeros are flushed with
the frame that they were written behind. A disk that has no room for them is no failure: whether it has room for a frame, the
frame's own write says.
"""

from __future__ import annotations

import errno
import os

from t1actors.log.segments import write_all

LEAST_BYTES = 128 * 1024
MOST_BYTES = 768 * 1024
"""What one flush may have to write besides its frame: most of a millisecond."""
FRAMES_AHEAD = 128
LARGEST_FRAME_BYTES = 128 * 1024
"""A larger frame takes so long to write that changing its file's size matters little, and uses up its zeros at once."""
_BLOCK_BYTES = 4096
_ZEROS = memoryview(bytes(MOST_BYTES))
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class ZerosAhead:
    """Of one segment, open for writing as ``descriptor``, whose frames are to fill ``segment_bytes``."""

    def __init__(self, descriptor: int, segment_bytes: int) -> None:
        self._descriptor = descriptor
        self._segment_bytes = segment_bytes
        self._until = 0

    def follow(self, end: int, frame_bytes: int) -> None:
        """The last frame, of ``frame_bytes``, ends at ``end``. When it used up the zeros, write more, as suits frames like
        it. Raises ``OSError``, but not for want of room."""
        if end <= self._until or frame_bytes > LARGEST_FRAME_BYTES:
            return
        ahead = min(max(FRAMES_AHEAD * frame_bytes, LEAST_BYTES), MOST_BYTES)
        until = min(end + ahead, self._segment_bytes)
        until -= until % _BLOCK_BYTES
        if until <= end:
            return
        # Also when they don't fit: tried again once the frames have come so far.
        self._until = until
        try:
            write_all(self._descriptor, _ZEROS[: until - end], end)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise

    def cut(self, end: int) -> bool:
        """Have the file end at ``end``, where the last frame ends. Returns whether that changed it: then flush it. Raises
        ``OSError``."""
        if end >= self._until:
            return False
        self._until = 0
        os.ftruncate(self._descriptor, end)
        return True
