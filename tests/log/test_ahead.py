"""Zeros ahead of the frames: when they are written, that nobody takes them for anything, and that they go again."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
from pathlib import Path

import pytest

from t1actors.log.ahead import LARGEST_FRAME_BYTES, LEAST_BYTES, MOST_BYTES
from t1actors.log.aside import asides_of, set_aside
from t1actors.log.check import check_journals
from t1actors.log.copies import copy_journals
from t1actors.log.file_writer import FileJournalWriter
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead, encode_frame
from t1actors.log.interface import JournalDamaged, JournalFailed
from t1actors.log.salvage import salvage
from t1actors.log.seal import read_seal
from t1actors.log.segments import START, Position, list_segments, segment_path, written_bytes
from tests.log.support import Sample, event, frames_of, read_position, set_position, write_sample

COUNTS = (1, 0, 2, 0, 1, 0)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return write_sample(tmp_path_factory.mktemp("sample"), COUNTS)


def size_of(root: Path, segment: int = 0) -> int:
    return segment_path(root / "a", segment).stat().st_size


def left_by_a_kill(root: Path, to: Path) -> Path:
    """The log's files as a kill -9 of its living writer would leave them."""
    shutil.copytree(root, to)
    return to


def written_over(sample: Sample, to: Path, tail: bytes) -> Path:
    """The sample with ``tail`` behind its last frame; the root."""
    directory = sample.copy(to)
    with segment_path(directory, 0).open("ab") as file:
        file.write(tail)
    return to


# --- writing ------------------------------------------------------------------------------------------------------------


def test_frames_are_written_over_zeros_that_lie_there_already(tmp_path: Path):
    log = FileLog(tmp_path)
    writer = log.open_writer("a")
    writer.append(CommitHead(), [event(0)])
    end, size = read_position(tmp_path / "a").offset, size_of(tmp_path)
    assert LEAST_BYTES - 4096 < size - end <= LEAST_BYTES
    assert segment_path(tmp_path / "a", 0).read_bytes()[end:] == bytes(size - end)
    sizes: set[int] = set()
    while read_position(tmp_path / "a").offset < size:
        sizes.add(size_of(tmp_path))
        writer.append(CommitHead(), [event("x" * 500)])
    assert sizes == {size}
    assert size_of(tmp_path) > size
    writer.close()


def test_the_flush_of_a_frame_over_zeros_is_all_that_a_commit_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer = FileLog(tmp_path).open_writer("a")
    writer.append(CommitHead(), [event(0)])
    calls: list[tuple[str, int]] = []
    write, flush = os.pwrite, os.fdatasync
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: (calls.append(("write", len(data))), write(fd, data, at))[1])
    monkeypatch.setattr(os, "fdatasync", lambda fd: (calls.append(("flush", 0)), flush(fd))[1])
    before = read_position(tmp_path / "a").offset
    writer.append(CommitHead(), [event(1)])
    assert calls == [("write", read_position(tmp_path / "a").offset - before), ("flush", 0), ("write", 8)]


@pytest.mark.parametrize(
    ("event_bytes", "least", "most"),
    [(100, LEAST_BYTES, LEAST_BYTES), (40_000, MOST_BYTES, MOST_BYTES), (LARGEST_FRAME_BYTES, 0, 0)],
)
def test_how_many_zeros_there_are_depends_on_the_frame(tmp_path: Path, event_bytes: int, least: int, most: int):
    writer = FileLog(tmp_path).open_writer("a")
    writer.append(CommitHead(), [event("x" * event_bytes)])
    ahead = size_of(tmp_path) - read_position(tmp_path / "a").offset
    assert max(0, least - 4096) <= ahead <= most
    writer.close()


def test_no_zeros_lie_behind_a_segments_configured_size_or_without_a_flush(tmp_path: Path):
    writer = FileLog(tmp_path, segment_bytes=40_000).open_writer("a")
    writer.append(CommitHead(), [event(0)])
    assert size_of(tmp_path) == 36_864
    writer.close()
    writer = FileLog(tmp_path, "process").open_writer("a")
    writer.append(CommitHead(), [event(1)])
    assert size_of(tmp_path) == read_position(tmp_path / "a").offset
    writer.close()


