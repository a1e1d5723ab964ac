"""`t1 log tail`, `export` and `salvage`, as a person calls them."""

import shutil
import subprocess
import sys
import tarfile
import time

import msgspec
import pytest

from t1actors.cli.main import main
from t1actors.events import decode
from t1actors.log.blobs import FileBlobs
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead
from t1actors.log.interface import JournalFenced
from t1actors.log.merged import merged
from t1actors.log.segments import START, end_path, segment_path
from t1actors.log.sweep import sweep
from t1actors.payloads import payloads_of
from tests.observe.recorded import Recorder, half_a_run, whole_run


def made(directory, write):
    recorder = Recorder(FileLog(directory / "log", "process"))
    write(recorder)
    return recorder


@pytest.fixture
def recorded(tmp_path):
    """A finished run on disk."""
    directory = tmp_path / "runs" / "made"
    made(directory, whole_run).close()
    return directory


def lines_of(capsys, *arguments):
    assert main(["log", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def test_tail_prints_the_last_of_what_cat_prints(recorded, capsys):
    everything = lines_of(capsys, "cat", recorded)
    assert len(everything) > 30
    assert lines_of(capsys, "tail", recorded) == everything[-20:]
    assert lines_of(capsys, "tail", recorded, "-n", "3") == everything[-3:]
    graded = lines_of(capsys, "cat", recorded, "--kind", "Graded")
    assert lines_of(capsys, "tail", recorded, "--kind", "Graded", "--lines", "2") == graded[-2:]


def test_tail_that_follows_ends_with_the_run(recorded, capsys):
    assert lines_of(capsys, "tail", recorded, "-f", "-n", "2") == lines_of(capsys, "tail", recorded, "-n", "2")


def test_tail_follows_a_run_that_goes_on(tmp_path):
    directory = tmp_path / "runs" / "live"
    recorder = made(directory, half_a_run)
    command = [sys.executable, "-m", "t1actors", "log", "tail", "-f", "-n", "1", str(directory), "--kind", "RunStopped"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(1.0)
        assert process.poll() is None
        from t1actors.events import RunStopped

        recorder.emit("supervisor", RunStopped(reason="finished"))
        recorder.close()
        printed, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "RunStopped reason=finished" in printed


def test_tail_says_why_it_shows_nothing(recorded, capsys):
    assert main(["log", "tail", str(recorded), "--trial", "s99.t1"]) == 1
    assert "is of --trial s99.t1" in capsys.readouterr().err
    assert main(["log", "tail", str(recorded), "--kind", "Graten"]) == 1
    assert "is of --kind Graten; without --kind there are: " in capsys.readouterr().err


def test_export_packs_a_run_and_says_what_to_do_with_it(recorded, tmp_path, capsys):
    archive = tmp_path / "made.tar.gz"
    assert main(["log", "export", str(recorded), str(archive)]) == 0
    said = capsys.readouterr().out
    assert "next     tar xf made.tar.gz && t1 replay made --all" in said
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "elsewhere", filter="data")
    assert main(["log", "check", str(recorded)]) == 0
    here = capsys.readouterr().out.splitlines()[-1]
    assert main(["log", "check", str(tmp_path / "elsewhere" / "made")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == here
    assert here in said


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["export", "nowhere", "x.tar"], 1, "no run here"),
        (["export", "{run}", "no/such/x.tar"], 2, "there is no directory no/such"),
        (["export", "{run}", "{run}"], 1, "exists already"),
        (["salvage", "nowhere", "new"], 1, "no run here"),
        (["salvage", "{run}", "{run}"], 1, "exists already"),
        (["tail", "nowhere"], 1, "no run here"),
        (["tail", "{run}", "-n", "-1"], 2, "-1"),
    ],
)
def test_wrong_calls_say_what_is_wrong(recorded, monkeypatch, tmp_path, capsys, arguments, status, message):
    monkeypatch.chdir(tmp_path)
    assert main(["log", *(a.format(run=recorded) for a in arguments)]) == status
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_salvage_of_a_whole_run_is_a_copy_of_it(recorded, tmp_path, capsys):
    assert main(["log", "salvage", str(recorded), str(tmp_path / "saved")]) == 0
    assert "nothing was damaged" in capsys.readouterr().out
    assert lines_of(capsys, "cat", tmp_path / "saved") == lines_of(capsys, "cat", recorded)


def test_salvage_keeps_what_fits_together_and_names_the_rest(recorded, tmp_path, capsys):
    path = segment_path(recorded / "log" / "pool", 0)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)
    before = {file: file.read_bytes() for file in recorded.rglob("*") if file.is_file()}
    assert main(["log", "check", str(recorded)]) == 1
    capsys.readouterr()
    saved = tmp_path / "saved"
    assert main(["log", "salvage", str(recorded), str(saved)]) == 1
    said = capsys.readouterr().out
    assert "journal pool: kept up to event" in said
    assert "checksum mismatch" in said
    assert f"t1 run --resume {saved}" in said
    assert main(["log", "check", str(saved)]) == 0
    assert {file: file.read_bytes() for file in recorded.rglob("*") if file.is_file()} == before


