"""Routing in pages, and whatever follows blobs from events: archives, trimming, sweeping, checking, cutting, salvaging."""

from __future__ import annotations

import shutil
import tarfile

import pytest

from t1actors.cli.main import main
from t1actors.events import TrajectoryAssembled, decode
from t1actors.log.archive import excerpt_of
from t1actors.log.blobs import FileBlobs
from t1actors.log.filelog import FileLog
from t1actors.log.merged import merged
from t1actors.observe.references import References
from t1actors.replay.export import export
from t1actors.replay.run import replay
from t1actors.runtime.loss import objection
from t1actors.runtime.trim_note import trim_note
from t1actors.runtime.trimming import Trimmer
from tests.replay.synthetic_run import write_run

LAST = 7


@pytest.fixture(scope="module", autouse=True)
def small_pages():
    """Of three rows, and blobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("t1actors.payloads.INLINE_LIMIT_BYTES", 1)
        patch.setattr("t1actors.tito.stored.PAGE_ROWS", 3)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory, small_pages):
    run = tmp_path_factory.mktemp("runs") / "made"
    write_run(FileLog(run / "log", "process"), FileBlobs(run / "blobs", "process"))
    return run


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def pages_of(run, steps=range(LAST + 1)) -> set[str]:
    events = (decode(entry.raw) for entry in merged(FileLog(run / "log")))
    assembled = [event for event in events if isinstance(event, TrajectoryAssembled) and event.step in steps]
    assert all(event.pages for event in assembled)
    return {page.digest for event in assembled for page in event.pages}


def missed(run) -> list[str]:
    """What `t1 log check` says of blobs, beside what it says of a run that was made up."""
    references = References(
        FileBlobs(run / "blobs"), excerpt=excerpt_of(run) is not None, first_step=trim_note(run).kept_step
    )
    for entry in merged(FileLog(run / "log")):
        references.apply(entry, decode(entry.raw))
    errors = [finding.message for finding in references.finish() if finding.severity == "error"]
    return [message for message in errors if "the event says 0, 0" not in message]


def test_the_archive_of_a_step_holds_its_pages_and_replays(run, tmp_path):
    written = export(run, tmp_path / "step.tar", step=LAST)
    with tarfile.open(written.path) as tar:
        tar.extractall(tmp_path / "there", filter="data")
    there = tmp_path / "there" / "run"
    assert replay(there, LAST).bit_exact
    held = set(FileBlobs(there / "blobs").digests())
    assert pages_of(run, [LAST]) <= held
    assert not pages_of(run) <= held
    assert missed(there) == []


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_page_that_is_gone_or_damaged_is_found_and_named_by_the_check_the_replay_and_the_cut(run, damage, capsys):
    page = sorted(pages_of(run, [3]))[0]
    path = FileBlobs(run / "blobs").path(page)
    path.unlink() if damage == "missing" else path.write_bytes(b"\xff" * path.stat().st_size)
    assert main(["log", "check", str(run)]) == 1
    said = capsys.readouterr()
    assert page[:16] in said.out + said.err
    assert any("TrajectoryAssembled.pages" in message and page[:16] in message for message in missed(run))
    assert page[:16] in replay(run, 3).impossible
    objected = objection(FileBlobs(run / "blobs"))
    frames = FileLog(run / "log").open_reader("assembler").read(max_frames=10_000)
    assert any(f"TrajectoryAssembled.pages: blob {page[:16]}" in objected(frame) for frame in frames)
    assert (
        not any(objection(FileBlobs(run / "blobs"), kept_step=LAST + 1)(frame) for frame in frames)
        or damage == "damaged"
    )


def test_sweeping_leaves_pages_alone(run):
    assert main(["log", "sweep", str(run)]) == 0
    blobs = FileBlobs(run / "blobs")
    assert all(blobs.has(page) for page in pages_of(run))


def test_trimming_deletes_the_pages_of_old_steps_and_not_those_that_kept_steps_share(run):
    blobs = FileBlobs(run / "blobs")
    trimmer = Trimmer(run)
    plan = trimmer.plan(1)
    trimmer.carry_out(plan)
    trimmer.close()
    kept = pages_of(run, range(plan.note.kept_step, LAST + 1))
    old = pages_of(run, range(plan.note.kept_step))
    assert kept & old
    assert old - kept
    assert all(blobs.has(page) for page in kept)
    assert not any(blobs.has(page) for page in old - kept)
    assert replay(run, LAST).bit_exact
    assert missed(run) == []


def test_a_salvaged_run_has_its_pages(run, tmp_path):
    assert main(["log", "salvage", str(run), str(tmp_path / "saved")]) == 0
    blobs = FileBlobs(tmp_path / "saved" / "blobs")
    assert all(blobs.has(page) for page in pages_of(run))
    assert replay(tmp_path / "saved", LAST).bit_exact
