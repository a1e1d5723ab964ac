"""The structural check behind ``t1 log check``: are journals and blobs whole, and do they fit together?

Journals: every durable frame's checksum and place; each frame names the digest of the one before it, and sealed segments
are what their seals say; sequences without gap, epochs never falling; each input applied once and none left out; what a
frame rests on exists, is stated transitively and only grows. Blobs: every one has the digest that names it. What events
mean is checked elsewhere. May run beside a live run: nothing is locked or changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from t1actors.log.blobs import FileBlobs
from t1actors.log.errors import JournalDamaged
from t1actors.log.file_reader import FileJournalReader
from t1actors.log.filelog import FileLog
from t1actors.log.frame import Frame
from t1actors.log.recovery import mapped
from t1actors.log.seal import read_seal, seal_path
from t1actors.log.segments import START, Position, end_path, list_segments, read_end_of, segment_path, written_bytes
from t1actors.log.trimmed import kept_segments, trimmed_of
from t1actors.payloads import BlobError


@dataclass(frozen=True)
class Problem:
    """Something wrong at a place; of a blob, ``journal`` is empty and the message names the file."""

    journal: str
    segment: int
    offset: int
    message: str


@dataclass(frozen=True, slots=True)
class _Checked:
    """What later checks need of a frame."""

    place: Position
    next_sequence: int
    vector: dict[str, int]
    read: dict[str, int]
    """Per other journal, the last sequence it consumed."""


@dataclass
class _Journal:
    reader: FileJournalReader
    problems: list[Problem] = field(default_factory=list[Problem])
    damaged: bool = False
    """What follows the damage was not read: that others rest on it is no problem of theirs."""
    begins: int = 0
    """The first sequence that is kept."""
    frames: list[_Checked] = field(default_factory=list[_Checked])
    epoch: int = 0
    digest: bytes = b""
    """Of the last frame."""
    chained: bool = False
    consumed: dict[str, int] = field(default_factory=dict[str, int])
    vector: dict[str, int] = field(default_factory=dict[str, int])

    def read_on(self, on_position: Callable[[Position], None] = lambda position: None) -> None:
        """Check, frame by frame, what is durable now."""
        try:
            while True:
                place = self.reader.position
                frames = self.reader.read(max_frames=1)
                if not frames:
                    return
                self._check(place, frames[0])
                self._chain(place, frames[0])
                on_position(self.reader.position)
        except JournalDamaged as damage:
            self.damaged = True
            self.problems.append(Problem(damage.journal, damage.segment, damage.offset, str(damage)))

    def _chain(self, place: Position, frame: Frame) -> None:
        previous = frame.head.previous
        if (previous or self.chained) and previous != self.digest:
            self.note(place, "names another frame than the one before it: one of the two was exchanged")
        self.digest = self.reader.last_digest()
        # A journal may have been begun by a version that wrote no chain.
        self.chained = self.chained or bool(previous)

    def note(self, place: Position, message: str) -> None:
        text = f"journal {self.reader.name}, segment {place.segment}, offset {place.offset:,}: {message}"
        self.problems.append(Problem(self.reader.name, *place, text))

    def vector_at(self, sequence: int) -> dict[str, int] | None:
        """What the frame that holds ``sequence`` rests on, nothing if it was deleted on purpose; None when there is none."""
        if sequence < self.begins:
            return {}
        index = bisect_right(self.frames, sequence, key=lambda frame: frame.next_sequence)
        return self.frames[index].vector if index < len(self.frames) else None

    def _check(self, place: Position, frame: Frame) -> None:
        if frame.epoch < self.epoch:
            self.note(place, f"epoch {frame.epoch} behind epoch {self.epoch}: a fenced writer wrote it")
        self.epoch = frame.epoch
        vector = frame.head.vector
        read: dict[str, int] = {}
        for run in frame.head.inputs:
            if run.last < run.first or run.emitted < 0:
                self.note(place, f"input run {run} is impossible")
            elif run.journal == frame.journal:
                if run.first < frame.base_sequence or run.last >= frame.next_sequence:
                    self.note(place, f"input run {run} names own results outside this frame")
            else:
                expected = self.consumed.get(run.journal, run.first)
                if run.first != expected:
                    self.note(place, f"input run {run}: sequence {expected:,} of {run.journal} was to be applied next")
                self.consumed[run.journal] = run.last + 1
                read[run.journal] = run.last
                if vector.get(run.journal, -1) < run.last:
                    self.note(place, f"input run {run} is not covered by the frame's vector")
        if sum(run.emitted for run in frame.head.inputs) > len(frame.events):
            self.note(place, "the input runs claim more emitted events than the frame has")
        for journal, sequence in self.vector.items():
            if vector.get(journal, -1) < sequence:
                self.note(place, f"rests on less of {journal} than the frame before it did (sequence {sequence:,})")
        self.vector = vector
        self.frames.append(_Checked(place, frame.next_sequence, vector, read))


@dataclass(frozen=True)
class CheckedJournals:
    """``problems`` by journal and place; ``digests``: of each journal's last frame, which stands for all of it; ``reads``: of
    which other journals its frames applied events."""

    problems: list[Problem]
    digests: dict[str, bytes]
    reads: dict[str, frozenset[str]]


def run_digest(digests: Mapping[str, bytes]) -> str:
    """The one digest (hex) of a run whose journals end with frames of ``digests``: blake3 over a line a journal, by name,
    ``<name> <hex>``."""
    lines = (f"{name} {digest.hex()}\n" for name, digest in sorted(digests.items()))
    return blake3("".join(lines).encode()).hexdigest()


def check_journals(log: FileLog, progress: Callable[[int, int], None] | None = None) -> CheckedJournals:
    """Read all journals of ``log`` and compare them. ``progress`` hears of bytes: read, total."""
    names = log.journals()
    problems = [*_endless(log, names), *_misfit(log, names)]
    journals: dict[str, _Journal] = {}
    for name in names:
        try:
            trimmed = trimmed_of(log.directory(name))
        except JournalDamaged as damage:
            problems.append(Problem(damage.journal, damage.segment, damage.offset, str(damage)))
            continue
        begins = trimmed.first_sequence
        reader = log.open_reader(name, from_sequence=begins)
        journals[name] = _Journal(reader, begins=begins, digest=trimmed.previous)
    try:
        if progress is None:
            for journal in journals.values():
                journal.read_on()
        else:
            _read_all(log, journals, progress)
        seen = {name: len(journal.frames) for name, journal in journals.items()}
        # In a live run a frame read late may rest on one written after its journal was read: catch up before comparing.
        for journal in journals.values():
            if not journal.problems:
                journal.read_on()
        for name, journal in journals.items():
            _compare(name, journal.frames[: seen[name]], journals)
            problems.extend(sorted(journal.problems, key=lambda problem: (problem.segment, problem.offset)))
    finally:
        for journal in journals.values():
            journal.reader.close()
    return CheckedJournals(
        problems,
        digests={name: journal.digest for name, journal in journals.items()},
        reads={name: frozenset(journal.consumed) for name, journal in journals.items()},
    )


def _read_all(log: FileLog, journals: dict[str, _Journal], progress: Callable[[int, int], None]) -> None:
    sizes = {name: _segment_sizes(log.directory(name)) for name in journals}
    total = sum(sum(segments.values()) for segments in sizes.values())
    before = 0
    progress(0, total)
    for name, journal in journals.items():
        segments, start = sizes[name], before

        def on_position(position: Position, segments: dict[int, int] = segments, start: int = start) -> None:
            whole = sum(size for segment, size in segments.items() if segment < position.segment)
            progress(start + whole + position.offset, total)

        journal.read_on(on_position)
        before += sum(segments.values())
        progress(before, total)


def _segment_sizes(directory: Path) -> dict[int, int]:
    """How much of each segment there is to read."""
    end = read_end_of(directory) or START
    segments = kept_segments(directory, trimmed_of(directory))
    sizes = {segment: segment_path(directory, segment).stat().st_size for segment in segments}
    return {n: min(size, end.offset) if n == end.segment else size for n, size in sizes.items() if n <= end.segment}


def unacknowledged(log: FileLog) -> dict[str, int]:
    """By journal that nobody is writing, the bytes behind its durable end that are not zeros: whole frames perhaps, where a
    machine was lost and the end, which is never flushed, lags; or a torn tail."""
    found = {name: _behind(log.directory(name)) for name in log.journals() if log.holder(name) is None}
    return {name: size for name, size in found.items() if size}


def _behind(directory: Path) -> int:
    end = read_end_of(directory) or START
    total = 0
    for segment in list_segments(directory):
        if segment >= end.segment:
            data = segment_path(directory, segment).read_bytes()
            total += written_bytes(data[end.offset if segment == end.segment else 0 :])
    return total


def check_blobs(blobs: FileBlobs, progress: Callable[[int, int], None] | None = None) -> list[Problem]:
    """Every blob whose bytes are not what its name says. ``progress`` hears of blobs: checked, total."""
    problems: list[Problem] = []
    digests = list(blobs.digests())
    for done, digest in enumerate(digests):
        if progress is not None:
            progress(done, len(digests))
        try:
            blobs.get(digest).release()
        except BlobError as error:
            problems.append(Problem("", 0, 0, str(error)))
    return problems


def _endless(log: FileLog, names: list[str]) -> Iterator[Problem]:
    """Directories with frames but no durable end."""
    if not log.root.is_dir():
        return
    for directory in sorted(path for path in log.root.iterdir() if path.is_dir() and path.name not in names):
        if list_segments(directory):
            message = f"segments are there but the durable end {end_path(directory)} is missing; restore it from a copy"
            yield Problem(directory.name, *START, message)


def _misfit(log: FileLog, names: list[str]) -> Iterator[Problem]:
    """Sealed segments that are not what their seals say."""
    for name in names:
        directory = log.directory(name)
        for segment in list_segments(directory):
            path = seal_path(directory, segment)
            if not path.exists():
                continue
            seal = read_seal(directory, segment)
            with mapped(segment_path(directory, segment)) as data:
                if seal is None or not seal.holds(data):
                    message = (
                        f"journal {name}, segment {segment}: not the file that its seal {path} was written for; if no other "
                        "error names this segment, the seal is what is damaged: delete it, and it is made again"
                    )
                    yield Problem(name, segment, 0, message)


def _compare(name: str, frames: list[_Checked], journals: dict[str, _Journal]) -> None:
    """Whether what ``frames`` rest on exists, and is stated in full."""
    note = journals[name].note
    absent: set[str] = set()
    for frame in frames:
        for other, sequence in frame.vector.items():
            if other not in journals:
                if other not in absent:
                    note(frame.place, f"rests on journal {other}, which is not there")
                absent.add(other)
            elif journals[other].vector_at(sequence) is None and not journals[other].damaged:
                note(frame.place, f"rests on sequence {sequence:,} of {other}, which does not hold it")
        for other, sequence in frame.read.items():
            rests = journals[other].vector_at(sequence) if other in journals else None
            for further, least in (rests or {}).items():
                if further != name and frame.vector.get(further, -1) < least:
                    note(frame.place, f"rests on {other} but not on what that rests on: {further} up to {least:,}")
