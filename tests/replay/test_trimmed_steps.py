"""Whatever is trimmed: every step that is said to replay does, bit for bit, and the others say why they do not."""

import shutil

import pytest

from t1actors.log.blobs import FileBlobs
from t1actors.log.filelog import FileLog
from t1actors.replay.run import Replayer
from t1actors.runtime.trim_note import trim_note
from t1actors.runtime.trimming import Trimmer
from tests.replay.synthetic_run import PURPOSES, write_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Warm-up, recalibration and training, swept as the trainers do."""
    run = tmp_path_factory.mktemp("synthetic") / "run"
    write_run(FileLog(run / "log", "process"), FileBlobs(run / "blobs", "process"))
    return run


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def trimmed(run, count):
    trimmer = Trimmer(run)
    plan = trimmer.plan(count)
    trimmer.carry_out(plan)
    trimmer.close()
    return plan


@pytest.mark.parametrize("count", range(1, len(PURPOSES) + 1))
def test_the_last_steps_replay_and_the_others_say_that_they_were_trimmed(run, count):
    before = sum(1 for _ in FileBlobs(run / "blobs").digests())
    plan = trimmed(run, count)
    note = trim_note(run)
    assert note.first_step in (0, len(PURPOSES) - count)
    assert (note.first_step == 0) == plan.empty
    assert before - sum(1 for _ in FileBlobs(run / "blobs").digests()) == len(plan.blobs)
    replayer = Replayer.open(run)
    assert replayer.numbers() == list(range(note.first_step, len(PURPOSES)))
    for number in range(len(PURPOSES)):
        report = Replayer.open(run).step(number)  # each from what is on disk alone
        if number >= note.first_step:
            assert report.bit_exact, report.text()
        else:
            assert report.bit_exact or "was deleted from the run on purpose" in report.text()


def test_trimming_again_to_fewer_steps_goes_on_from_there(run):
    for count in (6, 4, 3, 1):
        trimmed(run, count)
        note = trim_note(run)
        assert note.first_step <= len(PURPOSES) - count
        assert all(report.bit_exact for report in Replayer.open(run).all())
    assert trim_note(run).first_step == len(PURPOSES) - 1
    again = trimmed(run, 5)
    assert again.empty
    assert trim_note(run).first_step == len(PURPOSES) - 1


def test_something_is_deleted_at_last(run):
    assert trimmed(run, 1).blob_bytes > 0


def test_a_trimming_that_died_while_it_deleted_blobs_is_ended_by_the_next(run, tmp_path, monkeypatch):
    other = shutil.copytree(run, tmp_path / "other")
    trimmed(other, 2)
    deleted = []
    delete = FileBlobs.delete

    def dies(blobs, digest):
        if len(deleted) == 2:
            raise OSError("no power")
        deleted.append(digest)
        delete(blobs, digest)

    with monkeypatch.context() as patched:
        patched.setattr(FileBlobs, "delete", dies)
        with pytest.raises(OSError, match="no power"):
            trimmed(run, 2)
    assert all(report.bit_exact for report in Replayer.open(run).all())
    assert set(FileBlobs(other / "blobs").digests()) < set(FileBlobs(run / "blobs").digests())
    trimmed(run, 2)
    assert set(FileBlobs(other / "blobs").digests()) == set(FileBlobs(run / "blobs").digests())
