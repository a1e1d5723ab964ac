"""Opening a journal after cuts, flips, torn writes and lost machines: whole frames survive, damage is named."""

from __future__ import annotations

import errno
import os
import random
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t1actors.log.file_writer import FileJournalWriter
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead, encode_frame
from t1actors.log.interface import JournalDamaged, JournalFailed
from t1actors.log.lock import Holder, JournalLock
from t1actors.log.segments import START, Position, end_path, segment_path
from tests.log.support import Sample, consuming, event, frames_of, read_position, set_position, write_sample

COUNTS = (1, 0, 2, 0, 1, 0)
SMALL = 150


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return write_sample(tmp_path_factory.mktemp("sample"), COUNTS)


@pytest.fixture(scope="module")
def segmented(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """Several sealed segments, some of whose last frames have no events."""
    sample = write_sample(tmp_path_factory.mktemp("sample"), COUNTS * 2, segment_bytes=SMALL)
    assert sample.ends[-1].segment >= 3
    return sample


@pytest.fixture
def quick_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For thousands of openings that are not about the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


many_openings = pytest.mark.usefixtures("quick_flushes")


def reopened(root: Path, *, segment_bytes: int = 1 << 20) -> FileJournalWriter:
    return FileLog(root, "process", segment_bytes=segment_bytes).open_writer("a")


def assert_goes_on(root: Path, sample: Sample, whole: int) -> None:
    """The first ``whole`` frames are there, exactly, and the journal works."""
    writer = reopened(root)
    assert writer.next_sequence == (sample.frames[whole - 1].next_sequence if whole else 0)
    assert frames_of(FileLog(root), "a") == sample.frames[:whole]
    writer.append(CommitHead(), [event("after")])
    writer.close()
    *before, after = frames_of(FileLog(root), "a")
    assert before == sample.frames[:whole]
    assert (after.events, after.epoch) == ((event("after"),), 2)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "lock"}


def assert_refused_at(root: Path, place: Position, pattern: str = "") -> None:
    """Opening names the place and changes nothing."""
    before = content(root / "a")
    with pytest.raises(JournalDamaged, match=pattern) as caught:
        reopened(root)
    assert (caught.value.journal, caught.value.segment, caught.value.offset) == ("a", *place)
    assert f"journal a, segment {place.segment}, offset {place.offset:,}" in str(caught.value)
    assert content(root / "a") == before


@many_openings
def test_a_journal_cut_at_any_byte_past_the_durable_end_keeps_exactly_its_whole_frames(sample: Sample, tmp_path: Path):
    data = sample.segment()
    for cut in range(len(data) + 1):
        directory = sample.copy(tmp_path)
        segment_path(directory, 0).write_bytes(data[:cut])
        set_position(directory, START)
        assert_goes_on(tmp_path, sample, sample.whole_below(Position(0, cut)))


@many_openings
def test_a_journal_cut_at_any_byte_below_the_durable_end_is_refused_at_the_first_missing_frame(
    sample: Sample, tmp_path: Path
):
    data = sample.segment()
    durable = sample.ends[3]
    for cut in range(len(data) + 1):
        directory = sample.copy(tmp_path)
        segment_path(directory, 0).write_bytes(data[:cut])
        set_position(directory, durable)
        if cut < durable.offset:
            whole = sample.whole_below(Position(0, cut))
            assert_refused_at(tmp_path, sample.starts[whole], "missing|frame")
        else:
            assert_goes_on(tmp_path, sample, sample.whole_below(Position(0, cut)))


@many_openings
def test_any_bit_flipped_below_the_durable_end_is_refused_by_writer_and_reader_at_its_frame(
    segmented: Sample, tmp_path: Path
):
    chance = random.Random(7)
    for number in range(segmented.ends[-1].segment + 1):
        data = segmented.segment(number)
        for at in range(len(data)):
            directory = segmented.copy(tmp_path) if at == 0 else tmp_path / "a"
            flipped = bytearray(data)
            flipped[at] ^= 1 << chance.randrange(8)
            segment_path(directory, number).write_bytes(flipped)
            whole = segmented.whole_below(Position(number, at))
            place = segmented.starts[whole]
            with pytest.raises(JournalDamaged) as writing:
                reopened(tmp_path)
            assert (writing.value.segment, writing.value.offset) == place
            reader = FileLog(tmp_path).open_reader("a", from_sequence=0)
            for _ in range(whole):
                reader.read(max_frames=1)
            with pytest.raises(JournalDamaged) as reading:
                reader.read(max_frames=1)
            assert (reading.value.segment, reading.value.offset) == place
            reader.close()


def test_a_bit_flipped_past_the_durable_end_is_damage_when_a_whole_frame_lies_behind_it(sample: Sample, tmp_path: Path):
    data = sample.segment()
    directory = sample.copy(tmp_path)
    for at in range(sample.ends[0].offset, sample.starts[-1].offset):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        segment_path(directory, 0).write_bytes(flipped)
        set_position(directory, sample.ends[0])
        assert_refused_at(tmp_path, sample.starts[sample.whole_below(Position(0, at))], "not a torn tail")


