"""`t1 run --resume`: what goes on, what is refused, and what is said."""

import contextlib
import io
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from t1actors.cli import resume, run
from t1actors.cli.main import main
from t1actors.config import to_toml
from t1actors.events import ActorReady, RunFailed, RunStarted, RunStopped, StopRequested, decode
from t1actors.log.filelog import FileLog
from t1actors.runtime.errors import RunDirectoryError
from tests.cli.kernels_found import KernelsFound
from tests.cli.toy import install
from tests.observe.recorded import Recorder, start, whole_run


def told(run_dir, kind):
    """Events of the supervisor's journal."""
    reader = FileLog(run_dir / "log").open_reader("supervisor")
    found = [decode(raw) for frame in reader.read(max_frames=10_000) for raw in frame.events]
    reader.close()
    return [event for event in found if isinstance(event, kind)]


def interrupt_when(condition):
    """Presses Ctrl-C once ``condition`` holds."""

    def press():
        for _ in range(3000):
            if condition():
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.02)

    threading.Thread(target=press, daemon=True).start()


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    """A run that was stopped by Ctrl-C, and what `t1 run` said."""
    run_dir = tmp_path_factory.mktemp("stopped") / "toy"
    interrupt_when(lambda: (run_dir / "log").is_dir() and told(run_dir, ActorReady))
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patching, contextlib.redirect_stdout(said):
        install(patching.setattr)
        command = ["run", "--preset", "smoke", "--set", "run.seed=7", "--dir", str(run_dir), "--display", "plain"]
        assert main(command) == 130
    return run_dir, said.getvalue()


@pytest.fixture
def stopped(stopped_once, toy_run):
    """The directory of such a run, to go on with."""
    shutil.copytree(stopped_once[0], toy_run)
    return toy_run


@pytest.fixture
def recorded_stop(tmp_path):
    """A stopped run on disk, with ``latest`` beside it, made without a process."""
    run_dir = tmp_path / "runs" / "toy"
    recorder = Recorder(FileLog(run_dir / "log", "process"))
    start(recorder)
    recorder.emit("supervisor", RunStopped(reason="interrupted"))
    recorder.close()
    (run_dir.parent / "latest").symlink_to("toy")
    return run_dir


def test_ctrl_c_is_answered_at_once_and_the_command_to_go_on_is_printed(stopped_once):
    run_dir, said = stopped_once
    assert "stopping: nothing is under way; Ctrl-C again stops at once, nothing recorded is lost" in said
    assert "paused before step 0" in said
    assert f"t1 run --resume {run_dir}" in said.splitlines()[-1]


def test_a_stopped_run_goes_on_and_is_one_run(stopped, capsys):
    run_dir = stopped
    assert main(["run", "--resume", str(run_dir), "--display", "plain"]) == 0
    said = capsys.readouterr().out
    assert "resuming at step 0 of 9, 1 earlier session, " in said.splitlines()[0]
    assert said.count("run toy resumed") == 1
    assert "run toy started" not in said  # what earlier sessions did is not told again
    assert "in 2 sessions" in said
    assert [event.resumed for event in told(run_dir, RunStarted)] == [False, True]
    report = json.loads((run_dir / "report.json").read_text())
    assert report["finished"]
    assert report["cpu_whole"]
    assert len(report["resumes"]) == 1
    assert main(["log", "check", str(run_dir)]) == 0


@pytest.mark.parametrize("place", ["toy", "toy/", "latest", "latest/"])
def test_a_run_is_found_however_its_directory_is_written(recorded_stop, place, monkeypatch):
    monkeypatch.chdir(recorded_stop.parents[1])
    found = resume.find_stopped_run(Path("runs") / place)
    assert (found.run_dir, found.sessions) == (Path("runs/toy"), 1)


def test_a_finished_run_is_refused_and_its_report_named(tmp_path, capsys):
    recorder = Recorder(FileLog(tmp_path / "log", "process"))
    whole_run(recorder)
    recorder.close()
    assert main(["run", "--resume", str(tmp_path)]) == 1
    assert f"is finished already; report at {tmp_path / 'report.md'}" in capsys.readouterr().err


def test_a_run_that_failed_is_refused_with_its_reason(tmp_path, capsys):
    recorder = Recorder(FileLog(tmp_path / "log", "process"))
    start(recorder)
    recorder.emit("publisher", RunFailed(step=0, reason="seed 13"))
    recorder.close()
    assert main(["run", "--resume", str(tmp_path)]) == 1
    assert "has failed and cannot go on: seed 13" in capsys.readouterr().err


