"""What every log offers: journals with one writer and many readers, and a way to wait for news.

Guarantees, on every implementation (one contract suite runs on all):
- *Acknowledged means durable and visible.* ``append`` returns when the frame is as durable as the log was asked to
  make it and any reader can see it; nobody ever reads what is not durable.
- *One writer.* A second ``open_writer`` of a held journal is ``JournalFenced``; every opening has a higher epoch than
  all before it, whether or not those wrote anything.
- *Frames are atomic*, in order, and sequences have no gaps.
- *Damage is refused by name*, never skipped.
- *What was deleted is not missing in silence*: whoever begins to read before the first kept event gets ``Truncated``.
- *Each frame names the one before it* by its digest, so that the last frame's stands for the whole journal.

What events mean, and who may read what, is left to others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from t1actors.log.errors import (
    FrameRefused,
    JournalDamaged,
    JournalFailed,
    JournalFenced,
    LogError,
    LogIncomplete,
    Truncated,
    WatchUnavailable,
)
from t1actors.log.frame import MAX_FRAME_BYTES, CommitHead, Frame, InputRun
from t1actors.log.snapshots import Snapshot

__all__ = [
    "MAX_FRAME_BYTES",
    "CommitHead",
    "Frame",
    "FrameRefused",
    "InputRun",
    "JournalDamaged",
    "JournalFailed",
    "JournalFenced",
    "JournalReader",
    "JournalWriter",
    "Log",
    "LogError",
    "LogIncomplete",
    "Snapshot",
    "Truncated",
    "Watch",
    "WatchUnavailable",
    "check_journal_name",
    "names_journal",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def names_journal(name: str) -> bool:
    """Whether ``name`` can name a journal."""
    return _NAME.fullmatch(name) is not None


def check_journal_name(name: str) -> str:
    """``name`` if it can name a journal (it becomes a directory and a subject). Raises ``ValueError``."""
    if not names_journal(name):
        raise ValueError(
            f"journal name {name!r}: use 1 to 100 letters, digits, dots, dashes, underscores; a letter or digit first"
        )
    return name


class JournalWriter(Protocol):
    """The one writer of a journal. Not for concurrent use: one append at a time."""

    @property
    def name(self) -> str:
        """The journal's name."""
        ...

    @property
    def epoch(self) -> int:
        """This opening's number: higher than every earlier one's."""
        ...

    @property
    def next_sequence(self) -> int:
        """The sequence that the next event gets."""
        ...

    @property
    def last_frame(self) -> bytes:
        """The digest of the journal's last frame; empty when it has none."""
        ...

    def append(self, head: CommitHead, events: Sequence[bytes]) -> int:
        """Write one frame and return its first event's sequence once it is durable and visible; ``head.previous`` is for
        the journal to fill in. Blocks (call it in a worker thread). Raises ``FrameRefused`` (nothing happened) or
        ``JournalFailed`` (the process must end)."""
        ...

    def keep(self, snapshot: Snapshot) -> None:
        """Keep ``snapshot``, of a frame that was appended, and the one before it. Blocks. Raises ``OSError``: nothing of the
        journal is harmed."""
        ...

    def close(self) -> None:
        """Give the journal up, so that another may open it. Idempotent."""
        ...


class JournalReader(Protocol):
    """Reads one journal in order. Not for concurrent use."""

    @property
    def name(self) -> str:
        """The journal's name."""
        ...

    @property
    def next_sequence(self) -> int:
        """The sequence behind the last frame read (at first: where reading was asked to start)."""
        ...

    def read(self, *, max_frames: int = 256) -> list[Frame]:
        """The next durable frames, at most ``max_frames``; empty when there are none now. Never blocks on the writer.
        Raises ``JournalDamaged``, and ``Truncated`` when what is wanted next was deleted."""
        ...

    def last_digest(self) -> bytes:
        """The digest (``frame.frame_digest``) of the frame that a ``read`` with ``max_frames=1`` has just returned."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


class Watch(Protocol):
    """Wakes when a watched journal grew. One task waits at a time."""

    def add(self, journal: str) -> None:
        """Watch ``journal`` too; it need not exist yet. Read it after adding it: older frames wake nobody."""
        ...

    async def wait(self, timeout_s: float) -> None:
        """Return once a watched journal grew since the last wait (at once when it already has), else after
        ``timeout_s``: the slow poll. May return early; readers decide what is new."""
        ...


class Log(Protocol):
    """A run's journals."""

    def open_writer(self, name: str) -> JournalWriter:
        """Recover the journal (or start it) and hold it. Raises ``JournalFenced``, ``JournalDamaged`` or
        ``JournalFailed``."""
        ...

    def open_reader(self, name: str, *, from_sequence: int = 0) -> JournalReader:
        """Read from the first frame that starts at or reaches past ``from_sequence``: a frame is delivered whole. The
        journal need not exist: it reads as empty until it does."""
        ...

    def watch(self) -> AbstractAsyncContextManager[Watch]:
        """A watch for the block. Raises ``WatchUnavailable``."""
        ...

    def kept_from(self, name: str) -> int:
        """The first sequence that the journal still has: 0 unless its beginning was deleted (``log.trimmed``). Raises
        ``JournalDamaged``."""
        ...

    def snapshots(self, name: str) -> list[Snapshot]:
        """The whole snapshots that are kept of the journal's actor, the newest first."""
        ...

    def journals(self) -> list[str]:
        """The journals there are, sorted. For tools: actors learn of journals from ActorStarted."""
        ...
