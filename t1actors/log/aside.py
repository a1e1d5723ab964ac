"""Makes journals that end unevenly fit together again: what cannot stand is set aside, by name, never dropped.

For a run whose machine was lost under ``durability="process"``, and for copies (``t1 log salvage``, ``t1 log export``). Every
journal is read from its start to its first bad or missing frame; of what is whole the greatest consistent cut stays
(``log.cut``); the bytes behind it go to ``aside-<sequence>.bin`` in the journal's directory, as they were, and what they
are to ``aside-<sequence>.json``.

Guarantees: afterwards every journal opens, and every frame rests on frames that are there; snapshots of what is not there
any more are no snapshots any more (``aside-snapshot-<sequence>.t1s``). What is set aside is durable
before anything is cut off, so a crash in between loses nothing, and doing it again ends it. All journals are locked
meanwhile: ``JournalFenced`` when one is being written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from t1actors.log.cut import Mark, greatest_cut
from t1actors.log.frame import Frame, FrameError, decode_body, frame_digest, verify_frame
from t1actors.log.interface import names_journal
from t1actors.log.lock import JournalLock
from t1actors.log.recovery import mapped
from t1actors.log.seal import seal_path
from t1actors.log.segments import (
    START,
    Position,
    end_path,
    fsync_directory,
    list_segments,
    read_end_of,
    segment_path,
    write_end,
    written_bytes,
)
from t1actors.log.snapshots import decode_snapshot, snapshot_files
from t1actors.log.trimmed import WHOLE, Trimmed, kept_segments, trimmed_of


class Aside(msgspec.Struct, frozen=True, kw_only=True):
    """What was set aside of a journal: everything from event ``from_sequence`` on. ``events`` are those in whole frames,
    ``size_bytes`` is all of it; ``file`` in the journal's directory holds it, ``reason`` says why it could not stay."""

    journal: str
    from_sequence: int
    events: int
    size_bytes: int
    file: str
    reason: str

    def path(self, root: Path) -> Path:
        """Where it lies, of the log under ``root``."""
        return root / self.journal / self.file


def asides_of(root: Path) -> list[Aside]:
    """All that was ever set aside under ``root``. Raises ``msgspec.DecodeError``."""
    notes = sorted(root.glob("*/aside-*.json"))
    return [msgspec.json.decode(note.read_bytes(), type=Aside) for note in notes]


RESTS_ON_LOST = "it rests on what other journals do not have"
GROUND_LOST = "what its actor would have to go on from is kept no longer"


@dataclass
class _Whole:
    """A journal's frames up to the first that is bad or missing, and why they end there (empty: they are all there)."""

    marks: list[Mark] = field(default_factory=list[Mark])
    refused: bool = False
    """It is the caller's objection that ends them."""
    digests: list[bytes] = field(default_factory=list[bytes])
    ends: list[Position] = field(default_factory=list[Position])
    grounds: list[bool | None] = field(default_factory=list[bool | None])
    reason: str = ""
    trimmed: Trimmed = WHOLE

    def end(self, count: int) -> Position:
        """Where the first ``count`` frames end."""
        return self.ends[count - 1] if count else self.trimmed.start

    def next_sequence(self, count: int) -> int:
        """The sequence behind the first ``count`` frames."""
        return self.marks[count - 1].next_sequence if count else self.trimmed.first_sequence


def always_stands(frame: Frame) -> str:
    """For logs whose blobs nobody doubts."""
    del frame
    return ""


def no_ground(frame: Frame) -> None:
    """For logs from which nobody will go on."""
    del frame


def set_aside(
    root: Path,
    *,
    objection: Callable[[Frame], str] = always_stands,
    ground: Callable[[Frame], bool | None] = no_ground,
) -> list[Aside]:
    """Settle all journals under ``root``. Raises ``JournalFenced``, ``JournalDamaged`` (a lock file), ``OSError``.

    Args:
        objection: why a frame cannot stand for reasons of its own (a blob that it names is damaged), or nothing.
        ground: whether a frame records something that its actor could go on from, and if so, whether that is still there
            (the state after an update may be kept no longer). Of each journal the last such frame in the cut must be there.
            Asked for each frame in its journal's order.
    """
    directories = [path for path in sorted(root.iterdir()) if path.is_dir() and _is_journal(path)]
    with ExitStack() as held:
        for directory in directories:
            held.callback(JournalLock(directory.name, directory).release)
        journals = {directory.name: _read(directory, objection, ground) for directory in directories}
        kept = _kept(journals)
        # First all is written down, then all is cut.
        asides = [_write_aside(directory, journals[directory.name], kept[directory.name]) for directory in directories]
        ends = {name: whole.next_sequence(kept[name]) for name, whole in journals.items()}
        for directory in directories:
            _move_snapshots(directory, set(journals[directory.name].digests[: kept[directory.name]]), ends)
            _cut(directory, journals[directory.name].end(kept[directory.name]))
    return [aside for aside in asides if aside is not None]


def look_through(root: Path, objection: Callable[[Frame], str]) -> set[str]:
    """Show ``objection`` every whole frame of each journal up to one that it objects to, whatever the durable ends say, and
    change nothing; returns the journals in which it objected. Raises ``JournalDamaged``, ``OSError``."""
    directories = [path for path in sorted(root.iterdir()) if path.is_dir() and _is_journal(path)]
    return {path.name for path in directories if _read(path, objection, no_ground).refused}