def test_a_directory_without_a_run_is_refused(tmp_path, capsys):
    assert main(["run", "--resume", str(tmp_path)]) == 1
    assert "no run here" in capsys.readouterr().err


def test_a_run_that_another_process_runs_is_refused_with_its_pid(recorded_stop, capsys):
    run_dir = recorded_stop
    writer = FileLog(run_dir / "log").open_writer("supervisor")
    assert main(["run", "--resume", str(run_dir)]) == 1
    assert f"is being run by process {os.getpid()}" in capsys.readouterr().err
    writer.close()


def test_an_edited_configuration_is_refused_and_a_lost_one_taken_from_the_log(recorded_stop):
    path = recorded_stop / "config.toml"
    text = told(recorded_stop, RunStarted)[0].config_toml
    path.write_text(text.replace("seed = 0", "seed = 8"))
    with pytest.raises(RunDirectoryError, match="begun with another configuration"):
        resume.find_stopped_run(recorded_stop)
    path.unlink()
    assert to_toml(resume.find_stopped_run(recorded_stop).config) == text


def test_other_code_and_another_environment_are_said_and_not_refused(recorded_stop, monkeypatch):
    monkeypatch.setattr(resume, "code_version", lambda: "9.9")
    monkeypatch.setattr(resume, "environment", lambda: {"python": "99", "new": "1"})
    _, code, changed = resume.find_stopped_run(recorded_stop).lines
    assert "the code is another version: 9.9, the last session had 0.1.0; replay of earlier steps may differ" in code
    assert "the environment changed: python 3.11 -> 99; replay of earlier steps may differ" in changed


def test_a_quiet_run_answers_ctrl_c_too(toy_run, capsys):
    interrupt_when(lambda: (toy_run / "log").is_dir() and told(toy_run, ActorReady))
    assert main(["run", "--preset", "smoke", "--set", "run.seed=7", "--dir", str(toy_run), "--display", "quiet"]) == 130
    said = capsys.readouterr()
    assert said.out == ""
    assert "t1: stopping: nothing is under way" in said.err
    assert "--resume" in said.err


def test_ctrl_c_while_the_report_is_written_leaves_a_run_that_is_finished(toy_run, monkeypatch, capsys):
    def interrupted(run_dir):
        raise KeyboardInterrupt

    monkeypatch.setattr("t1actors.observe.report.write_report", interrupted)
    assert main(["run", "--preset", "smoke", "--dir", str(toy_run), "--display", "quiet"]) == 130
    assert f"`t1 report {toy_run}` makes the report" in capsys.readouterr().err
    assert not told(toy_run, StopRequested)


# --- the kernels ------------------------------------------------------------------------------------------------------


def test_a_resumed_run_uses_the_kernels_it_was_begun_with(stopped, monkeypatch):
    run_dir = stopped
    asked = []
    monkeypatch.setattr(run, "_look_for_kernels", lambda wanted: asked.append(wanted) or KernelsFound(wanted))
    assert main(["run", "--resume", str(run_dir), "--display", "quiet"]) == 0
    assert asked == ["native"]  # the configuration says "auto"
    assert [event.kernels for event in told(run_dir, RunStarted)] == ["native", "native"]


def test_a_run_does_not_go_on_without_the_kernels_it_was_begun_with(stopped, monkeypatch, capsys):
    run_dir = stopped
    monkeypatch.setattr(KernelsFound, "lacking", "no compiled kernels in there")
    assert main(["run", "--resume", str(run_dir), "--display", "quiet"]) == 1
    said = capsys.readouterr().err
    assert "begun with the native kernels, which cannot be used here (no compiled kernels in there)" in said
    assert "the padded kernels can, but give other bits: install a C compiler" in said
    assert len(told(run_dir, RunStarted)) == 1


def test_a_run_that_goes_on_where_operations_give_other_bits_says_which_and_so_does_its_report(
    stopped, monkeypatch, capsys
):
    run_dir = stopped
    monkeypatch.setattr(KernelsFound, "facts", {**KernelsFound.facts, "operation torch exp": "3"})
    assert main(["run", "--resume", str(run_dir), "--display", "plain"]) == 0
    assert "1 of 2 operations give other bits here than where the run was begun: torch exp; " in capsys.readouterr().out
    report = json.loads((run_dir / "report.json").read_text())
    assert report["kernels"] == "native"
    assert report["other_bits"] == {"2": ["torch exp"]}
    assert "**other bits**: Session 2 of the run" in (run_dir / "report.md").read_text()
