"""What can go wrong with the log. Every message names the journal (or blob), the place and the next step."""

from __future__ import annotations

from pathlib import Path


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


class Truncated(LogError):
    """The beginning of a journal was deleted on purpose (``t1 log trim``, ``run.keep_steps``), and somebody asked for it."""

    def __init__(self, journal: str, wanted: int, kept_from: int) -> None:
        super().__init__(
            f"journal {journal}: event {wanted:,} was asked for and it is kept from event {kept_from:,} on; what was before "
            "it was deleted by `t1 log trim` or run.keep_steps. Read from there (`t1 log check` says what each journal "
            "still has), or use a copy made before"
        )
        self.journal = journal
        self.wanted = wanted
        self.kept_from = kept_from


class JournalFenced(LogError):
    """Another writer holds the journal: a journal has one writer."""


class JournalFailed(LogError):
    """A write or a flush failed. What the disk holds is unknown until the journal is opened again, so the process
    that gets this must end: no append is ever tried again on this writer."""


class LogIncomplete(LogError):
    """A frame rests on a frame that no journal holds."""


class NoteDamaged(LogError):
    """A file beside the log that says what the run directory holds cannot be read."""

    def __init__(self, path: Path, reason: object, *, advice: str) -> None:
        super().__init__(f"{path} cannot be read ({reason}); {advice}")


class WatchUnavailable(LogError):
    """The kernel refused an inotify watch."""