@pytest.mark.parametrize("segment_bytes", [1, 5_000, 150_000])
def test_sealed_segments_and_closed_journals_are_what_they_were_without_zeros(tmp_path: Path, segment_bytes: int):
    draw = random.Random(segment_bytes)
    appended = [[event("x" * draw.randint(0, 3000)) for _ in range(draw.randint(0, 4))] for _ in range(200)]
    for name, durability in (("zeros", "machine"), ("plain", "process")):
        writer = FileLog(tmp_path / name, durability, segment_bytes=segment_bytes).open_writer("a")  # type: ignore[arg-type]
        for events in appended:
            writer.append(CommitHead(), events)
            place = read_position(tmp_path / name / "a")
            for segment in list_segments(tmp_path / name / "a"):
                assert segment == place.segment or read_seal(tmp_path / name / "a", segment) is not None
        writer.close()
    assert len(list_segments(tmp_path / "zeros" / "a")) > 1
    for path in sorted((tmp_path / "plain" / "a").iterdir()):
        if path.name != "lock":
            assert (tmp_path / "zeros" / "a" / path.name).read_bytes() == path.read_bytes()


def test_closing_cuts_the_zeros_and_flushes_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer = FileLog(tmp_path).open_writer("a")
    writer.append(CommitHead(), [event(0)])
    calls: list[str] = []
    cut, flush = os.ftruncate, os.fsync
    monkeypatch.setattr(os, "ftruncate", lambda fd, size: (calls.append("cut"), cut(fd, size))[1])
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("flush"), flush(fd))[1])
    writer.close()
    writer.close()
    assert calls == ["cut", "flush"]
    assert size_of(tmp_path) == read_position(tmp_path / "a").offset


