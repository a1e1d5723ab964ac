"""The beginning of a journal is deleted: what is behind it stands as before, and nothing is missing in silence."""

import os
import shutil

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.log.aside import set_aside
from t1actors.log.check import check_journals, run_digest
from t1actors.log.copies import copy_journals
from t1actors.log.errors import JournalDamaged, Truncated
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead, InputRun
from t1actors.log.merged import merged
from t1actors.log.salvage import salvage
from t1actors.log.segments import list_segments, segment_path
from t1actors.log.trim import Mark, begin_at, beginning_of
from t1actors.log.trimmed import WHOLE, Trimmed, trimmed_of, trimmed_path, write_trimmed
from tests.log.support import event, frames_of, read_all

NOTHING = Mark("nobody", 0)
SEGMENT_BYTES = 600


def written(root, *, frames=40, empty_every=0):
    """``first`` is alone, ``second`` has read it as far as it is, ``third`` has read the second."""
    log = FileLog(root, "process", segment_bytes=SEGMENT_BYTES)
    first, second, third = map(log.open_writer, ("first", "second", "third"))
    for n in range(frames):
        first.append(CommitHead(), [event(f"a{n}"), event(f"b{n}")])
        vector = {"first": 2 * n + 1}
        inputs = (InputRun("first", 2 * n, 2 * n + 1, 1),)
        if empty_every and n % empty_every == 0:
            second.append(CommitHead(vector=vector, inputs=(InputRun("first", 2 * n, 2 * n + 1, 0),)), [])
        else:
            second.append(CommitHead(vector=vector, inputs=inputs), [event(f"c{n}")])
        sequence = second.next_sequence - 1
        if sequence >= 0 and third.next_sequence < sequence:
            runs = (InputRun("second", third.next_sequence, sequence, 0),) if third.next_sequence <= sequence else ()
            third.append(
                CommitHead(vector={**vector, "second": sequence}, inputs=runs),
                [event(f"d{n}") for n in range(third.next_sequence, sequence + 1)],
            )
    for writer in (first, second, third):
        writer.close()
    return log


def trimmed_at(log, name, before, mark=NOTHING):
    directory = log.directory(name)
    found = beginning_of(directory, before=before, mark=mark)
    begin_at(directory, found.trimmed)
    return trimmed_of(directory)


@pytest.fixture
def log(tmp_path):
    return written(tmp_path / "log")


def test_what_is_behind_the_beginning_reads_as_before(log):
    whole = frames_of(log, "first")
    trimmed = trimmed_at(log, "first", 50)
    assert 0 < trimmed.first_sequence < 50
    reader = log.open_reader("first", from_sequence=log.kept_from("first"))
    found = []
    while frames := reader.read():
        found += frames
    assert found == [frame for frame in whole if frame.base_sequence >= trimmed.first_sequence]
    for wanted in range(trimmed.first_sequence, whole[-1].next_sequence):
        reader = log.open_reader("first", from_sequence=wanted)
        assert reader.read()[0] == next(frame for frame in whole if frame.reaches(wanted))
        reader.close()


def test_whoever_begins_before_it_is_told_from_where_there_is_something(log):
    trimmed = trimmed_at(log, "first", 50)
    for wanted in (0, 1, trimmed.first_sequence - 1):
        with pytest.raises(
            Truncated, match=rf"event {wanted} was asked .* kept from event {trimmed.first_sequence} on"
        ):
            log.open_reader("first", from_sequence=wanted).read()


def test_a_slow_reader_is_told_when_it_is_overtaken(log):
    reader = log.open_reader("first")
    assert len(reader.read(max_frames=2)) == 2
    trimmed_at(log, "first", 70)
    with pytest.raises(Truncated):
        read_all(reader)


