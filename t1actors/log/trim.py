"""How much of a journal's beginning may go, in whole sealed segments, and making it go.

Guarantees: nothing goes that ends at or behind a sequence that must stay, or that could rest on an event of another journal
that marks what must stay; a journal keeps at least its last segment; where it begins afterwards is written down, flushed,
before anything is deleted (``log.trimmed``). Which sequences must stay is the caller's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from t1actors.log.errors import JournalDamaged
from t1actors.log.frame import Frame, FrameError, decode_body, verify_frame
from t1actors.log.recovery import mapped
from t1actors.log.seal import read_seal
from t1actors.log.segments import Position, read_end_of, segment_path
from t1actors.log.trimmed import Trimmed, delete_before, kept_segments, trimmed_of, write_trimmed


@dataclass(frozen=True)
class Mark:
    """Event ``sequence`` of ``journal``: what rests on it, or could, must stay."""

    journal: str
    sequence: int


@dataclass(frozen=True)
class Beginning:
    """Of a journal: where it could begin, and the bytes of the segments before that."""

    trimmed: Trimmed
    size_bytes: int


def beginning_of(directory: Path, *, before: int, mark: Mark) -> Beginning:
    """The latest beginning for the journal in ``directory`` such that all events from ``before`` on stay, and every frame
    that rests on ``mark``; its present one when nothing can go. Raises ``JournalDamaged``, ``OSError``."""
    trimmed = trimmed_of(directory)
    # What an interrupted deletion left goes, too.
    size = sum(_size(directory, n) for n in _left_behind(directory, trimmed))
    end = read_end_of(directory)
    for segment in kept_segments(directory, trimmed):
        seal = read_seal(directory, segment)
        if end is None or segment >= end.segment or seal is None or seal.next_sequence >= before:
            break
        following = _first_frame(directory, segment + 1, end)
        # Vectors only grow: when the frame behind does not rest on the mark, none before it does.
        if following is None or following.head.vector.get(mark.journal, -1) >= mark.sequence:
            break
        trimmed = Trimmed(first_segment=segment + 1, first_sequence=seal.next_sequence, last_frame=seal.last_frame)
        size += _size(directory, segment)
    return Beginning(trimmed, size)


def begin_at(directory: Path, trimmed: Trimmed) -> None:
    """Let the journal begin there, and delete what is before it. Doing it again ends what was interrupted. Raises
    ``OSError``."""
    if trimmed.first_segment > trimmed_of(directory).first_segment:
        write_trimmed(directory, trimmed)
    delete_before(directory, trimmed)


def _left_behind(directory: Path, trimmed: Trimmed) -> list[int]:
    return [n for n in range(trimmed.first_segment) if segment_path(directory, n).exists()]


def _size(directory: Path, segment: int) -> int:
    return segment_path(directory, segment).stat().st_size


def _first_frame(directory: Path, segment: int, end: Position) -> Frame | None:
    """None: none is durable yet."""
    if Position(segment, 0) >= end:
        return None
    try:
        with mapped(segment_path(directory, segment)) as data:
            return decode_body(directory.name, data, 0, verify_frame(data, 0, len(data)))
    except FileNotFoundError:
        return None
    except FrameError as error:
        raise JournalDamaged(directory.name, segment, 0, str(error)) from error