def test_a_writer_that_failed_or_was_interrupted_cuts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nobody knows any more where its last frame ends: it may be published."""
    log = FileLog(tmp_path)
    writer = log.open_writer("a")
    writer.append(CommitHead(), [event(0)])
    size = size_of(tmp_path)

    def interrupted(*given: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FileJournalWriter, "_grew", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.append(CommitHead(), [event(1)])
    with pytest.raises(JournalFailed, match="interrupted"):
        writer.append(CommitHead(), [event(2)])
    writer.close()
    assert size_of(tmp_path) == size
    assert [frame.events for frame in frames_of(log, "a")] == [(event(0),), (event(1),)]
    log.open_writer("a").close()
    assert size_of(tmp_path) == read_position(tmp_path / "a").offset


# --- a full disk --------------------------------------------------------------------------------------------------------


def test_on_a_disk_without_room_for_zeros_frames_go_on_while_they_fit(tmp_path: Path):
    log = FileLog(tmp_path)
    writer = log.open_writer("a")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, hard))
    try:
        for n in range(4):
            assert writer.append(CommitHead(), [event("x" * 500)]) == n
        with pytest.raises(JournalFailed, match="File too large"):
            writer.append(CommitHead(), [event("x" * 500)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.close()
    writer = log.open_writer("a")
    assert writer.recovered.torn_bytes > 0
    assert writer.next_sequence == 4 == len(frames_of(log, "a"))
    writer.append(CommitHead(), [event("room again")])
    assert size_of(tmp_path) == LEAST_BYTES
    writer.close()


@pytest.mark.parametrize(("code", "fails"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EIO, True)])
def test_only_want_of_room_is_no_failure_of_the_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, fails: bool
):
    writer = FileLog(tmp_path).open_writer("a")
    real = os.pwrite

    def no_zeros(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) > 100_000:
            raise OSError(code, os.strerror(code))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", no_zeros)
    if fails:
        with pytest.raises(JournalFailed, match="Input/output error"):
            writer.append(CommitHead(), [event(0)])
    else:
        assert writer.append(CommitHead(), [event(0)]) == 0
        assert writer.append(CommitHead(), [event(1)]) == 1
    writer.close()


# --- opening ------------------------------------------------------------------------------------------------------------


def test_zeros_left_by_a_kill_are_no_torn_bytes_and_are_cut_off(tmp_path: Path):
    log = FileLog(tmp_path / "log")
    writer = log.open_writer("a")
    for n in range(5):
        writer.append(CommitHead(), [event(n)])
    after = left_by_a_kill(tmp_path / "log", tmp_path / "after")
    assert size_of(after) == LEAST_BYTES
    successor = FileLog(after).open_writer("a")
    assert (successor.recovered.torn_bytes, successor.recovered.kept_frames) == (0, 0)
    assert size_of(after) == read_position(after / "a").offset
    assert successor.append(CommitHead(), [event(5)]) == 5
    assert [frame.events for frame in frames_of(FileLog(after), "a")] == [(event(n),) for n in range(6)]
    writer.close()


def test_a_frame_torn_at_any_byte_in_front_of_zeros_is_a_torn_tail(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # thousands of openings that are not about the disk
    data = sample.segment()
    for cut in range(len(data) + 1):
        directory = sample.copy(tmp_path)
        segment_path(directory, 0).write_bytes(data[:cut] + bytes(len(data) - cut + 200))
        set_position(directory, START)
        writer = FileLog(tmp_path, "process").open_writer("a")
        whole = sample.whole_below(Position(0, cut + len(data[cut:]) - len(data[cut:].lstrip(b"\0"))))
        end = sample.ends[whole - 1].offset if whole else 0
        assert writer.recovered.torn_bytes == max(0, len(data[:cut].rstrip(b"\0")) - end)
        assert writer.recovered.kept_frames == whole
        writer.close()
        assert frames_of(FileLog(tmp_path), "a") == sample.frames[:whole]
        assert size_of(tmp_path) == end


def test_zeros_in_front_of_a_whole_frame_are_damage(sample: Sample, tmp_path: Path):
    head = CommitHead()
    behind = encode_frame(head, [event("behind")], base_sequence=sample.frames[-1].next_sequence, epoch=1)
    for gap in (1, 32, 511, 5_000):
        root = written_over(sample, tmp_path, bytes(gap) + behind + bytes(3_000))
        with pytest.raises(JournalDamaged, match="not a torn tail") as caught:
            FileLog(root).open_writer("a")
        assert (caught.value.segment, caught.value.offset) == sample.ends[-1]


def test_zeros_below_the_durable_end_are_damage(sample: Sample, tmp_path: Path):
    data = sample.segment()
    for whole, start in enumerate(sample.starts):
        directory = sample.copy(tmp_path)
        segment_path(directory, 0).write_bytes(data[: start.offset] + bytes(len(data) - start.offset + 4_096))
        with pytest.raises(JournalDamaged) as caught:
            FileLog(tmp_path).open_writer("a")
        assert (caught.value.segment, caught.value.offset) == start
        reader = FileLog(tmp_path).open_reader("a")
        for _ in range(whole):
            reader.read(max_frames=1)
        with pytest.raises(JournalDamaged):
            reader.read(max_frames=1)
        reader.close()


def test_what_a_torn_frame_leaves_is_never_met_behind_a_shorter_one(sample: Sample, tmp_path: Path):
    """The torn frame holds, where the next frame will end, a whole frame of this journal: a trial had read the log."""
    last = sample.frames[-1]
    short = encode_frame(
        CommitHead(previous=b"x" * 32), [event(1)], base_sequence=last.next_sequence, epoch=last.epoch + 1
    )
    stale = encode_frame(CommitHead(), [], base_sequence=last.next_sequence - 1, epoch=last.epoch)
    root = written_over(sample, tmp_path / "log", b"\xff" * len(short) + stale + bytes(9_000))
    log = FileLog(root)
    writer = log.open_writer("a")
    assert writer.recovered.torn_bytes == written_bytes(b"\xff" * len(short) + stale)
    writer.append(CommitHead(), [event(1)])
    after = left_by_a_kill(root, tmp_path / "after")
    end = read_position(after / "a").offset
    assert end == sample.ends[-1].offset + len(short)
    assert not written_bytes(segment_path(after / "a", 0).read_bytes()[end:])
    FileLog(after).open_writer("a").close()
    assert len(frames_of(FileLog(after), "a")) == len(sample.frames) + 1
    writer.close()


def test_a_sealing_frame_with_zeros_behind_it_that_was_not_acknowledged_is_kept(tmp_path: Path):
    """This version's writer leaves none there; a reader of the format need not know."""
    sample = write_sample(tmp_path / "sample", (1, 1), segment_bytes=1)
    directory = sample.copy(tmp_path / "log")
    assert sample.ends[1].segment == 0
    set_position(directory, sample.ends[0])
    with segment_path(directory, 0).open("ab") as file:
        file.write(bytes(5_000))
    log = FileLog(tmp_path / "log", segment_bytes=1)
    writer = log.open_writer("a")
    assert (writer.recovered.kept_frames, writer.recovered.torn_bytes, writer.recovered.sealed) == (1, 0, True)
    assert size_of(tmp_path / "log") == sample.ends[1].offset
    assert read_seal(directory, 0) is not None
    writer.append(CommitHead(), [event(2)])
    writer.close()
    assert len(frames_of(log, "a")) == 3


