"""kill -9 of every actor in the middle of a run, as real processes: the run completes and its log is clean."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from t1actors import config as cfg
from t1actors.cli.run import run_plan
from t1actors.events import ActorStarted, ActorStopped, ActorUpdated, StepOpened, decode
from t1actors.log.filelog import FileLog
from t1actors.log.merged import merged
from t1actors.observe.follow import follow
from t1actors.replay.run import Replayer
from t1actors.runtime.supervisor import RunResult, supervise
from tests.loop.runs import TINY

pytestmark = pytest.mark.usefixtures("host_makes_sandboxes")

ACTORS = ("publisher", "pool", "sampler", "verifier", "assembler", "critic", "actor")


def children_of(parent: int) -> list[int]:
    """Processes that ``parent`` started: the fourth field of ``/proc/PID/stat`` names a process's parent."""
    stats: list[str] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            stats.append(path.read_text())
    fields = [(int(stat.partition(" ")[0]), int(stat.rpartition(")")[2].split()[1])) for stat in stats]
    return [pid for pid, its_parent in fields if its_parent == parent]


def run_with_kills(run_dir: Path, victims: dict[int, str], *sets: str) -> tuple[RunResult, list[str]]:
    """A run of processes in which ``victims[n]`` is killed as soon as step n opens ("pool/helper": the fork server that the
    pool started; "actor/helper/helper": what the actor's helper started). Returns who died so."""
    config = cfg.resolve(preset="smoke", sets=[*TINY, "schedule.train_steps=7", *sets]).config
    waiting = dict(victims)
    pids: dict[str, int] = {}
    killed: list[str] = []

    async def kill_as_steps_open(ended: trio.Event) -> None:
        async for frames in follow(FileLog(run_dir / "log"), ended=ended.is_set):
            for event in (decode(raw) for frame in frames for raw in frame.events):
                if isinstance(event, ActorStarted):
                    pids[event.actor] = event.pid
                if isinstance(event, StepOpened) and event.step in waiting:
                    victim = waiting.pop(event.step)
                    actor, *helpers = victim.split("/")
                    targets = [pids[actor]]
                    for _ in helpers:
                        targets = [child for pid in targets for child in children_of(pid)]
                    for pid in targets:
                        os.kill(pid, signal.SIGKILL)
                        killed.append(victim)

    async def main() -> RunResult:
        ended = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_as_steps_open, ended)
            result = await supervise(run_plan(run_dir, config))
            ended.set()
        return result

    run_dir.mkdir(parents=True)
    return trio.run(main), killed


def check(run_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "t1actors", "log", "check", str(run_dir)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def survived(run_dir: Path, result: RunResult) -> None:
    assert result.reason == "finished", result
    events = [decode(entry.raw) for entry in merged(FileLog(run_dir / "log"))]
    updates = [event for event in events if isinstance(event, ActorUpdated)]
    assert [update.staleness for update in updates] == [0, 1, 1, 1, 1, 1, 1]
    assert any(isinstance(event, ActorStopped) and event.exit_code == -signal.SIGKILL for event in events)
    check(run_dir)
    assert not list((run_dir / "sandboxes").iterdir())
    assert not list((run_dir / "graders").iterdir())


def test_a_run_survives_kill_9_of_each_of_its_seven_actors(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    result, killed = run_with_kills(run_dir, dict(enumerate(ACTORS, start=3)))
    assert killed == list(ACTORS)
    survived(run_dir, result)


@pytest.mark.slow
def test_a_run_survives_kill_9_of_the_fork_servers(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    result, killed = run_with_kills(run_dir, {4: "pool/helper", 6: "verifier/helper"})
    assert killed == ["pool/helper", "verifier/helper"]
    assert result.restarts == 2
    check(run_dir)


@pytest.mark.slow
def test_a_run_of_two_ranks_survives_kill_9_of_workers_and_replays_on_one_process(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    result, killed = run_with_kills(run_dir, {4: "critic/helper", 6: "actor/helper/helper"}, "train.ranks=2")
    assert killed == ["critic/helper", "actor/helper/helper"]
    assert result.reason == "finished", result
    assert result.restarts == 2
    check(run_dir)
    reports = list(Replayer.open(run_dir).all())
    assert len(reports) > 8
    assert all(report.bit_exact for report in reports), [report.text() for report in reports]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ACTORS)
@pytest.mark.parametrize("step", [0, 5])
def test_a_run_survives_kill_9_of_one_actor_whenever_it_comes(tmp_path: Path, victim: str, step: int) -> None:
    run_dir = tmp_path / "run"
    result, killed = run_with_kills(run_dir, {step: victim})
    assert killed == [victim]
    survived(run_dir, result)
