"""Kill storms: runs whose actors die at chosen moments, or whose supervisor is killed, to be compared with one that nobody
disturbed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import trio

from t1actors import config as cfg
from t1actors.cli.run import run_plan
from t1actors.events import (
    ActorUpdated,
    AnyEvent,
    BatchSealed,
    CriticUpdated,
    EffectFinished,
    EffectIntended,
    UnknownEvent,
    decode,
)
from t1actors.log.filelog import FileLog
from t1actors.log.merged import merged
from t1actors.runtime.supervisor import RunResult, supervise
from tests.loop.dying_process import PLAN, TOLD

ACTORS = ("publisher", "pool", "sampler", "verifier", "assembler", "critic", "actor")
ROOT = Path(__file__).parents[2]
STARTS = ("opened", "recovered")
Death = tuple[str, str, int] | tuple[str, str, int, str]
Deaths = dict[str, list[Death]]
"""By actor, for each incarnation in turn: when, of which kind, and the how manieth time that it comes there; perhaps an actor
that dies with it."""
SETS = ("run.restart_budget=1000", "run.backoff_s=0.01", "run.backoff_max_s=0.05")


@dataclass(frozen=True, order=True)
class Point:
    """A moment in an actor's life."""

    actor: str
    when: str
    kind: str


def events_of(run_dir: Path) -> list[AnyEvent | UnknownEvent]:
    return [decode(entry.raw) for entry in merged(FileLog(run_dir / "log"))]


def run_once(run_dir: Path, *sets: str, preset: str = "nano", deaths: Deaths | None = None) -> RunResult:
    """A run in ``run_dir``, or what is left of one, to its end; actors die as ``deaths`` says."""
    config = cfg.resolve(preset=preset, sets=[*SETS, *sets]).config
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / PLAN).write_text(json.dumps(deaths or {}))
    plan = run_plan(run_dir, config)
    env = {**plan.env, "PYTHONPATH": str(ROOT)}  # where these tests are
    plan = replace(plan, program="tests.loop.dying_process", env=env)
    return trio.run(supervise, plan)


def occurrences(run_dir: Path) -> dict[Point, list[int]]:
    """Where in a run's log, in its merged order, each moment came: every kind of event in every actor's journal, before and
    after its commit; every kind of effect, before and after it was performed; and an actor's start, which can come anywhere.
    """
    found: dict[Point, list[int]] = {}
    effects: dict[tuple[str, str], str] = {}
    places = 0
    for place, entry in enumerate(merged(FileLog(run_dir / "log"))):
        places = place
        actor, event = entry.frame.journal, decode(entry.raw)
        if actor not in ACTORS:
            continue
        moments = [("before commit", type(event).__name__), ("after commit", type(event).__name__)]
        if isinstance(event, EffectIntended) and event.effect_kind != "Wait":
            effects[actor, event.key] = event.effect_kind
            moments.append(("before act", event.effect_kind))
        if isinstance(event, EffectFinished) and event.status == "done" and (actor, event.key) in effects:
            moments.append(("after act", effects[actor, event.key]))
        for when, kind in moments:
            found.setdefault(Point(actor, when, kind), []).append(place)
    for actor in ACTORS:
        for when in STARTS:
            found[Point(actor, when, "")] = list(range(places))
    return found


def plan_deaths(
    found: dict[Point, list[int]], points: Iterable[Point], draw: random.Random, a_run: int
) -> list[Deaths]:
    """Each of ``points`` once, at a random occurrence, spread over runs in which an actor dies at most ``a_run`` times."""
    runs: list[Deaths] = []
    wanted = sorted(points)
    for actor in ACTORS:
        mine = [point for point in wanted if point.actor == actor]
        draw.shuffle(mine)
        for number, start in enumerate(range(0, len(mine), a_run)):
            if number == len(runs):
                runs.append({})
            chosen = sorted((draw.choice(found[point]), point) for point in mine[start : start + a_run])
            runs[number][actor] = _in_order(found, chosen)
    return runs


def in_pairs(deaths: Deaths, draw: random.Random) -> Deaths:
    """The same, and with each another actor."""

    def other(actor: str) -> str:
        return draw.choice([name for name in ACTORS if name != actor])

    return {actor: [(*death[:3], other(actor)) for death in mine] for actor, mine in deaths.items()}


def _in_order(found: dict[Point, list[int]], chosen: Sequence[tuple[int, Point]]) -> list[Death]:
    """Each incarnation counts from where the one before it died."""
    deaths: list[Death] = []
    before = -1
    for place, point in chosen:
        nth = 1 if point.when in STARTS else sum(before < at <= place for at in found[point])
        deaths.append((point.when, point.kind, max(1, nth)))
        before = place if point.when == "after commit" else place - 1
    return deaths


def died(run_dir: Path) -> list[Point]:
    told = run_dir / TOLD
    return [Point(*json.loads(line)) for line in told.read_text().splitlines()] if told.exists() else []


def digests(events: Iterable[object]) -> list[tuple[str, int, tuple[str, ...]]]:
    """Of every step: the batch, and critic and actor after it."""
    found: list[tuple[str, int, tuple[str, ...]]] = []
    for event in events:
        match event:
            case BatchSealed():
                found.append(("batch", event.step, (event.digest,)))
            case CriticUpdated() | ActorUpdated():
                part = type(event).__name__
                found.append((part, event.step, (event.weights_after, event.optimizer_after)))
            case _:
                pass
    return sorted(found)


def unscathed(run_dir: Path, wanted: Sequence[tuple[str, int, tuple[str, ...]]]) -> None:
    """The run ended as one that nobody disturbed: the same bytes at every step, nothing twice, nothing left behind."""
    assert digests(events_of(run_dir)) == list(wanted)
    command = [sys.executable, "-m", "t1actors", "log", "check", str(run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list((run_dir / "sandboxes").iterdir())
    assert not list((run_dir / "graders").iterdir())


def killed_supervisor(run_dir: Path, after_s: float, *sets: str) -> int | None:
    """Start the run, or go on with it, as a process of its own, and kill -9 that process after so long. Returns its exit
    status if it ended first."""
    command = [sys.executable, "-m", "tests.loop.storm", str(run_dir), *sets]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            return process.wait(after_s)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            return None


if __name__ == "__main__":
    sys.exit(0 if run_once(Path(sys.argv[1]), *sys.argv[2:]).reason == "finished" else 1)