# --- whoever else reads to a file's end ---------------------------------------------------------------------------------


def test_a_killed_journals_zeros_are_not_set_aside_and_not_salvaged(tmp_path: Path):
    run = tmp_path / "run"
    writer = FileLog(run / "log").open_writer("a")
    for n in range(3):
        writer.append(CommitHead(), [event(n)])
    killed = tmp_path / "killed"
    left_by_a_kill(run, killed)
    writer.close()
    assert check_journals(FileLog(killed / "log")).problems == []
    saved = salvage(killed, tmp_path / "saved")
    assert saved.asides == asides_of(tmp_path / "saved" / "log") == []
    assert (tmp_path / "saved" / "log" / "a" / "000000000000.seg").read_bytes() == (
        run / "log" / "a" / "000000000000.seg"
    ).read_bytes()
    assert set_aside(killed / "log") == []
    assert size_of(killed / "log") == size_of(run / "log")


def test_a_torn_frame_in_front_of_zeros_is_set_aside_with_them_and_lost_frames_are_named(
    sample: Sample, tmp_path: Path
):
    tail = b"T1FR torn" + bytes(500)
    root = written_over(sample, tmp_path / "torn", tail)
    shutil.rmtree(tmp_path / "torn" / "b", ignore_errors=True)
    asides = {aside.journal: aside for aside in set_aside(root)}
    content = asides["a"].path(root).read_bytes()
    assert content.endswith(tail)
    directory = sample.copy(tmp_path / "lost")
    data = sample.segment()
    segment_path(directory, 0).write_bytes(data[: sample.starts[-1].offset] + bytes(4_000))
    (aside,) = set_aside(tmp_path / "lost")
    assert aside.reason


def test_a_copy_of_a_living_journal_is_its_frames_alone(tmp_path: Path):
    log = FileLog(tmp_path / "log", segment_bytes=20_000)
    writer = log.open_writer("a")
    for n in range(100):
        writer.append(CommitHead(), [event(n), event("x" * 200)])
    place = read_position(tmp_path / "log" / "a")
    assert place.segment > 0
    assert size_of(tmp_path / "log", place.segment) > place.offset
    seen: list[tuple[int, int]] = []
    copy_journals(log, tmp_path / "copy", lambda done, total: seen.append((done, total)))
    checked: list[tuple[int, int]] = []
    assert check_journals(log, lambda done, total: checked.append((done, total))).problems == []
    frames = frames_of(log, "a")
    writer.close()
    for path in (tmp_path / "log" / "a").glob("*.seg"):
        assert (tmp_path / "copy" / "a" / path.name).read_bytes() == path.read_bytes()
    assert frames_of(FileLog(tmp_path / "copy"), "a") == frames
    total = sum(path.stat().st_size for path in (tmp_path / "log" / "a").glob("*.seg"))
    assert seen[-1] == (total, total)
    assert checked[-2:] == [(total, total)] * 2
