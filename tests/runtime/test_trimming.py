"""What a trimming leaves alone, and what a loss of the machine makes of a trimmed run."""

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
from t1actors.runtime.loss import objection
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
