"""What can go wrong with the log. Every message names the journal (or blob), the place and the next step."""

from __future__ import annotations


class LogError(Exception):
    """Base of this folder's errors (a blob's trouble is ``payloads.BlobError``)."""


class FrameRefused(LogError, ValueError):
    """A frame that must not be written: too large, or its events are not MessagePack. A programmer's mistake; nothing
    was written and the journal goes on."""


class JournalDamaged(LogError):
    """Bytes that were acknowledged are bad or missing. Nothing is dropped or repaired in silence: the journal is
    refused."""

    def __init__(self, journal: str, segment: int, offset: int, reason: str, *, advice: str = "") -> None:
        advice = (
            advice or "restore this file from a copy, or save what is whole with `t1 log salvage`; nothing was changed"
        )
        super().__init__(f"journal {journal}, segment {segment}, offset {offset:,}: {reason}; {advice}")
        self.journal = journal
        self.segment = segment
        self.offset = offset
        self.reason = reason


class JournalFenced(LogError):
    """Another writer holds the journal: a journal has one writer."""


class JournalFailed(LogError):
    """A write or a flush failed. What the disk holds is unknown until the journal is opened again, so the process
    that gets this must end: no append is ever tried again on this writer."""


class LogIncomplete(LogError):
    """A frame rests on a frame that no journal holds."""


class WatchUnavailable(LogError):
    """The kernel refused an inotify watch."""
