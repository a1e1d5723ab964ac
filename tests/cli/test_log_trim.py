"""`t1 log trim` as a person calls it, and what the other commands say of a trimmed run."""

import os
import shutil

import msgspec
import pytest

from t1actors.events import (
    DiskLow,
    LogTrimmed,
    ReplicaReclaimed,
    RunPaused,
    RunStarted,
    decode,
    encode,
)
from t1actors.log.archive import Exported
from t1actors.log.aside import set_aside
from t1actors.log.errors import JournalFenced
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead
from t1actors.log.lock import last_holder
from t1actors.log.segments import read_end_of, segment_path
from t1actors.log.snapshots import snapshot_files, write_snapshot
from t1actors.observe.happenings import happenings
from t1actors.observe.view import RunView
from t1actors.runtime.trim_note import TrimNote, trim_note, write_trim_note
from t1actors.runtime.trimming import Trimmer
from tests.cli.trimmed_runs import SEGMENT_BYTES, finished_run, lie, made, said, stopped_run
from tests.log.support import frames_of
from tests.observe.recorded import half_a_run


@pytest.fixture
def recorded(tmp_path):
    return finished_run(tmp_path / "runs" / "made")


@pytest.fixture
def stopped(tmp_path):
    return stopped_run(tmp_path / "runs" / "stopped")


def files_of(directory):
    return {str(path.relative_to(directory)): path.stat().st_size for path in directory.rglob("*") if path.is_file()}


def test_a_dry_run_says_what_would_go_and_deletes_nothing(recorded, capsys):
    before = files_of(recorded)
    would = said(capsys, "log", "trim", recorded, "--keep-steps", 1, "--dry-run").out
    assert "would be deleted" in would
    assert files_of(recorded) == before
    did = said(capsys, "log", "trim", recorded, "--keep-steps", 1).out
    assert did == would.replace("would be deleted", "deleted")
    assert sum(files_of(recorded).values()) < sum(before.values())


def test_trim_says_what_it_deleted_and_what_replays(recorded, capsys):
    lines = said(capsys, "log", "trim", recorded, "--keep-steps", 2).out.splitlines()
    assert lines[0].endswith("of journals deleted")
    assert any(line.startswith("journal sampler: kept from event ") for line in lines)
    note = trim_note(recorded)
    assert any(line.startswith(f"steps {note.first_step} to ") and "were" not in line for line in lines)
    again = said(capsys, "log", "trim", recorded, "--keep-steps", 2).out
    assert again.startswith(f"nothing to delete: steps {note.first_step} to ")


def test_a_run_that_has_fewer_steps_is_left_as_it_is(recorded, capsys):
    before = files_of(recorded)
    assert said(capsys, "log", "trim", recorded, "--keep-steps", 100).out == "nothing to delete: all steps replay\n"
    assert files_of(recorded) == before


def test_what_is_old_enough_and_must_stay_is_named_with_the_actor_that_needs_it(stopped, capsys):
    for path in snapshot_files(stopped / "log" / "verifier"):
        path.unlink()
    out = said(capsys, "log", "trim", stopped, "--keep-steps", 1).out
    assert "journal sampler: more of it is old enough, and stays: actor verifier has no snapshot yet" in out


def append(directory, *events):
    """To the supervisor's journal, at rest."""
    writer = FileLog(directory / "log", "process").open_writer("supervisor")
    writer.append(CommitHead(), [encode(event) for event in events])
    writer.close()


def next_session(directory):
    """RunStarted of the session after the last one."""
    raws = [raw for frame in frames_of(FileLog(directory / "log"), "supervisor") for raw in frame.events]
    before = [event for event in map(decode, raws) if isinstance(event, RunStarted)][-1]
    return msgspec.structs.replace(before, resumed=True, session=before.session + 1)


GIVEN_UP = ReplicaReclaimed(replica="sampler1", reason="it died again")


def test_a_replica_that_was_given_up_is_named_with_what_lets_go_of_what_it_needs(stopped, capsys):
    """It went on when the run was started again, so what its older snapshot needs stays; here it had none yet."""
    append(stopped, next_session(stopped), GIVEN_UP)
    before = files_of(stopped)["log/pool/000000000000.seg"]
    out = said(capsys, "log", "trim", stopped, "--keep-steps", 1).out
    assert files_of(stopped)["log/pool/000000000000.seg"] == before
    wanted = (
        "journal pool: more of it is old enough, and stays: replica sampler1 was given up in session 1 and goes on from the "
        "beginning, having no snapshot, when the run is started again: resume it (`t1 run --resume`)"
    )
    assert wanted in out


