"""What a trimming leaves alone, and what a loss of the machine makes of a trimmed run."""

import errno
import os
import time

import pytest

from t1actors.events import TrajectoryAssembled, encode
from t1actors.log.blobs import FileBlobs
from t1actors.log.errors import JournalDamaged
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead, Frame
from t1actors.log.segments import end_path, segment_path
from t1actors.log.trim import Mark, beginning_of
from t1actors.payloads import Payload, digest_of
from t1actors.runtime import trim_note
from t1actors.runtime.loss import objection
from t1actors.runtime.trim_note import TrimNote
from t1actors.runtime.trimming import Trimmer, step_of
from tests.golden_events import KINDS, example
from tests.log.support import event
from tests.replay.synthetic_run import write_run


def trajectory(step):
    made = example(TrajectoryAssembled)
    gone = Payload(digest=digest_of(b"gone"), size_bytes=4)
    return type(made)(
        **{f: getattr(made, f) for f in made.__struct_fields__} | {"step": step, "record": gone, "pages": ()}
    )


def test_after_a_loss_a_trajectory_that_was_trimmed_is_no_reason_to_cut_the_log(tmp_path):
    blobs = FileBlobs(tmp_path / "blobs")

    def frame(step):
        return Frame("assembler", 0, 1, CommitHead(), (encode(trajectory(step)),))

    assert "damaged or missing" in objection(blobs)(frame(3))
    assert objection(blobs, kept_step=4)(frame(3)) == ""
    assert "damaged or missing" in objection(blobs, kept_step=4)(frame(4))


def test_an_event_is_of_its_step_or_of_its_trials():
    assert step_of(trajectory(7)) == 7
    kinds = {name: kind for name, kind in KINDS.items() if "trial" in kind.__struct_fields__}
    assert len(kinds) > 10
    for kind in kinds.values():
        if "step" not in kind.__struct_fields__:
            made = kind(**{f: getattr(example(kind), f) for f in kind.__struct_fields__} | {"trial": "s12.t3"})
            assert step_of(made) == 12
    assert step_of(example(KINDS["RunStarted"])) > 10**9


def test_a_blob_that_was_put_again_just_now_stays_for_an_event_may_be_about_to_name_it(tmp_path):
    log, blobs = FileLog(tmp_path / "log", "process"), FileBlobs(tmp_path / "blobs", "process")
    write_run(log, blobs)
    old = time.time() - 3600
    for digest in blobs.digests():
        os.utime(blobs.path(digest), (old, old))
    trimmer = Trimmer(tmp_path, recent_s=60.0)
    again, *others = trimmer.plan(1).blobs
    assert others
    assert blobs.put(bytes(blobs.get(again))) == again
    plan = trimmer.plan(1)
    assert set(plan.blobs) == set(others)
    late = others[0]
    blobs.put(bytes(blobs.get(late)))  # between the plan and the deed
    trimmer.carry_out(plan)
    assert blobs.has(again)
    assert blobs.has(late)
    assert not any(blobs.has(other) for other in others[1:])
    trimmer.recent_s = 0.0
    assert set(trimmer.plan(1).blobs) == {again, late}
    trimmer.close()


def test_a_blob_that_goes_while_it_is_put_again_is_written_anew(tmp_path, monkeypatch):
    blobs = FileBlobs(tmp_path, "process")
    digest = blobs.put(b"the same")
    utime = os.utime

    def gone(path, *args):
        os.unlink(path)
        utime(path, *args)

    monkeypatch.setattr("os.utime", gone)
    assert blobs.put(b"the same") == digest
    assert bytes(blobs.get(digest)) == b"the same"


@pytest.mark.parametrize("behind", [b"", bytes(4096)])
def test_a_segment_stays_until_a_frame_behind_it_is_durable(tmp_path, behind):
    log = FileLog(tmp_path, "process", segment_bytes=300)
    writer = log.open_writer("pool")
    while writer.append(CommitHead(), [event("x" * 100)]) < 4:
        pass
    writer.close()
    directory = log.directory("pool")
    whole = beginning_of(directory, before=10**9, mark=Mark("nobody", 0))
    assert whole.trimmed.first_segment == 1
    segment_path(directory, 1).write_bytes(behind)
    end_path(directory).write_bytes((1 << 32).to_bytes(8, "little"))
    assert beginning_of(directory, before=10**9, mark=Mark("nobody", 0)).size_bytes == 0
    segment_path(directory, 1).write_bytes(b"no frame" * 100)
    end_path(directory).write_bytes((1 << 32 | 50).to_bytes(8, "little"))
    with pytest.raises(JournalDamaged):
        beginning_of(directory, before=10**9, mark=Mark("nobody", 0))


def full_until(monkeypatch, freed):
    """No new note can be written while ``freed()`` is false."""
    write = trim_note._write_anew

    def written(path, record):
        path.with_name(f".{path.name}").write_bytes(b"half")
        if not freed():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, record)

    monkeypatch.setattr(trim_note, "_write_anew", written)


def test_on_a_full_disk_what_needs_no_note_goes_first_and_makes_room_for_it(tmp_path, monkeypatch):
    log, blobs = FileLog(tmp_path / "log", "process"), FileBlobs(tmp_path / "blobs", "process")
    write_run(log, blobs)
    trimmer = Trimmer(tmp_path)
    plan = trimmer.plan(1)
    full_until(monkeypatch, lambda: not all(map(blobs.has, plan.blobs)))
    trimmer.carry_out(plan)
    assert not any(map(blobs.has, plan.blobs))
    assert trim_note.trim_note(tmp_path) == plan.note
    assert not (tmp_path / ".trimmed.json").exists()
    trimmer.close()


def test_on_a_full_disk_without_such_blobs_nothing_goes_and_nothing_is_left_behind(tmp_path, monkeypatch):
    log, blobs = FileLog(tmp_path / "log", "process"), FileBlobs(tmp_path / "blobs", "process")
    write_run(log, blobs)
    trimmer = Trimmer(tmp_path)
    plan = trimmer.plan(1)
    states = {p.digest for step in trimmer._steps.opened for p in trimmer._steps.states_of(step)}
    rest = {digest for digest in plan.blobs if digest not in states and digest in trimmer._named}
    full_until(monkeypatch, lambda: not all(map(blobs.has, rest)))
    with pytest.raises(OSError, match="No space left"):
        trimmer.carry_out(plan)
    assert rest
    assert all(map(blobs.has, rest))
    assert not (tmp_path / ".trimmed.json").exists()
    trimmer.close()


def test_on_a_full_disk_a_note_is_overwritten(tmp_path, monkeypatch):
    trim_note.write_trim_note(tmp_path, TrimNote(first_step=123456, kept_step=123456, steps=1000))
    size = (tmp_path / "trimmed.json").stat().st_size
    full_until(monkeypatch, lambda: False)
    trim_note.write_trim_note(tmp_path, TrimNote(first_step=1234567, kept_step=9, steps=3))
    assert trim_note.trim_note(tmp_path) == TrimNote(first_step=1234567, kept_step=9, steps=3)
    assert (tmp_path / "trimmed.json").stat().st_size == size
    assert [path.name for path in tmp_path.iterdir()] == ["trimmed.json"]
