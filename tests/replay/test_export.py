"""Archives that a colleague can replay."""

import tarfile

import pytest

from t1actors.log.archive import Exported, excerpt_of
from t1actors.log.blobs import FileBlobs
from t1actors.log.check import check_journals, run_digest
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead
from t1actors.log.segments import segment_path
from t1actors.payloads import BlobError
from t1actors.replay import export as export_module
from t1actors.replay.export import ExportRefused, export
from t1actors.replay.run import Replayer, replay
from tests.log.support import event
from tests.replay.synthetic_run import write_run

LAST = 7


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "made"
    write_run(FileLog(directory / "log", "process"), FileBlobs(directory / "blobs", "process"))
    (directory / "sandboxes" / "s0.t0").mkdir(parents=True)
    (directory / "sandboxes" / "s0.t0" / "junk").write_text("x")
    (directory / "tasks").mkdir()
    (directory / "tasks" / "choice.json").write_text("{}")
    (directory / "tasks" / "choice.json").chmod(0o600)
    (directory / "tasks").chmod(0o700)
    return directory


def unpacked(archive, to):
    with tarfile.open(archive) as tar:
        tar.extractall(to, filter="data")
    (folder,) = to.iterdir()
    return folder


def digest(directory):
    return run_digest(check_journals(FileLog(directory / "log")).digests)


def test_a_step_is_replayed_from_its_archive_alone(run, tmp_path):
    written = export(run, tmp_path / "step.tar", step=LAST)
    there = unpacked(written.path, tmp_path / "elsewhere")
    assert there.name == "made"
    assert excerpt_of(there) == LAST
    assert replay(there, LAST).bit_exact
    assert digest(there) == digest(run) == written.exported.digest
    held = list(FileBlobs(there / "blobs").digests())
    assert 0 < len(held) == written.blobs < len(list(FileBlobs(run / "blobs").digests()))


def test_of_an_archive_of_a_step_other_steps_say_what_is_missing(run, tmp_path):
    there = unpacked(export(run, tmp_path / "step.tar", step=LAST).path, tmp_path / "elsewhere")
    report = replay(there, 1)
    assert report.impossible
    assert "missing" in report.impossible


def test_a_whole_archive_replays_every_step_and_holds_no_sandboxes(run, tmp_path):
    there = unpacked(export(run, tmp_path / "run.tar.gz").path, tmp_path / "elsewhere")
    reports = list(Replayer.open(there).all())
    assert len(reports) == LAST + 1
    assert all(report.bit_exact for report in reports)
    assert (there / "tasks" / "choice.json").stat().st_mode & 0o777 == 0o600
    with tarfile.open(tmp_path / "run.tar.gz") as tar:
        assert tar.getmember("made/tasks").mode == 0o700
    assert not (there / "sandboxes").exists()
    assert excerpt_of(there) is None


def test_the_same_content_gives_the_same_bytes(run, tmp_path):
    one, two = export(run, tmp_path / "one.tgz"), export(run, tmp_path / "two.tgz")
    assert one.path.read_bytes() == two.path.read_bytes()
    assert one.exported == two.exported == Exported(run="made", digest=digest(run), events=one.exported.events)


def test_a_run_that_goes_on_is_exported_as_far_as_it_fits_together(run, tmp_path):
    """Its journals are copied one after the other: one may rest on what was written after another was copied."""
    writer = FileLog(run / "log", "process").open_writer("verifier")
    writer.append(CommitHead(vector={"supervisor": 10_000}), [event("rests on what is not there yet")])
    try:
        there = unpacked(export(run, tmp_path / "run.tar").path, tmp_path / "elsewhere")
    finally:
        writer.close()
    assert check_journals(FileLog(there / "log")).problems == []
    assert replay(there, LAST).bit_exact


def test_what_a_run_deletes_while_it_is_exported_is_left_out_at_the_next_attempt(run, tmp_path, monkeypatch):
    named = export_module._named
    tries = []

    def overtaken(log, blobs):
        tries.append(1)
        if len(tries) < 3:
            raise BlobError("gone just now")
        return named(log, blobs)

    monkeypatch.setattr(export_module, "_named", overtaken)
    with pytest.raises(BlobError):  # nobody deletes anything of a run at rest: there it is damage
        export(run, tmp_path / "whole.tar")
    writer = FileLog(run / "log", "process").open_writer("supervisor")
    assert export(run, tmp_path / "whole.tar").path.exists()
    writer.close()
    assert len(tries) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["whole.tar"]


def test_a_damaged_run_is_refused_with_what_helps(run, tmp_path):
    whole = unpacked(export(run, tmp_path / "run.tar").path, tmp_path / "elsewhere")
    path = segment_path(whole / "log" / "actor", 0)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(ExportRefused, match=r"is damaged \(journal actor: .*t1 log salvage"):
        export(whole, tmp_path / "damaged.tar")
    assert not list(tmp_path.glob("*damaged*")) + list(tmp_path.glob(".export*"))


def test_nothing_is_written_over(run, tmp_path):
    (tmp_path / "there.tar").write_text("mine")
    with pytest.raises(ExportRefused, match="exists already"):
        export(run, tmp_path / "there.tar")
    assert (tmp_path / "there.tar").read_text() == "mine"


def test_a_step_that_cannot_be_replayed_makes_no_archive(run, tmp_path):
    with pytest.raises(ExportRefused, match="has no step 99"):
        export(run, tmp_path / "step.tar", step=99)
    assert list(tmp_path.iterdir()) == []