def test_with_a_snapshot_a_replica_that_was_given_up_holds_back_what_is_behind_that(stopped, capsys):
    append(stopped, next_session(stopped), msgspec.structs.replace(GIVEN_UP, replica="sampler"))
    log = FileLog(stopped / "log")
    oldest = log.snapshots("sampler")[-1]
    place = oldest.positions["pool"] // 2
    early = msgspec.structs.replace(oldest, positions={**oldest.positions, "pool": place})
    write_snapshot(log.directory("sampler"), early, flush=False)
    out = said(capsys, "log", "trim", stopped, "--keep-steps", 1).out
    assert (
        "journal pool: more of it is old enough, and stays: replica sampler was given up in session 1 and goes on from its "
        f"snapshot at event {early.next_sequence:,} when the run is started again"
    ) in out
    assert 0 < log.kept_from("pool") <= place


def test_once_the_run_was_started_again_such_a_replica_is_an_actor_like_others(stopped, capsys):
    append(stopped, next_session(stopped), GIVEN_UP)
    append(stopped, next_session(stopped))
    trimmer = Trimmer(stopped)
    plan = trimmer.plan(1)
    trimmer.close()
    assert plan.given_up == ()
    assert "actor sampler1 has no snapshot yet that it could go on from" in plan.held["pool"]


def test_a_finished_run_waits_for_no_replica(recorded, capsys):
    append(recorded, GIVEN_UP)
    assert "and stays" not in said(capsys, "log", "trim", recorded, "--keep-steps", 1).out


def test_check_notes_from_where_on_what_is_kept(recorded, capsys):
    before = said(capsys, "log", "check", recorded).out.splitlines()
    said(capsys, "log", "trim", recorded, "--keep-steps", 1)
    lines = said(capsys, "log", "check", recorded).out.splitlines()
    first = FileLog(recorded / "log").kept_from("sampler")
    assert f"note   sampler: kept from event {first:,} on; what was before it was trimmed" in lines
    assert any(f"steps from {trim_note(recorded).first_step} on replay" in line for line in lines)
    assert lines[-1] == before[-1]  # the digest
    assert lines[-2].startswith("clean: ")


def test_cat_tail_sweep_and_salvage_take_it_as_it_is(recorded, tmp_path, capsys):
    whole = said(capsys, "log", "cat", recorded).out.splitlines()
    said(capsys, "log", "trim", recorded, "--keep-steps", 1)
    kept = said(capsys, "log", "cat", recorded).out.splitlines()
    assert set(kept) < set(whole)
    assert kept[-5:] == whole[-5:]
    assert said(capsys, "log", "tail", recorded, "-n", 3).out.splitlines() == kept[-3:]
    assert said(capsys, "log", "sweep", recorded).out.startswith("0 blobs that no event names")
    assert "a whole copy" in said(capsys, "log", "salvage", recorded, tmp_path / "saved").out
    assert trim_note(tmp_path / "saved") == trim_note(recorded)


def test_the_report_has_every_steps_reward_and_says_what_is_missing(recorded, capsys):
    said(capsys, "report", recorded)
    before = table(recorded)
    said(capsys, "log", "trim", recorded, "--keep-steps", 1)
    said(capsys, "report", recorded)
    after = table(recorded)
    assert [row[:6] for row in after] == [row[:6] for row in before]
    assert "Trimmed: steps from" in (recorded / "report.md").read_text()
    first = trim_note(recorded).first_step
    assert f"trimmed, steps from {first} on replay" in said(capsys, "runs", recorded.parent).out
    error = said(capsys, "report", recorded, "--step", 0, status=2).err
    assert "has no turns of step 0 any more" in error


def table(directory):
    text = (directory / "report.md").read_text().partition("## Steps")[2]
    return [[cell.strip() for cell in line.split("|")[1:]] for line in text.splitlines() if line.startswith("| ")]


def test_a_run_that_goes_on_is_not_trimmed(tmp_path, capsys):
    directory = tmp_path / "runs" / "live"
    recorder = made(directory, half_a_run)
    assert "stop the run first" in said(capsys, "log", "trim", directory, "--keep-steps", 1, status=1).err
    recorder.close()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere", "--keep-steps", "3"], 1, "no run here"),
        (["{run}", "--keep-steps", "0"], 2, "--keep-steps 0: must be at least 1"),
        (["{run}", "--keep-steps", "few"], 2, "few"),
        (["{run}"], 2, "--keep-steps"),
    ],
)
def test_wrong_calls_say_what_is_wrong(recorded, capsys, arguments, status, message):
    before = files_of(recorded)
    assert message in said(capsys, "log", "trim", *(a.format(run=recorded) for a in arguments), status=status).err
    assert files_of(recorded) == before


