"""Small heads, events and journals that the log's tests share."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead, Frame, InputRun
from t1actors.log.interface import JournalReader, Log
from t1actors.log.segments import Position, end_path, segment_path


def event(value: object) -> bytes:
    return msgspec.msgpack.encode({"kind": "Counted", "value": value})


def resting_on(**vector: int) -> CommitHead:
    """A head that rests on these sequences, by journal."""
    return CommitHead(vector=vector)


def consuming(journal: str, first: int, last: int, emitted: int = 0, **vector: int) -> CommitHead:
    return CommitHead(inputs=(InputRun(journal, first, last, emitted),), vector={journal: last, **vector})


def read_all(reader: JournalReader) -> list[Frame]:
    frames: list[Frame] = []
    while more := reader.read():
        frames += more
    return frames


def frames_of(log: Log, name: str) -> list[Frame]:
    reader = log.open_reader(name)
    try:
        return read_all(reader)
    finally:
        reader.close()


@dataclass(frozen=True)
class Sample:
    """A written journal, and where each of its frames ends."""

    root: Path
    frames: list[Frame]
    ends: list[Position]
    starts: list[Position]

    @property
    def directory(self) -> Path:
        return self.root / "a"

    def segment(self, number: int = 0) -> bytes:
        return segment_path(self.directory, number).read_bytes()

    def copy(self, to: Path) -> Path:
        """The journal's directory in a fresh log root ``to``."""
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.directory, to / "a")
        return to / "a"

    def whole_below(self, place: Position) -> int:
        """How many frames lie wholly below ``place``."""
        return sum(end <= place for end in self.ends)


def write_sample(root: Path, counts: tuple[int, ...], *, segment_bytes: int = 1 << 20) -> Sample:
    """A journal ``a`` whose frames have so many events each."""
    log = FileLog(root, "process", segment_bytes=segment_bytes)
    writer = log.open_writer("a")
    starts: list[Position] = []
    ends: list[Position] = []
    for index, count in enumerate(counts):
        writer.append(resting_on(b=index), [event(index * 100 + n) for n in range(count)])
        end = read_position(root / "a")
        starts.append(ends[-1] if ends and ends[-1].segment == end.segment else Position(end.segment, 0))
        ends.append(end)
    writer.close()
    return Sample(root, frames_of(log, "a"), ends, starts)


def read_position(directory: Path) -> Position:
    value = int.from_bytes(end_path(directory).read_bytes(), "little")
    return Position(value >> 32, value & 0xFFFFFFFF)


def set_position(directory: Path, place: Position) -> None:
    end_path(directory).write_bytes((place.segment << 32 | place.offset).to_bytes(8, "little"))