@settings(max_examples=40, deadline=None)
@given(before=st.integers(0, 90), marked=st.integers(0, 90), empty_every=st.integers(0, 4))
def test_nothing_goes_that_must_stay(tmp_path_factory, before, marked, empty_every):
    log = written(tmp_path_factory.mktemp("trim") / "log", empty_every=empty_every)
    whole = frames_of(log, "second")
    trimmed = trimmed_at(log, "second", before, Mark("first", marked))
    gone = [frame for frame in whole if frame.next_sequence <= trimmed.first_sequence and frame.events]
    assert all(frame.next_sequence < max(before, 1) for frame in gone)
    assert all(frame.head.vector["first"] < marked for frame in gone)
    kept = []
    reader = log.open_reader("second", from_sequence=trimmed.first_sequence)
    while frames := reader.read():
        kept += frames
    assert kept == whole[len(whole) - len(kept) :]
    assert kept
    assert check_journals(log).problems == []


def test_frames_that_rest_on_the_mark_stay_also_when_those_behind_rest_on_no_more(tmp_path):
    log = FileLog(tmp_path, "process", segment_bytes=300)
    writer = log.open_writer("second")
    for n in range(20):
        writer.append(CommitHead(vector={"first": 7}), [event(f"{n} " + "x" * 50)])
    writer.close()
    assert trimmed_at(log, "second", 10**9, Mark("first", 7)) == WHOLE
    assert trimmed_at(log, "second", 10**9, Mark("first", 8)) != WHOLE


def test_the_last_segment_stays_whatever_is_asked(log):
    for _ in range(3):
        trimmed_at(log, "first", 10**9)
    assert len(list_segments(log.directory("first"))) == 1
    assert frames_count(log, "first") < 20


def test_the_chain_goes_on_and_the_runs_digest_is_what_it_was(log):
    before = check_journals(log)
    trimmed_at(log, "first", 50)
    trimmed_at(log, "second", 20)
    after = check_journals(log)
    assert after.problems == []
    assert run_digest(after.digests) == run_digest(before.digests)
    directory = log.directory("first")
    write_trimmed(directory, msgspec.structs.replace(trimmed_of(directory), last_frame="00" * 32))
    assert "names another frame" in check_journals(log).problems[0].message


def test_a_trimmed_journal_opens_and_goes_on(log):
    trimmed = trimmed_at(log, "first", 50)
    writer = log.open_writer("first")
    assert writer.next_sequence == 80
    for n in range(30):
        writer.append(CommitHead(), [event(f"more {n}")])
    writer.close()
    assert check_journals(log).problems == []
    again = trimmed_at(log, "first", 100)
    assert again.first_segment > trimmed.first_segment
    assert check_journals(log).problems == []


def test_the_merged_view_shows_what_is_kept(log):
    first, second = trimmed_at(log, "first", 50), trimmed_at(log, "second", 30)
    shown = list(merged(log))
    third = sum(len(frame.events) for frame in frames_of(log, "third"))
    assert len(shown) == log.events() == (80 - first.first_sequence) + (40 - second.first_sequence) + third


def test_a_segment_that_is_missing_without_having_been_trimmed_is_damage(log):
    segment_path(log.directory("first"), 0).unlink()
    with pytest.raises(JournalDamaged, match="missing below the durable end"):
        log.open_reader("first").read()
    with pytest.raises(JournalDamaged, match="segment file is missing"):
        log.open_writer("first")


def test_a_segment_that_is_missing_in_the_middle_of_a_trimmed_journal_is_damage(log):
    trimmed = trimmed_at(log, "first", 40)
    gap = trimmed.first_segment + 1
    segment_path(log.directory("first"), gap).unlink()
    with pytest.raises(JournalDamaged, match=f"segment {gap}"):
        log.open_writer("first")
    assert check_journals(log).problems


def test_the_first_kept_segment_that_is_missing_is_damage(log):
    trimmed = trimmed_at(log, "first", 40)
    segment_path(log.directory("first"), trimmed.first_segment).unlink()
    with pytest.raises(JournalDamaged):
        log.open_writer("first")
    with pytest.raises(JournalDamaged):
        log.open_reader("first", from_sequence=trimmed.first_sequence).read()


@pytest.mark.parametrize("harm", [b"", b"{}", b'{"first_segment":1,"first_sequence":2,"last_frame":"","check":"x"}'])
def test_a_note_that_is_not_what_was_written_is_refused(log, harm):
    trimmed_at(log, "first", 40)
    trimmed_path(log.directory("first")).write_bytes(harm)
    with pytest.raises(JournalDamaged, match="restore it from a copy"):
        log.kept_from("first")
    with pytest.raises(JournalDamaged):
        log.open_writer("first")
    assert any("trimmed" in problem.message for problem in check_journals(log).problems)