def _is_journal(path: Path) -> bool:
    return names_journal(path.name) and (end_path(path).exists() or bool(list_segments(path)))


def _kept(journals: dict[str, _Whole]) -> dict[str, int]:
    """The greatest cut in which each journal's last ground is there."""
    limits = {name: len(whole.marks) for name, whole in journals.items()}
    while True:
        kept = greatest_cut(
            {name: whole.marks[: limits[name]] for name, whole in journals.items()},
            begins={name: whole.trimmed.first_sequence for name, whole in journals.items()},
        )
        limits = dict(kept)
        for name, whole in journals.items():
            last = next((n for n in reversed(range(kept[name])) if whole.grounds[n] is not None), None)
            if last is not None and not whole.grounds[last]:
                limits[name] = last
        if limits == kept:
            return kept


def _read(directory: Path, objection: Callable[[Frame], str], ground: Callable[[Frame], bool | None]) -> _Whole:
    trimmed = trimmed_of(directory)
    found = _Whole(trimmed=trimmed)
    sealed, following, epoch = True, trimmed.first_sequence, 0
    digest, chained = trimmed.previous, False
    durable = read_end_of(directory) or START
    segments = kept_segments(directory, trimmed)
    for number, segment in enumerate(segments, trimmed.first_segment):
        last = segment == segments[-1]
        if segment != number or not sealed:
            found.reason = f"the frame that ends segment {number - 1} is missing"
            return found
        with mapped(segment_path(directory, segment)) as data:
            offset, sealed = 0, False
            while offset < len(data):
                try:
                    if sealed:
                        raise FrameError("bytes behind the frame that ends the segment")
                    header = verify_frame(data, offset, len(data))
                    frame = decode_body(directory.name, data, offset, header)
                    if header.base_sequence != following or header.epoch < epoch:
                        raise FrameError(f"sequence {header.base_sequence:,} where {following:,} must follow")
                    if (chained or frame.head.previous) and frame.head.previous != digest:
                        raise FrameError("it names another frame than the one before it")
                    if refused := objection(frame):
                        found.refused = True
                        raise FrameError(refused)
                except FrameError as error:
                    if last and not written_bytes(data[offset:]):
                        break  # the zeros that the writer keeps ahead of its frames
                    place = f"segment {segment}, offset {offset:,}"
                    torn = Position(segment, offset) >= durable and not found.refused
                    found.reason = f"{place}: never acknowledged, and {error}" if torn else f"{place}: {error}"
                    return found
                digest, chained = frame_digest(data[offset : header.end]), chained or bool(frame.head.previous)
                offset, sealed, following, epoch = header.end, header.seals, header.next_sequence, header.epoch
                found.digests.append(digest)
                found.marks.append(Mark(following, frame.head.vector))
                found.ends.append(Position(segment, offset))
                found.grounds.append(ground(frame))
    if found.end(len(found.ends)) < durable:
        found.reason = (
            f"acknowledged up to segment {durable.segment}, offset {durable.offset:,}, and missing from here on"
        )
    return found


def _write_aside(directory: Path, whole: _Whole, count: int) -> Aside | None:
    """The bytes behind the first ``count`` frames, flushed to a file of their own; None when nothing is or was there."""
    start = whole.end(count)
    rest = b"".join(
        segment_path(directory, segment).read_bytes()[start.offset if segment == start.segment else 0 :]
        for segment in list_segments(directory)
        if segment >= start.segment
    )
    if not whole.reason and not written_bytes(rest):
        return None
    first = whole.next_sequence(count)
    if count == len(whole.marks):
        reason = whole.reason
    elif not all(whole.grounds[n] is not False for n in range(count, len(whole.marks))):
        reason = GROUND_LOST
    else:
        reason = RESTS_ON_LOST
    number, path = 1, directory / f"aside-{first}.bin"
    while path.exists() and path.read_bytes() != rest:  # of another time; the same bytes are this one's, cut short
        number += 1
        path = directory / f"aside-{first}-{number}.bin"
    aside = Aside(
        journal=directory.name,
        from_sequence=first,
        events=whole.marks[-1].next_sequence - first if whole.marks else 0,
        size_bytes=len(rest),
        file=path.name,
        reason=reason,
    )
    for written, content in ((path, rest), (path.with_suffix(".json"), msgspec.json.encode(aside))):
        with written.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    fsync_directory(directory)
    return aside


def _move_snapshots(directory: Path, frames: Collection[bytes], ends: Mapping[str, int]) -> None:
    """Take snapshots out of the way that are of another frame than ``frames``, or have read more than there is."""
    for path in snapshot_files(directory):
        snapshot = decode_snapshot(path.read_bytes())
        if snapshot is None:
            continue  # nobody reads it
        ahead = any(position > ends.get(journal, 0) for journal, position in snapshot.positions.items())
        if ahead or snapshot.last_frame not in frames:
            os.replace(path, path.with_name(f"aside-{path.name}"))


def _cut(directory: Path, good: Position) -> None:
    """The journal ends at ``good``. From the end to the start, so that what is left is always a journal."""
    for segment in reversed(list_segments(directory)):
        path = segment_path(directory, segment)
        if segment >= good.segment:
            seal_path(directory, segment).unlink(missing_ok=True)  # of more than is left; opening makes it again
        if segment > good.segment:
            path.unlink()
        elif segment == good.segment:
            os.truncate(path, good.offset)
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(descriptor)
            os.close(descriptor)
    descriptor = os.open(end_path(directory), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        write_end(descriptor, good)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    fsync_directory(directory)
