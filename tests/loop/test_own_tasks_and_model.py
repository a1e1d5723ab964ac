"""`t1 run --tasks --model`: a user's own directory of tasks and an own model with a ChatML tokenizer, from end to end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from t1actors.events import ActorUpdated, Graded, SandboxReady, StepOpened, TurnSampled, decode
from t1actors.log.filelog import FileLog
from t1actors.log.merged import merged
from t1actors.models.tokenizer import Tokenizer
from t1actors.replay.run import Replayer
from t1actors.tasks.write import make_tasks
from tests.models.chatml import make_chatml_folder

EXAMPLES = Path(__file__).parents[2] / "examples" / "tasks"
SETS = ("rollout.batch_size=4", "schedule.train_steps=2", "schedule.recalibrate_steps=1", "rollout.turn_limit=3")


def t1(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "t1actors", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd)


@pytest.mark.slow
def test_a_run_on_own_tasks_and_an_own_model_trains_and_replays(tmp_path: Path) -> None:
    make_chatml_folder(tmp_path / "my-model")
    make_tasks(tmp_path / "my-tasks", levels=[1], count=12, seed=40)
    for name, text in (("a", "FROM debian\nRUN true\n"), ("b", "FROM debian\nWORKDIR /usr\n"), ("c", "ADD x /\n")):
        (tmp_path / "my-tasks" / name / "environment").mkdir(parents=True)
        (tmp_path / "my-tasks" / name / "task.toml").write_text("")
        (tmp_path / "my-tasks" / name / "instruction.md").write_text("do it\n")
        (tmp_path / "my-tasks" / name / "tests").mkdir()
        (tmp_path / "my-tasks" / name / "tests" / "test.sh").write_text("exit 0\n")
        (tmp_path / "my-tasks" / name / "environment" / "Dockerfile").write_text(text)
    sets = [word for text in SETS for word in ("--set", text)]
    own = ["--tasks", "my-tasks", "--model", "my-model", "--preset", "smoke", "--dir", "run", "--display", "plain"]
    done = t1("run", *own, *sets, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"tasks  usable 12 of 15 in {tmp_path / 'my-tasks'}: 8 train, 2 heldout, 2 warmup" in done.stdout
    assert "left out a: environment/Dockerfile: the working directory is /" in done.stdout
    assert "chat format: qwen3" in done.stdout
    run_dir = tmp_path / "run"
    assert "| b | environment/Dockerfile: the working directory is /usr" in (run_dir / "tasks.md").read_text()

    events = [decode(entry.raw) for entry in merged(FileLog(run_dir / "log"))]
    assert len([event for event in events if isinstance(event, ActorUpdated)]) == 2
    assert all(len(event.trials) in (2, 4) for event in events if isinstance(event, StepOpened))
    chosen = {task["name"]: task["digest"] for task in json.loads((run_dir / "tasks.json").read_text())["usable"]}
    specs = [spec for event in events if isinstance(event, StepOpened) for spec in event.trials]
    task_of = {spec.trial: spec.task for spec in specs}
    for ready in (event for event in events if isinstance(event, SandboxReady)):
        assert ready.task_digest == chosen[task_of[ready.trial]]
    start = Tokenizer.from_folder(run_dir / "model").token_to_id("<|im_start|>")
    for turn in (event for event in events if isinstance(event, TurnSampled)):
        assert turn.context_ids.count(start) == (3 if turn.turn == 0 else 2)
    assert (run_dir / "model" / "tokenizer_config.json").read_bytes() == (
        tmp_path / "my-model" / "tokenizer_config.json"
    ).read_bytes()

    reports = list(Replayer.open(run_dir).all())
    assert all(report.bit_exact for report in reports), [report.text() for report in reports]
    assert t1("log", "check", "run", cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_the_demo_trains_on_the_tasks_that_come_with_the_project(tmp_path: Path) -> None:
    """They are hard for it, but their first steps are not: rewards differ, so there is something to learn."""
    tasks = tmp_path / "tasks"
    shutil.copytree(EXAMPLES, tasks, ignore=shutil.ignore_patterns(".checked"))
    checked = t1("task", "check", "tasks", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    sets = ("rollout.batch_size=12", "schedule.train_steps=1", "schedule.recalibrate_steps=1")
    words = [word for text in sets for word in ("--set", text)]
    own = ["--tasks", "tasks", "--preset", "smoke", "--dir", "run", "--display", "plain"]
    done = t1("run", *own, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"tasks  usable 6 of 6 in {tasks}: 4 train, 1 heldout, 1 warmup" in done.stdout
    assert "were not checked" not in done.stdout

    events = [decode(entry.raw) for entry in merged(FileLog(tmp_path / "run" / "log"))]
    graded = [event for event in events if isinstance(event, Graded)]
    assert {event.outcome for event in graded} == {"graded"}
    assert len({event.reward for event in graded}) > 1  # so some are above 0
    chosen = {task["name"]: task for task in json.loads((tmp_path / "run" / "tasks.json").read_text())["usable"]}
    assert chosen["python-ledger"]["baseline"] == ["test_state.py::test_what_worked_works"]
    for event in graded:
        assert event.expected == len(chosen[event.task]["expected"]) - len(chosen[event.task]["baseline"])
    assert t1("log", "check", "run", cwd=tmp_path).returncode == 0