def test_a_deletion_that_fails_says_that_it_can_be_gone_on_with(recorded, capsys, monkeypatch):
    def full(path, note):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("t1actors.runtime.trimming.write_trim_note", full)
        error = said(capsys, "log", "trim", recorded, "--keep-steps", 1, status=1).err
    assert "no space left; nothing was harmed: `t1 log trim` goes on where it stopped" in error
    assert "deleted" in said(capsys, "log", "trim", recorded, "--keep-steps", 1).out


def test_a_display_says_what_was_trimmed_and_what_to_do_about_a_low_disk():
    sizes = {"segment_bytes": 3_000_000, "blobs": 2, "blob_bytes": 4_000_000}
    told = [
        LogTrimmed(first_step=3, kept_step=2, steps=2, **sizes),
        LogTrimmed(first_step=3, kept_step=2, steps=2, **sizes, trouble="read-only"),
        DiskLow(free_bytes=5_000_000),
    ]
    texts = [happening.text for happening in happenings(RunView(), told)]
    assert texts[0] == "trimmed: 7.0 MB deleted, steps from 3 on replay"
    assert texts[1] == "not trimmed, to be tried again: read-only"
    [told] = happenings(
        RunView(), [LogTrimmed(first_step=3, kept_step=2, steps=2, **sizes, given_up=("sampler1", "sampler3"))]
    )
    assert told.text.startswith(
        "trimmed: 7.0 MB deleted, steps from 3 on replay; more stays for sampler1, sampler3, given"
    )
    assert "stopped and resumed (`t1 run --resume`)" in told.text
    assert "5.0 MB of disk are free: no step opens" in texts[2]
    assert "t1 log trim" in texts[2]


def test_the_note_is_read_as_it_was_written(tmp_path):
    assert trim_note(tmp_path) == TrimNote(first_step=0, kept_step=0, steps=0)
    write_trim_note(tmp_path, TrimNote(first_step=5, kept_step=4, steps=3))
    assert trim_note(tmp_path) == TrimNote(first_step=5, kept_step=4, steps=3)


def test_a_snapshot_of_what_was_cut_off_does_not_count(recorded, capsys):
    log = lie(recorded, "verifier")
    assert len(log.snapshots("verifier")) == 2
    older = log.snapshots("verifier")[1]
    trimmer = Trimmer(recorded)
    assert [s.last_frame for s in trimmer._usable("verifier")] == [older.last_frame]
    trimmer.close()
    snapshot_files(log.directory("verifier"))[1].unlink()
    trimmer = Trimmer(recorded)
    plan = trimmer.plan(1)
    trimmer.close()
    assert plan.segment_bytes == 0
    assert "actor verifier has no snapshot yet that it could go on from" in plan.held["sampler"]


def test_a_cut_takes_the_snapshots_of_what_it_cut_off_out_of_the_way(recorded):
    log = lie(recorded, "verifier")
    assert set_aside(log.root) == []
    assert len(log.snapshots("verifier")) == 1
    directory = log.directory("verifier")
    assert len(list(directory.glob("aside-snapshot-*.t1s"))) == 1
    # A frame that goes takes its snapshot with it, and those of actors that had read it.
    end = read_end_of(log.directory("pool"))
    os.truncate(segment_path(log.directory("pool"), end.segment), end.offset - 1)
    assert set_aside(log.root) != []
    assert log.snapshots("pool") == []
    assert log.snapshots("verifier") == []


def test_the_archive_of_one_step_is_neither_trimmed_nor_resumed(recorded, capsys):
    (recorded / "exported.json").write_bytes(msgspec.json.encode(Exported(run="made", digest="d", events=1, step=3)))
    before = files_of(recorded)
    for command in (["log", "trim", recorded, "--keep-steps", 1], ["run", "--resume", recorded]):
        assert "is the archive of step 3 (" in said(capsys, *command, status=1).err
    assert files_of(recorded) == before
    (recorded / "exported.json").write_bytes(msgspec.json.encode(Exported(run="made", digest="d", events=1)))
    said(capsys, "log", "trim", recorded, "--keep-steps", 1)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"first_step": 3}'])
