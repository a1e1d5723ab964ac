"""`t1 run` stopped in every way and resumed: one run, the same bytes, nothing done twice. Real processes, real shells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from t1actors.events import (
    ActorStarted,
    ActorUpdated,
    BatchSealed,
    EpisodeEnded,
    RunFinished,
    RunPaused,
    RunStarted,
    SandboxRestored,
    StepOpened,
    TurnExecuted,
    TurnSampled,
    decode,
)
from t1actors.log.filelog import FileLog
from t1actors.log.merged import merged
from t1actors.replay.run import Replayer
from tests.loop.runs import TINY

DEADLINE_S = 300.0
SETS = [*TINY, "rollout.oversample=0.0", "schedule.train_steps=5"]
"""No oversampling: which trials a batch holds does not depend on who is fastest, so two runs must agree in every bit."""


def t1(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "t1actors", *arguments]


def new(run_dir: Path) -> list[str]:
    sets = [word for text in SETS for word in ("--set", text)]
    return t1("run", "--preset", "smoke", *sets, "--dir", str(run_dir), "--display", "plain")


def resumed(run_dir: Path) -> list[str]:
    return t1("run", "--resume", str(run_dir), "--display", "plain")


def events(run_dir: Path) -> list[object]:
    return [decode(entry.raw) for entry in merged(FileLog(run_dir / "log"))]


def opened(run_dir: Path) -> int:
    """The newest step, -1 before there is one."""
    if not (run_dir / "log" / "publisher").is_dir():
        return -1
    reader = FileLog(run_dir / "log").open_reader("publisher")
    steps = [-1]
    while frames := reader.read():
        found = [decode(raw) for frame in frames for raw in frame.events]
        steps += [event.step for event in found if isinstance(event, StepOpened)]
    reader.close()
    return max(steps)


def is_open(run_dir: Path, step: int) -> Callable[[], bool]:
    return lambda: opened(run_dir) >= step


def amid_episodes(run_dir: Path, step: int) -> Callable[[], bool]:
    """``step`` is open, and its sampler stands still (SIGSTOP) while an episode has a sandbox that commands have changed."""

    def found() -> bool:
        if opened(run_dir) < step:
            return False
        pid = [e.pid for e in events(run_dir) if isinstance(e, ActorStarted) and e.actor == "sampler"][-1]
        os.kill(pid, signal.SIGSTOP)
        executed = {e.trial for e in events(run_dir) if isinstance(e, TurnExecuted)}
        if executed - {e.trial for e in events(run_dir) if isinstance(e, EpisodeEnded)}:
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    return found


def run_until(command: list[str], moment: Callable[[], bool], *numbers: signal.Signals) -> tuple[int, str]:
    """Status and output of ``command``, which is sent ``numbers`` as soon as it is the ``moment``."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while process.poll() is None and not moment():
            assert time.monotonic() < deadline_s, "the moment never came"
            time.sleep(0.02)
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.1)
        said, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    return process.returncode, said


def finish(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_whole(run_dir: Path) -> None:
    """The log is clean, every step replays, every batch is complete, nothing was sampled or trained twice."""
    finish(t1("log", "check", str(run_dir)))
    reports = list(Replayer.open(run_dir).all())
    assert all(report.bit_exact for report in reports), [report.text() for report in reports]
    all_events = events(run_dir)
    steps = [event for event in all_events if isinstance(event, StepOpened)]
    assert [report.step for report in reports] == [step.step for step in steps]
    sealed = [event for event in all_events if isinstance(event, BatchSealed)]
    assert {batch.step: len(batch.items) for batch in sealed} == {step.step: step.batch_size for step in steps}
    trained = Counter(item.trial for batch in sealed for item in batch.items)
    assert max(trained.values()) == 1
    turns = Counter((event.trial, event.turn) for event in all_events if isinstance(event, TurnSampled))
    assert max(turns.values()) == 1
    updates = [event for event in all_events if isinstance(event, ActorUpdated)]
    assert [update.staleness for update in updates] == [0, 1, 1, 1, 1]
    assert not list((run_dir / "sandboxes").iterdir())
    assert not list((run_dir / "graders").iterdir())


def versions(run_dir: Path) -> list[str]:
    """The weights after every update, and the final ones."""
    all_events = events(run_dir)
    [finished] = [event for event in all_events if isinstance(event, RunFinished)]
    return [*(event.weights_after for event in all_events if isinstance(event, ActorUpdated)), finished.version]


@pytest.mark.slow
def test_a_run_that_was_paused_is_the_run_it_would_have_been(tmp_path: Path) -> None:
    whole, paused = tmp_path / "whole", tmp_path / "paused"
    finish(new(whole))
    # In the first evaluation, with a rollout and a training under way, and in the last evaluation.
    for number, (step, command) in enumerate([(0, new(paused)), (4, resumed(paused)), (8, resumed(paused))], 1):
        status, said = run_until(command, is_open(paused, step), signal.SIGINT)
        assert status == 130, said
        assert "stopping after this phase" in said
        assert f"run --resume {paused}" in said
        pauses = [event for event in events(paused) if isinstance(event, RunPaused)]
        assert len(pauses) == number
        assert pauses[-1].step == opened(paused) + 1
    said = finish(resumed(paused))
    assert "3 earlier sessions" in said
    assert "in 4 sessions" in said
    assert_whole(paused)
    assert versions(paused) == versions(whole)


@pytest.mark.slow
def test_a_run_that_was_stopped_at_once_or_killed_is_the_run_it_would_have_been(tmp_path: Path) -> None:
    """Stopped at once, in the middle of episodes, it loses its sandboxes: they are made again."""
    whole, run_dir = tmp_path / "whole", tmp_path / "run"
    finish(new(whole))
    status, said = run_until(new(run_dir), amid_episodes(run_dir, 3), signal.SIGINT, signal.SIGINT)
    assert status == 130, said
    status, _ = run_until(resumed(run_dir), is_open(run_dir, 5), signal.SIGKILL)
    assert status == -signal.SIGKILL
    said = finish(resumed(run_dir))
    assert "at least" in said  # the killed session left no figure of its CPU
    assert [event.resumed for event in events(run_dir) if isinstance(event, RunStarted)] == [False, True, True]
    assert any(isinstance(event, SandboxRestored) for event in events(run_dir))
    assert_whole(run_dir)
    assert versions(run_dir) == versions(whole)
