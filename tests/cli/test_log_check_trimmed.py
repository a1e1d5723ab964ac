"""`t1 log check` of a trimmed run: whether it can be gone on with, which takes a snapshot of each actor that reads turns."""

import os

import msgspec
import pytest

from t1actors.cli.main import main
from t1actors.events import RunFailed, encode
from t1actors.log.archive import Exported
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead
from t1actors.log.snapshots import read_snapshots, snapshot_files, snapshot_path, write_snapshot
from t1actors.runtime.snapshots import overtaken
from tests.cli.trimmed_runs import delete_snapshots, finished_run, lie, said, stopped_run
from tests.log.support import frames_of


@pytest.fixture
def trimmed(tmp_path, capsys):
    """A stopped run that was trimmed."""
    directory = stopped_run(tmp_path / "runs" / "stopped")
    said(capsys, "log", "trim", directory, "--keep-steps", 1)
    assert FileLog(directory / "log").kept_from("pool") > 0
    return directory


def lost(directory, capsys):
    """What check says of actors that cannot go on; it finds no other error."""
    capsys.readouterr()
    status = main(["log", "check", str(directory)])
    errors = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error ")]
    assert all("cannot be recovered" in line for line in errors)
    assert status == (1 if errors else 0)
    return errors


def test_check_finds_nothing_wrong_with_a_trimmed_run_whose_actors_have_snapshots(trimmed, capsys):
    assert lost(trimmed, capsys) == []


def test_check_names_the_actor_that_a_trimmed_run_cannot_be_gone_on_with(trimmed, capsys):
    delete_snapshots(trimmed, "verifier")
    directory = trimmed / "log" / "verifier"
    assert lost(trimmed, capsys) == [
        "error  actor verifier cannot be recovered: it reads what was trimmed, so it has to go on from a snapshot, and none "
        f"in {directory} can be used: there is none; restore one from a copy of the run, or go on with the copy; as it is "
        "the run can be read and replayed, and not resumed"
    ]


def test_check_says_of_each_snapshot_why_it_will_not_do(trimmed, capsys):
    log = FileLog(trimmed / "log")
    [good] = log.snapshots("verifier")
    old = msgspec.structs.replace(good, positions={**good.positions, "pool": 0}, next_sequence=good.next_sequence - 1)
    delete_snapshots(trimmed, "verifier", "pool", "assembler")
    write_snapshot(log.directory("verifier"), old, flush=False)
    damaged = snapshot_path(log.directory("verifier"), good.next_sequence)
    damaged.write_bytes(b"T1S1 and then nothing")
    strange = msgspec.structs.replace(good, last_frame=bytes(32))
    write_snapshot(log.directory("assembler"), strange, flush=False)
    assembler, pool, verifier = lost(trimmed, capsys)
    assert (
        f": the one at event {old.next_sequence:,} is older than what other journals still have; {damaged.name} is damaged;"
        in verifier
    )
    assert "is of a frame that the journal does not have" in assembler
    assert "actor pool" in pool
    assert "there is none" in pool


def test_check_is_content_with_one_of_two(trimmed, capsys):
    log = lie(trimmed, "verifier")
    assert len(log.snapshots("verifier")) == 2
    assert lost(trimmed, capsys) == []


def test_who_reads_nothing_that_was_trimmed_needs_no_snapshot(trimmed, capsys):
    delete_snapshots(trimmed, "critic", "actor")
    assert lost(trimmed, capsys) == []


def test_check_asks_for_no_snapshots_where_nobody_goes_on_or_everything_can_be_folded(tmp_path, capsys):
    whole, finished = stopped_run(tmp_path / "whole"), finished_run(tmp_path / "finished")
    said(capsys, "log", "trim", finished, "--keep-steps", 1)
    for directory in (whole, finished):
        delete_snapshots(directory, "verifier", "pool")
        assert lost(directory, capsys) == []


def test_check_asks_for_no_snapshots_of_a_run_that_failed_or_is_the_archive_of_one_step(trimmed, capsys):
    delete_snapshots(trimmed, "verifier")
    (trimmed / "exported.json").write_bytes(msgspec.json.encode(Exported(run="made", digest="d", events=1, step=6)))
    assert lost(trimmed, capsys) == []
    (trimmed / "exported.json").unlink()
    assert len(lost(trimmed, capsys)) == 1
    vector = frames_of(FileLog(trimmed / "log"), "publisher")[-1].head.vector
    writer = FileLog(trimmed / "log", "process").open_writer("publisher")
    writer.append(CommitHead(vector=vector), [encode(RunFailed(step=7, reason="no answer"))])
    writer.close()
    assert lost(trimmed, capsys) == []


def test_of_an_actor_that_is_running_check_says_that_a_clean_stop_makes_a_snapshot(trimmed, capsys):
    delete_snapshots(trimmed, "verifier")
    writer = FileLog(trimmed / "log", "process").open_writer("verifier")
    [line] = lost(trimmed, capsys)
    assert line.endswith(f"process {os.getpid()} is that actor: stop the run cleanly (Ctrl-C), and it keeps one")
    writer.close()


def test_beside_a_live_run_check_takes_snapshots_that_are_replaced_and_journals_that_are_trimmed_for_no_error(
    trimmed, capsys, monkeypatch
):
    """What it looked at was deleted while it looked, because there is something newer."""
    log = FileLog(trimmed / "log")
    directory = log.directory("verifier")
    [newest] = log.snapshots("verifier")
    old = msgspec.structs.replace(newest, positions={**newest.positions, "pool": 0}, next_sequence=1)
    delete_snapshots(trimmed, "verifier")
    write_snapshot(directory, old, flush=False)
    asked = []

    def meanwhile(log, snapshot):
        if snapshot == old and not asked:
            asked.append(snapshot)
            delete_snapshots(trimmed, "verifier")
            write_snapshot(directory, newest, flush=False)
        return overtaken(log, snapshot)

    monkeypatch.setattr("t1actors.runtime.snapshots.overtaken", meanwhile)
    assert lost(trimmed, capsys) == []
    assert asked


def test_a_snapshot_that_goes_while_it_is_read_has_a_successor(trimmed, monkeypatch):
    directory = trimmed / "log" / "verifier"
    [newest] = read_snapshots(directory)
    listed = [snapshot_path(directory, 1), *snapshot_files(directory)]
    answers = [listed]
    monkeypatch.setattr("t1actors.log.snapshots.snapshot_files", lambda path: answers.pop() if answers else listed[1:])
    assert read_snapshots(directory) == [newest]
