"""All journals as one stream, for tools: a topological order of the frames, ties by journal name.

Guarantees: a frame comes after everything it rests on; the order depends on what the journals hold and on nothing else;
a log in which something is missing raises ``LogIncomplete`` after all that can be shown, never ends early in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from t1actors.log.causal import CausalReader
from t1actors.log.errors import LogIncomplete
from t1actors.log.frame import Frame
from t1actors.log.interface import Log


@dataclass(frozen=True, slots=True)
class Entry:
    """One event: ``raw`` is its MessagePack, ``sequence`` its place in ``frame.journal``."""

    frame: Frame
    sequence: int
    raw: bytes


def merged_frames(log: Log) -> Iterator[Frame]:
    """Every frame there is now, those without events too; of journals whose beginning was deleted, from the first that is
    kept. Raises ``LogIncomplete``, ``JournalDamaged``."""
    reader = CausalReader(log, positions={name: log.kept_from(name) for name in log.journals()})
    try:
        while frames := reader.poll():
            yield from frames
        for frame, journal, sequence in reader.held():
            raise LogIncomplete(
                f"journal {frame.journal}, frame at sequence {frame.base_sequence:,}: it rests on sequence {sequence:,} of "
                f"journal {journal}, which ends at {reader.position(journal):,}; restore a longer copy of {journal}"
            )
    finally:
        reader.close()


def merged(log: Log) -> Iterator[Entry]:
    """Every event there is now. Raises as ``merged_frames``."""
    return entries(merged_frames(log))


def entries(frames: Iterable[Frame]) -> Iterator[Entry]:
    """The events of ``frames``, one by one."""
    for frame in frames:
        for index, raw in enumerate(frame.events):
            yield Entry(frame, frame.base_sequence + index, raw)
