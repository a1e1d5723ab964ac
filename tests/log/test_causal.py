"""Causal delivery and the merged view."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.log.causal import CausalReader
from t1actors.log.frame import CommitHead, Frame
from t1actors.log.interface import JournalReader, Log, LogIncomplete
from t1actors.log.memory import MemoryLog
from t1actors.log.merged import merged, merged_frames
from tests.log.support import event, resting_on


def names(frames: list[Frame]) -> str:
    return " ".join(f"{frame.journal}{frame.base_sequence}" for frame in frames)


class Delayed:
    """A log whose journals become visible when told."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.hidden: set[str] = set()

    def open_reader(self, name: str, *, from_sequence: int = 0) -> JournalReader:
        return _DelayedReader(self, self.log.open_reader(name, from_sequence=from_sequence))

    open_writer = property(lambda self: self.log.open_writer)
    watch = property(lambda self: self.log.watch)
    journals = property(lambda self: self.log.journals)


class _DelayedReader:
    def __init__(self, delayed: Delayed, reader: JournalReader) -> None:
        self._delayed = delayed
        self._reader = reader
        self.name = reader.name
        self.close = reader.close

    @property
    def next_sequence(self) -> int:
        return self._reader.next_sequence

    def read(self, *, max_frames: int = 256) -> list[Frame]:
        return [] if self.name in self._delayed.hidden else self._reader.read(max_frames=max_frames)


def test_a_frame_waits_until_everything_it_rests_on_was_delivered():
    log = Delayed(MemoryLog())
    a, b = log.open_writer("a"), log.open_writer("b")
    a.append(CommitHead(), [event(0), event(1)])
    b.append(CommitHead(), [event(0)])
    b.append(resting_on(a=1), [event(1)])
    b.append(CommitHead(), [event(2)])
    reader = CausalReader(log, positions={"a": 0, "b": 0})
    log.hidden.add("a")
    assert names(reader.poll()) == "b0"
    assert reader.poll() == []
    assert [(frame.base_sequence, journal, sequence) for frame, journal, sequence in reader.held()] == [(1, "a", 1)]
    assert (reader.position("a"), reader.position("b")) == (0, 1)
    log.hidden.clear()
    assert names(reader.poll()) == "a0 b1 b2"
    assert reader.held() == []
    assert (reader.position("a"), reader.position("b")) == (2, 3)


def test_what_a_frame_rests_on_outside_the_journals_read_holds_nothing_back():
    log = MemoryLog()
    log.open_writer("b").append(resting_on(unread=99, b=99), [event(0)])
    assert names(CausalReader(log, positions={"b": 0}).poll()) == "b0"


def test_a_frame_that_grew_behind_the_readers_back_is_found_in_the_same_poll():
    log = MemoryLog()
    a, b = log.open_writer("a"), log.open_writer("b")
    reader = CausalReader(log, positions={"a": 0, "b": 0})
    assert reader.poll() == []
    a.append(CommitHead(), [event(0)])
    b.append(resting_on(a=0), [event(0)])
    assert names(reader.poll()) == "a0 b0"


def test_ties_go_by_journal_name_and_every_frame_is_delivered_once():
    log = MemoryLog()
    for name in ("c", "a", "b"):
        writer = log.open_writer(name)
        for n in range(2):
            writer.append(CommitHead(), [event(n)])
    reader = CausalReader(log, positions={"b": 0, "c": 0, "a": 0})
    assert names(reader.poll()) == "a0 a1 b0 b1 c0 c1"
    assert reader.poll() == []


def test_a_journal_added_later_is_read_from_where_it_is_asked():
    log = MemoryLog()
    for name in ("a", "b"):
        writer = log.open_writer(name)
        for n in range(3):
            writer.append(CommitHead(), [event(n)])
    reader = CausalReader(log, positions={"b": 2})
    assert names(reader.poll()) == "b2"
    reader.add("a", 1)
    reader.add("b", 0)
    assert names(reader.poll()) == "a1 a2"


def test_polls_are_bounded_and_lose_nothing():
    log = MemoryLog()
    writer = log.open_writer("a")
    for n in range(10):
        writer.append(CommitHead(), [event(n)])
    reader = CausalReader(log, positions={"a": 0})
    assert [len(reader.poll(max_frames=4)) for _ in range(4)] == [4, 4, 2, 0]


def random_history(seed: int, frames: int) -> list[tuple[str, CommitHead, int]]:
    """Appends of actors that read each other: (journal, head, events). A vector is the transitive maximum."""
    chance = random.Random(seed)
    journals = "abcd"
    known: dict[str, dict[str, int]] = {name: {} for name in journals}
    history: dict[str, list[tuple[int, dict[str, int]]]] = {name: [] for name in journals}
    written: dict[str, int] = dict.fromkeys(journals, 0)
    appends: list[tuple[str, CommitHead, int]] = []
    for _ in range(frames):
        name = chance.choice(journals)
        for other in chance.sample(journals, 2):
            if other != name and history[other]:
                last, vector = chance.choice(history[other])
                for journal, sequence in ({**vector, other: last}).items():
                    if journal != name and sequence >= 0:
                        known[name][journal] = max(known[name].get(journal, 0), sequence)
        count = chance.randrange(3)
        written[name] += count
        appends.append((name, CommitHead(vector=dict(known[name])), count))
        history[name].append((written[name] - 1, dict(known[name])))
    return appends


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(1, 7))
def test_the_merged_order_is_topological_and_depends_on_content_only(seed: int, frames: int, step: int):
    appends = random_history(seed, frames)
    one, other = MemoryLog(), MemoryLog()
    for log, order in ((one, appends), (other, sorted(appends, key=lambda append: append[0]))):
        writers = {name: log.open_writer(name) for name in "abcd"}
        for name, head, count in order:
            writers[name].append(head, [event(n) for n in range(count)])
    entries = list(merged_frames(one))
    assert len(entries) == len(appends)
    assert [(f.journal, f.base_sequence, f.head, f.events) for f in entries] == [
        (f.journal, f.base_sequence, f.head, f.events) for f in merged_frames(other)
    ]
    position = dict.fromkeys("abcd", 0)
    for frame in entries:
        assert frame.base_sequence == position[frame.journal]
        assert all(position[journal] > sequence for journal, sequence in frame.head.vector.items())
        position[frame.journal] = frame.next_sequence
    in_steps = CausalReader(one, positions=dict.fromkeys("abcd", 0))
    polled: list[Frame] = []
    while more := in_steps.poll(max_frames=step):
        polled += more
    assert polled == entries


def test_merged_numbers_every_event_and_skips_none():
    log = MemoryLog()
    a, b = log.open_writer("a"), log.open_writer("b")
    a.append(CommitHead(), [event(0), event(1)])
    a.append(resting_on(b=0), [])
    b.append(resting_on(a=1), [event(2)])
    assert [(entry.frame.journal, entry.sequence, entry.raw) for entry in merged(log)] == [
        ("a", 0, event(0)),
        ("a", 1, event(1)),
        ("b", 0, event(2)),
    ]
    assert names(list(merged_frames(log))) == "a0 b0 a2"


def test_a_log_in_which_something_is_missing_does_not_end_in_silence():
    log = MemoryLog()
    log.open_writer("a")
    writer = log.open_writer("b")
    writer.append(CommitHead(), [event(0)])
    writer.append(resting_on(a=4), [event(1)])
    entries = merged(log)
    assert next(entries).sequence == 0
    with pytest.raises(LogIncomplete, match=r"journal b, frame at sequence 1: it rests on sequence 4 of journal a"):
        next(entries)