def test_a_damaged_note_is_named_with_what_to_do(recorded, capsys, content):
    said(capsys, "report", recorded)
    (recorded / "trimmed.json").write_bytes(content)
    commands = "log check", "report", "replay --all", "run --resume", "log trim --keep-steps 1"
    for command in commands:
        words = command.split()
        place = 2 if words[0] in ("log", "run") else 1
        error = said(capsys, *words[:place], recorded, *words[place:], status=2 if words[0] == "replay" else 1).err
        assert f"{recorded / 'trimmed.json'} cannot be read" in error, command
        assert "restore it from a copy of the run, or write" in error
        assert error.count("trimmed.json") == 1
    assert "made" in said(capsys, "runs", recorded.parent).out


def test_of_a_finished_run_no_actor_holds_anything_back(recorded, capsys):
    for path in snapshot_files(recorded / "log" / "verifier"):
        path.unlink()
    trimmer = Trimmer(recorded)  # its processes may not have ended yet
    assert "actor verifier has no snapshot" in trimmer.plan(1).held["sampler"]
    trimmer.close()
    out = said(capsys, "log", "trim", recorded, "--keep-steps", 1).out
    assert "journal sampler: kept from event " in out
    assert "and stays" not in out
    assert said(capsys, "log", "check", recorded).out.splitlines()[-2].startswith("clean: ")


def test_nobody_opens_a_journal_while_it_is_trimmed(stopped, capsys, monkeypatch):
    log = FileLog(stopped / "log", "process", segment_bytes=SEGMENT_BYTES)
    before = {name: last_holder(log.directory(name)) for name in log.journals()}
    carried_out = []

    def carry_out(trimmer, plan):
        for name in log.journals():
            with pytest.raises(JournalFenced, match=f'"pid":{os.getpid()}'):
                log.open_writer(name)
        assert f"is being run by process {os.getpid()}" in said(capsys, "run", "--resume", stopped, status=1).err
        carried_out.append(plan)

    with monkeypatch.context() as patched:
        patched.setattr("t1actors.runtime.trimming.Trimmer.carry_out", carry_out)
        said(capsys, "log", "trim", stopped, "--keep-steps", 1)
    assert carried_out
    assert {name: last_holder(log.directory(name)) for name in log.journals()} == before
    writer = log.open_writer("pool")
    assert "stop the run first" in said(capsys, "log", "trim", stopped, "--keep-steps", 1, status=1).err
    writer.close()


def test_a_note_of_steps_that_the_log_does_not_have_deletes_nothing(stopped, capsys):
    write_trim_note(stopped, TrimNote(first_step=50, kept_step=50, steps=1))
    before = files_of(stopped)
    assert "nothing to delete" in said(capsys, "log", "trim", stopped, "--keep-steps", 1).out
    assert files_of(stopped) == before


def damage_last_frame(directory, name):
    log = FileLog(directory / "log")
    end = read_end_of(log.directory(name))
    path = segment_path(log.directory(name), end.segment)
    data = bytearray(path.read_bytes())
    data[end.offset - 1] ^= 1
    path.write_bytes(data)


def test_salvage_says_whether_a_trimmed_run_can_go_on(stopped, tmp_path, capsys):
    untrimmed = shutil.copytree(stopped, tmp_path / "untrimmed")
    said(capsys, "log", "trim", stopped, "--keep-steps", 1)
    # What is behind the snapshots goes: they stand.
    writer = FileLog(stopped / "log", "process").open_writer("publisher")
    writer.append(CommitHead(), [encode(RunPaused(step=7, session=1))])
    writer.close()
    damage_last_frame(stopped, "publisher")
    saved = tmp_path / "saved"
    assert f"`t1 run --resume {saved}` goes on with it" in said(capsys, "log", "salvage", stopped, saved, status=1).out
    # What they are of goes.
    for name in ("pool", "publisher"):
        damage_last_frame(saved, name)
    out = said(capsys, "log", "salvage", saved, tmp_path / "again", status=1).out
    assert "it cannot be resumed: the run was trimmed" in out
    assert "pool, publisher, sampler, verifier fits what is left" in out
    assert "--resume" not in out
    # As long as the log is whole no snapshot is needed.
    damage_last_frame(untrimmed, "pool")
    assert "goes on with it" in said(capsys, "log", "salvage", untrimmed, tmp_path / "third", status=1).out
