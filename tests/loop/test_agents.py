"""Runs whose trials a program drives over HTTP: the example agent with OpenAI's client, and all the rest is real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from t1actors import config as cfg
from t1actors.cli.run import run_plan
from t1actors.events import (
    ActorStarted,
    ActorUpdated,
    AnyEvent,
    CommandRequested,
    EffectFinished,
    EpisodeEnded,
    TrajectoryAssembled,
    TrialFailed,
    TurnExecuted,
    TurnSampled,
    UnknownEvent,
    decode,
)
from t1actors.log.filelog import FileLog
from t1actors.log.merged import merged
from t1actors.observe.follow import follow
from t1actors.replay.run import Replayer
from t1actors.runtime.supervisor import RunResult, supervise

pytestmark = pytest.mark.usefixtures("host_makes_sandboxes")
EXAMPLE = Path(__file__).parents[2] / "examples" / "agents" / "shell_agent.py"
Event = AnyEvent | UnknownEvent


def run(run_dir: Path, program: Path, *sets: str, meanwhile: Callable[[Event], None] = lambda event: None) -> RunResult:
    """A run whose trials ``program`` drives. ``meanwhile`` is shown each event as soon as it is durable."""
    config = cfg.resolve(
        preset="nano",
        sets=[
            "rollout.harness=command",
            f'rollout.command="{sys.executable} {program}"',
            "rollout.turn_slack=0",
            "schedule.evaluate=false",
            *sets,
        ],
    ).config
    run_dir.mkdir()
    plan = run_plan(run_dir, config)

    async def watch(ended: trio.Event) -> None:
        async for frames in follow(FileLog(run_dir / "log"), ended=ended.is_set):
            for frame in frames:
                for raw in frame.events:
                    meanwhile(decode(raw))

    async def main() -> RunResult:
        ended = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, ended)
            result = await supervise(plan)
            ended.set()
        return result

    return trio.run(main)


def recorded(run_dir: Path) -> list[Event]:
    return [decode(entry.raw) for entry in merged(FileLog(run_dir / "log"))]


def check_everything(run_dir: Path, events: list[Event]) -> None:
    """What holds of every run: all boundaries STRICT, the gap exactly 0, bit-exact replay, and a clean log."""
    assembled = [event for event in events if isinstance(event, TrajectoryAssembled)]
    assert {boundary.case for event in assembled for boundary in event.boundaries} == {"STRICT"}
    assert all(event.drift_in_loss == 0 for event in assembled)
    updates = [event for event in events if isinstance(event, ActorUpdated)]
    assert updates
    assert all(event.engine_gap_max == 0.0 for event in updates)
    reports = list(Replayer.open(run_dir).all())
    assert len(reports) >= len(updates)
    assert all(report.bit_exact for report in reports), [report.text() for report in reports]
    check = [sys.executable, "-m", "t1actors", "log", "check", str(run_dir)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_program_with_openais_client_drives_the_trials_of_a_run(tmp_path: Path) -> None:
    result = run(tmp_path / "run", EXAMPLE, "schedule.train_steps=3")
    assert (result.reason, result.restarts) == ("finished", 0)
    events = recorded(tmp_path / "run")
    turns: dict[str, list[TurnSampled]] = defaultdict(list)
    for event in events:
        if isinstance(event, TurnSampled):
            turns[event.trial].append(event)
    for trial, sampled in turns.items():
        assert [turn.turn for turn in sampled] == list(range(len(sampled))), trial
        assert [turn.chat.continues for turn in sampled if turn.chat] == [None, *range(len(sampled) - 1)]
    asked = {(e.trial, e.number) for e in events if isinstance(e, CommandRequested)}
    assert asked
    assert asked == {(e.trial, e.turn) for e in events if isinstance(e, TurnExecuted)}
    assert {e.reason for e in events if isinstance(e, EpisodeEnded)} <= {"submitted", "turn_limit", "token_limit"}
    assert not [event for event in events if isinstance(event, TrialFailed)]
    check_everything(tmp_path / "run", events)


def test_kill_9_of_the_sampler_the_pool_and_a_program_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Each is killed when a trial asks for its first command: its program starts again and gets the same answers."""
    run_dir = tmp_path / "run"
    pids: dict[str, int] = {}
    left = {"s0.t1": "sampler", "s1.t0": "pool", "s1.t1": "program"}

    def kill(event: Event) -> None:
        if isinstance(event, ActorStarted):
            pids[event.actor] = event.pid
        if isinstance(event, CommandRequested) and event.trial in left:
            victim = left.pop(event.trial)
            for pid in programs_of(event.trial) if victim == "program" else [pids[victim]]:
                os.kill(pid, signal.SIGKILL)

    result = run(run_dir, EXAMPLE, "schedule.train_steps=1", meanwhile=kill)
    assert (result.reason, result.restarts) == ("finished", 2)
    assert not left
    events = recorded(run_dir)
    assert max(Counter((e.trial, e.turn) for e in events if isinstance(e, TurnSampled)).values()) == 1
    assert max(Counter((e.trial, e.number) for e in events if isinstance(e, CommandRequested)).values()) == 1
    assert max(Counter((e.trial, e.turn) for e in events if isinstance(e, TurnExecuted)).values()) == 1
    drives = [e for e in events if isinstance(e, EffectFinished) and e.key.endswith("/drive")]
    assert any(event.attempt == 2 for event in drives)
    assert not [event for event in events if isinstance(event, TrialFailed)]
    check_everything(run_dir, events)


def programs_of(trial: str) -> list[int]:
    """The processes that run the example for ``trial``."""
    found: list[int] = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            argv = (place / "cmdline").read_bytes().split(b"\0")
            environment = (place / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if argv[1:2] == [str(EXAMPLE).encode()] and f"T1_TRIAL={trial}".encode() in environment:
            found.append(int(place.name))
    return found