def test_a_deletion_that_was_interrupted_counts_as_done_and_is_ended_by_the_next(log, monkeypatch):
    directory = log.directory("first")
    found = beginning_of(directory, before=50, mark=NOTHING)
    deleted = 0
    unlink = os.unlink

    def dies(path, *args, **kwargs):
        nonlocal deleted
        if str(path).endswith(".seg"):
            if deleted == 2:
                raise OSError("the power is gone")
            deleted += 1
        unlink(path, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.unlink", lambda path, missing_ok=False: dies(path) if path.exists() else None)
        with pytest.raises(OSError, match="power"):
            begin_at(directory, found.trimmed)
    assert list_segments(directory)[0] == 2 < found.trimmed.first_segment
    assert check_journals(log).problems == []
    with pytest.raises(Truncated):
        log.open_reader("first").read()
    log.open_writer("first").close()
    rest = beginning_of(directory, before=50, mark=NOTHING)
    assert rest.trimmed == trimmed_of(directory)
    assert rest.size_bytes > 0
    begin_at(directory, rest.trimmed)
    assert list_segments(directory)[0] == found.trimmed.first_segment
    assert beginning_of(directory, before=50, mark=NOTHING).size_bytes == 0


def test_a_beginning_is_written_down_before_anything_goes(log, monkeypatch):
    directory = log.directory("first")
    found = beginning_of(directory, before=50, mark=NOTHING)

    def seen(path, trimmed):
        assert trimmed_of(path).first_segment == trimmed.first_segment

    monkeypatch.setattr("t1actors.log.trim.delete_before", seen)
    begin_at(directory, found.trimmed)


def test_a_beginning_never_moves_back(log):
    later = trimmed_at(log, "first", 60)
    begin_at(log.directory("first"), Trimmed(first_segment=1, first_sequence=10))
    assert trimmed_of(log.directory("first")) == later


def test_a_copy_of_a_trimmed_log_is_one(log, tmp_path):
    trimmed = trimmed_at(log, "first", 50)
    copy_journals(log, tmp_path / "copy")
    copy = FileLog(tmp_path / "copy")
    assert set_aside(copy.root) == []
    assert copy.kept_from("first") == trimmed.first_sequence
    assert check_journals(copy).digests == check_journals(log).digests


def test_a_trimmed_run_that_was_damaged_is_salvaged(log, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.move(log.root, run / "log")
    log = FileLog(run / "log", "process", segment_bytes=SEGMENT_BYTES)
    trimmed = trimmed_at(log, "first", 30)
    segment = trimmed.first_segment + 2
    path = segment_path(log.directory("first"), segment)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    saved = salvage(run, tmp_path / "saved")
    assert {aside.journal for aside in saved.asides} == {"first", "second", "third"}
    after = FileLog(tmp_path / "saved" / "log")
    assert after.kept_from("first") == trimmed.first_sequence
    assert check_journals(after).problems == []
    assert frames_count(after, "first") > 0
    after.open_writer("first").close()


def test_a_trimmed_journal_of_which_nothing_is_whole_is_cut_to_its_beginning(log):
    trimmed = trimmed_at(log, "first", 30)
    path = segment_path(log.directory("first"), trimmed.first_segment)
    path.write_bytes(bytes(path.stat().st_size))
    [aside, *_] = set_aside(log.root)
    assert (aside.journal, aside.from_sequence) == ("first", trimmed.first_sequence)
    kept = frames_of(log, "second")  # what rests on the part that was trimmed stands
    assert kept[-1].head.vector["first"] == trimmed.first_sequence - 1
    writer = log.open_writer("first")
    assert writer.next_sequence == trimmed.first_sequence
    writer.append(CommitHead(), [event("again")])
    writer.close()
    assert check_journals(log).problems == []


def frames_count(log, name):
    reader = log.open_reader(name, from_sequence=log.kept_from(name))
    count = 0
    while frames := reader.read():
        count += len(frames)
    return count