@many_openings
def test_a_flip_in_the_last_frame_past_the_durable_end_is_a_torn_tail_and_its_size_is_told(
    sample: Sample, tmp_path: Path
):
    data = sample.segment()
    for at in range(sample.starts[-1].offset, len(data)):
        directory = sample.copy(tmp_path)
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        segment_path(directory, 0).write_bytes(flipped)
        set_position(directory, sample.ends[-3])
        writer = reopened(tmp_path)
        assert writer.recovered.kept_frames == 1
        assert writer.recovered.torn_bytes == len(data) - sample.starts[-1].offset
        writer.close()
        assert frames_of(FileLog(tmp_path), "a") == sample.frames[:-1]


@many_openings
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(min_size=1, max_size=300) | st.integers(1, 40).map(lambda n: b"T1FR" * n))
def test_any_garbage_behind_the_durable_end_is_cut_off(sample: Sample, tmp_path: Path, garbage: bytes):
    directory = sample.copy(tmp_path)
    with segment_path(directory, 0).open("ab") as file:
        file.write(garbage)
    assert_goes_on(tmp_path, sample, len(sample.frames))


@many_openings
def test_a_lagging_durable_end_loses_nothing(segmented: Sample, tmp_path: Path):
    for kept, durable in enumerate([START, *segmented.ends]):
        set_position(segmented.copy(tmp_path), durable)
        writer = reopened(tmp_path)
        assert writer.recovered.kept_frames == len(segmented.frames) - kept
        assert read_position(tmp_path / "a") == segmented.ends[-1]
        writer.close()
        assert frames_of(FileLog(tmp_path), "a") == segmented.frames


@many_openings
def test_a_sealed_segment_cut_anywhere_is_refused(segmented: Sample, tmp_path: Path):
    for number in range(segmented.ends[-1].segment):
        data = segmented.segment(number)
        for cut in range(len(data)):
            directory = segmented.copy(tmp_path) if cut == 0 else tmp_path / "a"
            segment_path(directory, number).write_bytes(data[:cut])
            with pytest.raises(JournalDamaged):
                reopened(tmp_path)
            with pytest.raises(JournalDamaged):
                frames_of(FileLog(tmp_path), "a")


def test_a_missing_segment_is_refused_by_name(segmented: Sample, tmp_path: Path):
    for number in range(segmented.ends[-1].segment + 1):
        directory = segmented.copy(tmp_path)
        segment_path(directory, number).unlink()
        assert_refused_at(tmp_path, Position(number, 0), "missing")
        with pytest.raises(JournalDamaged, match=f"{number:012d}.seg"):
            frames_of(FileLog(tmp_path), "a")


@many_openings
def test_a_crash_while_a_segment_is_started_loses_nothing(segmented: Sample, tmp_path: Path):
    last = segmented.ends[-1].segment
    data = segmented.segment(last)
    before = segmented.whole_below(Position(last, 0))
    for cut in range(segmented.ends[before].offset):
        directory = segmented.copy(tmp_path)
        segment_path(directory, last).write_bytes(data[:cut])
        set_position(directory, segmented.ends[before - 1])
        assert_goes_on(tmp_path, segmented, before)


def test_a_durable_end_that_is_no_frame_end_is_refused(sample: Sample, tmp_path: Path):
    directory = sample.copy(tmp_path)
    boundaries = {0, *(end.offset for end in sample.ends)}
    for offset in range(sample.ends[-1].offset + 40):
        if offset not in boundaries:
            set_position(directory, Position(0, offset))
            with pytest.raises(JournalDamaged):
                reopened(tmp_path)


def test_frames_without_a_durable_end_are_refused(sample: Sample, tmp_path: Path):
    directory = sample.copy(tmp_path)
    end_path(directory).unlink()
    assert_refused_at(tmp_path, START, "durable end .* is missing")
    end_path(directory).write_bytes(b"\0\0\0")
    assert_refused_at(tmp_path, START, "durable end .* is missing")


def test_a_crash_while_a_journal_is_made_leaves_one_that_opens(tmp_path: Path):
    directory = tmp_path / "a"
    directory.mkdir()
    (directory / "lock").touch()
    reopened(tmp_path).close()
    end_path(directory).write_bytes(b"")
    writer = reopened(tmp_path)
    assert writer.append(CommitHead(), [event(1)]) == 0
    assert writer.epoch == 2


@pytest.mark.parametrize(
    ("base", "epoch", "pattern"),
    [(5, 9, "frames are missing"), (3, 9, "frames are missing"), (4, 0, "fenced writer")],
)
def test_a_whole_frame_that_does_not_continue_the_journal_is_refused(
    sample: Sample, tmp_path: Path, base: int, epoch: int, pattern: str
):
    directory = sample.copy(tmp_path)
    assert sample.frames[-1].next_sequence == 4
    with segment_path(directory, 0).open("ab") as file:
        file.write(encode_frame(CommitHead(), [event(1)], base_sequence=base, epoch=epoch))
    assert_refused_at(tmp_path, sample.ends[-1], pattern)