def test_a_run_that_goes_on_is_not_salvaged(tmp_path, capsys):
    directory = tmp_path / "runs" / "live"
    recorder = made(directory, half_a_run)
    assert main(["log", "salvage", str(directory), str(tmp_path / "saved")]) == 1
    assert "stop the run first" in capsys.readouterr().err
    recorder.close()
    shutil.rmtree(directory)


def test_sweep_deletes_what_no_event_names_and_nothing_else(recorded, capsys):
    blobs = FileBlobs(recorded / "blobs", "process")
    events = [decode(entry.raw) for entry in merged(FileLog(recorded / "log"))]
    named = {payload.digest: payload for event in events for _, payload in payloads_of(event)}
    held = blobs.put(next(payload.inline for payload in named.values() if payload.inline))
    garbage = blobs.put(b"named by nobody" * 2000)
    half = blobs.path(garbage).with_name(f".{garbage}.0123")
    half.write_bytes(b"half")
    assert main(["log", "sweep", str(recorded), "--dry-run"]) == 0
    assert "1 blobs that no event names and 1 files that are no blobs would be deleted: 30" in capsys.readouterr().out
    assert blobs.has(garbage)
    assert main(["log", "sweep", str(recorded)]) == 0
    assert list(blobs.digests()) == [held]
    assert not half.exists()
    assert main(["log", "sweep", str(recorded)]) == 0
    assert "0 blobs that no event names and 0 files" in capsys.readouterr().out


def test_a_run_that_goes_on_is_not_swept(tmp_path, capsys):
    directory = tmp_path / "runs" / "live"
    recorder = made(directory, half_a_run)
    assert main(["log", "sweep", str(directory)]) == 1
    assert "stop the run first" in capsys.readouterr().err
    recorder.close()


def test_a_run_cannot_be_resumed_while_it_is_swept(recorded, monkeypatch):
    """Its blobs would be there before the events that name them."""
    log = FileLog(recorded / "log", "process")

    def resumed(swept):
        for name in swept.journals():
            with pytest.raises(JournalFenced):
                log.open_writer(name)
        return set()

    monkeypatch.setattr("t1actors.log.sweep.named_digests", resumed)
    sweep(log, FileBlobs(recorded / "blobs"), delete=True)
    log.open_writer("pool").close()


def test_sweep_keeps_what_an_event_of_a_newer_version_names(recorded, capsys):
    blobs = FileBlobs(recorded / "blobs", "process")
    named = [blobs.put(bytes([n]) * 20_000) for n in range(3)]
    newer = {"kind": "Invented", "v": 9, "inside": [{"deep": named[0]}], "digest": named[1]}
    writer = FileLog(recorded / "log", "process").open_writer("pool")
    writer.append(CommitHead(), [msgspec.msgpack.encode(newer)])
    writer.close()
    assert main(["log", "sweep", str(recorded)]) == 0
    assert sorted(blobs.digests()) == sorted(named[:2])


def test_check_says_what_lies_behind_a_durable_end_that_lags(recorded, capsys):
    assert main(["log", "check", str(recorded)]) == 0
    assert "behind its durable end" not in capsys.readouterr().out
    end_path(recorded / "log" / "pool").write_bytes(START.encoded())
    main(["log", "check", str(recorded)])
    assert "note   pool:" in (said := capsys.readouterr().out)
    assert (
        f"behind its durable end were not checked; after a lost machine that end may lag: `t1 run --resume {recorded}"
        in said
    )
