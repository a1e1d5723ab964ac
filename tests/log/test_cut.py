"""Journals that end unevenly: the greatest consistent cut, and what becomes of the rest."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from t1actors.log.aside import asides_of, set_aside
from t1actors.log.check import check_journals
from t1actors.log.cut import Mark, greatest_cut
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead, InputRun, encode_frame
from t1actors.log.interface import JournalFenced
from t1actors.log.merged import merged_frames
from t1actors.log.segments import list_segments, segment_path
from tests.log.support import event, frames_of

NAMES = ("a", "b", "c")


def consistent(journals: dict[str, list[Mark]], counts: dict[str, int]) -> bool:
    behind = {name: journals[name][n - 1].next_sequence if n else 0 for name, n in counts.items()}
    return all(
        sequence < behind.get(other, 0)
        for name, n in counts.items()
        for mark in journals[name][:n]
        for other, sequence in mark.vector.items()
        if other != name
    )


@st.composite
def uneven(draw: st.DrawFn) -> dict[str, list[Mark]]:
    journals: dict[str, list[Mark]] = {}
    for name in NAMES:
        marks: list[Mark] = []
        behind, vector = 0, dict[str, int]()
        for _ in range(draw(st.integers(0, 4))):
            behind += draw(st.integers(0, 2))
            for other in draw(st.sets(st.sampled_from([*NAMES, "lost"]))) - {name}:
                vector[other] = vector.get(other, -1) + draw(st.integers(1, 3))
            marks.append(Mark(behind, dict(vector)))
        journals[name] = marks
    return journals


@settings(deadline=None, max_examples=300)
@given(uneven())
def test_the_cut_is_consistent_and_holds_every_other_consistent_one(journals: dict[str, list[Mark]]):
    found = greatest_cut(journals)
    assert consistent(journals, found)
    for counts in itertools.product(*(range(len(journals[name]) + 1) for name in NAMES)):
        other = dict(zip(NAMES, counts, strict=True))
        if consistent(journals, other):
            assert all(other[name] <= found[name] for name in NAMES)


def write_run(root: Path, draw: random.Random, *, segment_bytes: int) -> FileLog:
    """Three journals that read each other, as actors do."""
    log = FileLog(root, "process", segment_bytes=segment_bytes)
    writers = {name: log.open_writer(name) for name in NAMES}
    read: dict[str, dict[str, int]] = {name: {} for name in NAMES}
    vectors: dict[str, dict[str, int]] = {name: {} for name in NAMES}
    for _ in range(60):
        name = draw.choice(NAMES)
        inputs: list[InputRun] = []
        for other in NAMES:
            first, last = read[name].get(other, 0), writers[other].next_sequence - 1
            if other != name and first <= last and draw.random() < 0.6:
                last = draw.randint(first, last)
                inputs.append(InputRun(other, first, last))
                read[name][other] = last + 1
                for further, sequence in {**vectors[other], other: last}.items():
                    if further != name:
                        vectors[name][further] = max(vectors[name].get(further, -1), sequence)
        events = [event(draw.random()) for _ in range(draw.randint(0, 3))]
        writers[name].append(CommitHead(inputs=tuple(inputs), vector=dict(vectors[name])), events)
    for writer in writers.values():
        writer.close()
    return log


def lose(log: FileLog, draw: random.Random) -> None:
    """What a power cut does to files that nobody flushed: tails are missing, or were never written and read as zeros."""
    for name in NAMES:
        directory = log.directory(name)
        segments = list_segments(directory)
        place = draw.randrange(len(segments))
        path = segment_path(directory, segments[place])
        data = path.read_bytes()
        match draw.randrange(4):
            case 0:
                path.write_bytes(data[: draw.randint(0, len(data))])
            case 1:
                at = draw.randint(0, len(data))
                path.write_bytes(data[:at] + bytes(min(512, len(data) - at)) + data[at + 512 :])
            case 2 if place:
                path.unlink()
            case _:
                pass


@pytest.mark.parametrize("segment_bytes", [600, 1 << 20])
@pytest.mark.parametrize("seed", range(20))
def test_after_a_loss_what_fits_together_stays_and_the_rest_lies_beside_it(
    tmp_path: Path, seed: int, segment_bytes: int
):
    draw = random.Random(seed)
    log = write_run(tmp_path, draw, segment_bytes=segment_bytes)
    before = {name: frames_of(log, name) for name in NAMES}
    lose(log, draw)
    lost = {
        name: b"".join(segment_path(log.directory(name), n).read_bytes() for n in list_segments(log.directory(name)))
        for name in NAMES
    }
    asides = set_aside(tmp_path)
    for name in NAMES:
        kept = frames_of(log, name)
        assert kept == before[name][: len(kept)]
        whole = b"".join(segment_path(log.directory(name), n).read_bytes() for n in list_segments(log.directory(name)))
        (aside,) = [a for a in asides if a.journal == name] or [None]
        assert whole + (aside.path(tmp_path).read_bytes() if aside else b"") == lost[name]
        assert aside is None or aside.reason
    assert check_journals(log).problems == []
    assert len(list(merged_frames(log))) == sum(len(frames_of(log, name)) for name in NAMES)
    assert asides_of(tmp_path) == asides
    assert set_aside(tmp_path) == []
    for name in NAMES:
        log.open_writer(name).close()


def test_nothing_is_set_aside_of_a_whole_run(tmp_path: Path):
    log = write_run(tmp_path, random.Random(1), segment_bytes=1000)
    assert set_aside(tmp_path) == []
    assert check_journals(log).problems == []


def test_a_journal_that_is_being_written_is_left_alone(tmp_path: Path):
    log = write_run(tmp_path, random.Random(1), segment_bytes=1000)
    writer = log.open_writer("b")
    with pytest.raises(JournalFenced, match="journal b"):
        set_aside(tmp_path)
    writer.close()


def test_a_frame_that_is_objected_to_takes_along_what_rests_on_it(tmp_path: Path):
    log = write_run(tmp_path, random.Random(3), segment_bytes=1 << 20)
    before = {name: frames_of(log, name) for name in NAMES}
    bad = before["a"][5]
    asides = set_aside(tmp_path, objection=lambda frame: "its blob is damaged" if frame == bad else "")
    assert frames_of(log, "a") == before["a"][:5]
    assert next(aside.reason for aside in asides if aside.journal == "a").endswith("its blob is damaged")
    assert check_journals(log).problems == []


def test_a_journal_that_ends_before_what_was_acknowledged_is_named_although_its_frames_are_whole(tmp_path: Path):
    log = write_run(tmp_path, random.Random(4), segment_bytes=1 << 20)
    frames = frames_of(log, "c")
    path = segment_path(log.directory("c"), 0)
    data = path.read_bytes()
    last = encode_frame(
        frames[-1].head, frames[-1].events, base_sequence=frames[-1].base_sequence, epoch=frames[-1].epoch
    )
    path.write_bytes(data[: -len(last)])
    assert {aside.journal: aside.reason for aside in set_aside(tmp_path)}["c"].startswith(
        "acknowledged up to segment 0"
    )


def test_a_journal_whose_only_segment_is_gone_is_named(tmp_path: Path):
    log = write_run(tmp_path, random.Random(4), segment_bytes=1 << 20)
    segment_path(log.directory("b"), 0).unlink()
    asides = {aside.journal: aside for aside in set_aside(tmp_path)}
    assert asides["b"].from_sequence == 0
    assert "missing" in asides["b"].reason
    assert check_journals(log).problems == []


def test_a_frame_exchanged_for_another_whole_one_ends_what_can_stand(tmp_path: Path):
    log = write_run(tmp_path, random.Random(4), segment_bytes=1 << 20)
    frame = frames_of(log, "a")[0]
    place = {"base_sequence": frame.base_sequence, "epoch": frame.epoch}
    mine = encode_frame(frame.head, frame.events, **place)
    other = encode_frame(structs.replace(frame.head, wall_ns=frame.head.wall_ns + 1), frame.events, **place)
    path = segment_path(log.directory("a"), 0)
    assert len(mine) == len(other)
    path.write_bytes(other + path.read_bytes()[len(mine) :])
    asides = {aside.journal: aside.reason for aside in set_aside(tmp_path)}
    assert "names another frame" in asides["a"]
    assert check_journals(log).problems == []


def test_the_cut_goes_back_to_a_ground_that_is_there(tmp_path: Path):
    """The states between snapshots are kept no longer: an actor can go on only from one that is."""
    log = write_run(tmp_path, random.Random(5), segment_bytes=1 << 20)
    before = frames_of(log, "b")
    there = [before[0], before[4]]
    asides = set_aside(tmp_path, ground=lambda frame: frame in there if frame.journal == "b" else None)
    assert frames_of(log, "b") == before[:5]
    assert next(aside.reason for aside in asides if aside.journal == "b").endswith("kept no longer")
    assert check_journals(log).problems == []


def test_settling_again_after_a_crash_names_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = write_run(tmp_path, random.Random(6), segment_bytes=1 << 20)
    path = segment_path(log.directory("a"), 0)
    path.write_bytes(path.read_bytes()[:-3])

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("t1actors.log.aside._cut", dies)
        with pytest.raises(KeyboardInterrupt):
            set_aside(tmp_path)
    set_aside(tmp_path)
    named = [(aside.journal, aside.from_sequence) for aside in asides_of(tmp_path)]
    assert len(named) == len(set(named))
