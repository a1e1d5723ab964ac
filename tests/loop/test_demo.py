"""The demonstration as it is shipped, from end to end: it learns, and its engine gap is 0 for every token of every step."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from t1actors import config as cfg
from t1actors.events import ActorUpdated, AnyEvent, BatchSealed, UnknownEvent, decode
from t1actors.log.filelog import FileLog
from t1actors.log.merged import merged
from tests.loop.runs import engine_gaps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("host_makes_sandboxes")]


@dataclass(frozen=True)
class Demo:
    run_dir: Path
    events: list[AnyEvent | UnknownEvent]
    wall_s: float
    cpu_s: float

    def heldout(self) -> list[float]:
        """Mean reward of each evaluation, in order: before training at temperature 1 and greedy, after it the same."""
        evaluations = [e for e in self.events if isinstance(e, BatchSealed) and e.purpose == "evaluate"]
        return [sum(item.reward for item in e.items) / len(e.items) for e in evaluations]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    run_dir = Path(tmp_path_factory.mktemp("demo")) / "run"
    started_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "t1actors", "run", "--preset", "demo", "--dir", str(run_dir)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    events = [decode(entry.raw) for entry in merged(FileLog(run_dir / "log"))]
    return Demo(run_dir, events, time.monotonic() - started_s, cpu_s)


def test_no_token_of_any_step_has_a_gap(demo: Demo) -> None:
    updates = [event for event in demo.events if isinstance(event, ActorUpdated)]
    assert len(updates) == cfg.resolve(preset="demo").config.schedule.train_steps
    assert [(u.engine_gap_mean, u.engine_gap_max) for u in updates] == [(0.0, 0.0)] * len(updates)
    assert set(engine_gaps(demo.run_dir, demo.events).values()) == {0}


def test_what_was_held_out_is_solved_more_often_afterwards(demo: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    """Says what it took; how long is for a reader to judge."""
    before, greedy_before, after, greedy_after = demo.heldout()
    with capsys.disabled():
        print(
            f"\ndemo: held-out reward {before:.3f} -> {after:.3f}, greedy {greedy_before:.3f} -> {greedy_after:.3f}; "
            f"{demo.wall_s:.0f} s, {demo.cpu_s:.0f} CPU seconds"
        )
    assert after > before