def test_the_epoch_survives_a_lost_lock_file_and_a_bad_one_is_refused(tmp_path: Path):
    for _ in range(3):
        writer = reopened(tmp_path)
        writer.append(CommitHead(), [event(1)])
        writer.close()
    lock = tmp_path / "a" / "lock"
    lock.unlink()
    writer = reopened(tmp_path)
    assert writer.epoch == 4
    writer.close()
    lock.write_bytes(b"{broken")
    with pytest.raises(JournalDamaged, match="lock"):
        reopened(tmp_path)


def test_after_the_machine_was_lost_a_tail_that_others_have_read_must_be_there(tmp_path: Path):
    log = FileLog(tmp_path, "process")
    source, reader = log.open_writer("a"), log.open_writer("b")
    ends: list[int] = []
    for n in range(4):
        source.append(CommitHead(), [event(n)])
        ends.append(read_position(tmp_path / "a").offset)
    reader.append(consuming("a", 0, 2), [event("read")])
    reader.append(CommitHead(vector={"a": 2}), [])
    source.close()
    whole = segment_path(tmp_path / "a", 0).read_bytes()
    for kept in (3, 2):
        size = ends[kept - 1]
        segment_path(tmp_path / "a", 0).write_bytes(whole[:size])
        set_position(tmp_path / "a", Position(0, size))
        lock = JournalLock("a", tmp_path / "a")
        lock.remember(Holder(1, 1, "a boot before this one"))
        lock.release()
        if kept == 3:
            log.open_writer("a").close()
        else:
            assert_refused_at(tmp_path, Position(0, size), "journal b has read up to sequence 2")


def test_append_flushes_before_it_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer = FileLog(tmp_path, segment_bytes=1).open_writer("a")
    calls = record_calls(monkeypatch)
    for _ in range(3):
        writer.append(CommitHead(), [event(1)])
    write, flush, publish = "pwrite seg", "fdatasync seg", "pwrite end"
    new = ["fsync seg", "fsync a"]
    assert calls == [write, flush, publish, write, flush, publish, *new, write, flush, publish]


def test_recovery_writes_and_flushes_what_it_keeps_before_it_publishes(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    set_position(sample.copy(tmp_path), sample.ends[3])
    calls = record_calls(monkeypatch)
    reopened(tmp_path)
    assert [call for call in calls if call.endswith((" seg", " end"))] == [
        "pwrite seg",
        "fsync seg",
        "pwrite end",
        "fsync end",
    ]


def record_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of file that pwrite, fsync and fdatasync are called for, in order."""
    calls: list[str] = []

    def recording(name: str) -> None:
        real = getattr(os, name)

        def call(descriptor: int, *arguments: object) -> object:
            calls.append(f"{name} {os.readlink(f'/proc/self/fd/{descriptor}').rsplit('/')[-1].rsplit('.')[-1]}")
            return real(descriptor, *arguments)

        monkeypatch.setattr(os, name, call)

    for name in ("pwrite", "fsync", "fdatasync"):
        recording(name)
    return calls


def test_a_failed_flush_ends_the_writer_and_is_never_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = FileLog(tmp_path)
    writer = log.open_writer("a")
    writer.append(CommitHead(), [event(1)])

    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        with pytest.raises(JournalFailed, match=r"journal a, .*000000000000\.seg, offset \d+: .*Input/output error"):
            writer.append(CommitHead(), [event(2)])
    with pytest.raises(JournalFailed):
        writer.append(CommitHead(), [event(2)])
    assert [frame.events for frame in frames_of(log, "a")] == [(event(1),)]
    writer.close()
    assert log.open_writer("a").recovered.kept_frames == 1
    assert [frame.events for frame in frames_of(log, "a")] == [(event(1),), (event(2),)]


def test_a_full_disk_ends_the_writer_and_recovery_cuts_the_half_written_frame(tmp_path: Path):
    log = FileLog(tmp_path, "process")
    writer = log.open_writer("a")
    writer.append(CommitHead(), [event(1)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (read_position(tmp_path / "a").offset + 100, hard))
    try:
        with pytest.raises(JournalFailed, match="File too large"):
            writer.append(CommitHead(), [event("x" * 500)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.close()
    successor = log.open_writer("a")
    assert successor.recovered.torn_bytes == 100
    assert successor.append(CommitHead(), [event(2)]) == 1
    assert [frame.events for frame in frames_of(log, "a")] == [(event(1),), (event(2),)]


def test_a_program_started_by_the_holder_does_not_keep_the_lock(tmp_path: Path):
    writer = reopened(tmp_path)
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        writer.close()
        reopened(tmp_path).close()
        child.kill()


def test_a_lock_that_a_dying_process_still_holds_is_waited_for(tmp_path: Path):
    writer = reopened(tmp_path)
    closing = threading.Timer(0.02, writer.close)
    closing.start()
    assert reopened(tmp_path).epoch == 2
    closing.join()
