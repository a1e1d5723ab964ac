"""A whole run of the Terminus harness: a scripted model types into real terminals, and all the rest is real.

Its sampler and its pool are killed with -9 in the middle of turns: no turn is typed twice, none is lost, and every step
replays to the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from t1actors import config as cfg
from t1actors.cli.run import run_plan
from t1actors.events import (
    ActorStarted,
    AnyEvent,
    EpisodeEnded,
    Graded,
    SandboxReady,
    TrajectoryAssembled,
    TurnExecuted,
    TurnSampled,
    UnknownEvent,
    decode,
)
from t1actors.log.filelog import FileLog
from t1actors.log.merged import merged
from t1actors.observe.follow import follow
from t1actors.replay.run import Replayer
from t1actors.runtime.plan import ActorPlan
from t1actors.runtime.supervisor import RunResult, supervise
from tests.loop.typing_sampler import make_typing_folder

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.usefixtures("host_makes_sandboxes"),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux on the host"),
]
SETS = (
    "rollout.harness=terminus",
    "rollout.turn_slack=0",
    "rollout.max_ids=4096",
    "rollout.max_new_tokens=600",
    "rollout.command_deadline_s=20",
    "schedule.evaluate=false",
    "schedule.train_steps=1",
)


def run_with_kills(run_dir: Path, model: Path, victims: list[tuple[str, str]]) -> RunResult:
    """A run in which each victim (actor, trial) is killed as soon as the trial's first turn is sampled."""
    config = cfg.resolve(preset="nano", sets=[*SETS, f'model.policy="{model}"']).config
    run_dir.mkdir()
    plan = run_plan(run_dir, config)
    typing = ActorPlan("sampler", "tests.loop.typing_sampler:make")
    actors = tuple(typing if actor.name == "sampler" else actor for actor in plan.actors)
    plan = replace(plan, actors=actors, env={**plan.env, "PYTHONPATH": str(ROOT)})  # where these tests are
    left = {trial: actor for actor, trial in victims}
    pids: dict[str, int] = {}

    async def kill_in_turns(ended: trio.Event) -> None:
        async for frames in follow(FileLog(run_dir / "log"), ended=ended.is_set):
            for event in (decode(raw) for frame in frames for raw in frame.events):
                if isinstance(event, ActorStarted):
                    pids[event.actor] = event.pid
                if isinstance(event, TurnSampled) and event.trial in left:
                    os.kill(pids[left.pop(event.trial)], signal.SIGKILL)

    async def main() -> RunResult:
        ended = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_in_turns, ended)
            result = await supervise(plan)
            ended.set()
        assert not left, f"never sampled: {left}; the run ended as {result.reason}"
        return result

    return trio.run(main)


def recorded(run_dir: Path) -> list[AnyEvent | UnknownEvent]:
    return [decode(entry.raw) for entry in merged(FileLog(run_dir / "log"))]


def test_a_run_of_typing_trials_is_graded_replays_and_survives_kill_9(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    result = run_with_kills(
        run_dir, make_typing_folder(tmp_path / "model"), [("sampler", "s0.t1"), ("pool", "s1.t0"), ("sampler", "s1.t1")]
    )
    assert (result.reason, result.restarts) == ("finished", 3)
    events = recorded(run_dir)

    assert all(event.screen == "root@sandbox:/app#" for event in events if isinstance(event, SandboxReady))
    sampled: dict[str, list[TurnSampled]] = defaultdict(list)
    for event in events:
        if isinstance(event, TurnSampled):
            sampled[event.trial].append(event)
    executed = [event for event in events if isinstance(event, TurnExecuted)]
    assert max(Counter((event.trial, event.turn) for event in executed).values()) == 1
    ends = {event.trial: event for event in events if isinstance(event, EpisodeEnded)}
    assert {event.reason for event in ends.values()} == {"submitted"}
    for trial, turns in sampled.items():
        odd = int(trial.rpartition("t")[2]) % 2
        assert [turn.turn for turn in turns] == list(range(3 + odd)), "one event a model call"
        assert [event.malformed for event in executed if event.trial == trial] == [True] * odd + [False] * 2
        commands = [json.loads(turn.command) for turn in turns]
        assert [command.get("complete", 0) for command in commands[-2:]] == [1, 2]

    rewards = [event.reward for event in events if isinstance(event, Graded)]
    assert None not in rewards
    assert len(set(rewards)) > 1
    assembled = [event for event in events if isinstance(event, TrajectoryAssembled)]
    assert {boundary.case for event in assembled for boundary in event.boundaries} == {"STRICT"}
    assert all(event.drift_in_loss == 0 for event in assembled)

    reports = list(Replayer.open(run_dir).all())
    assert len(reports) == 2
    assert all(report.bit_exact for report in reports), [report.text() for report in reports]
    check = [sys.executable, "-m", "t1actors", "log", "check", str(run_dir)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
