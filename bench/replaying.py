"""Replay: its time against the training time of the steps that it runs again.

Training seconds are what the run recorded of values, critic and actor, measured while all actors shared the machine; so
there is a second yardstick, the same step functions called in this process on the same inputs (what a perfect replay costs).
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import torch

from bench.measure import Sample, Spread, timed
from bench.tables import Table
from t1actors.log.blobs import FileBlobs
from t1actors.log.filelog import FileLog
from t1actors.observe.follow import read_run
from t1actors.observe.view import StepView
from t1actors.replay.chain import Chain
from t1actors.replay.inputs import read_inputs
from t1actors.replay.run import Replayer


def replay_table(run_dir: Path, *, last: int, rounds: int) -> Table:
    """The ``last`` training steps, each from a fresh ``Replayer``: log, states and weights are read anew."""
    torch.set_num_threads(1)
    view = read_run(run_dir)
    steps = [step.step for step in view.trained][-last:]
    rows: list[tuple[object, ...]] = []
    for step in steps:
        recomputed = tuple(planned.step for planned in chain(run_dir).plan(step))
        trained_s = sum(training_seconds(view.steps[number]) for number in recomputed)
        replays: list[Sample] = []
        functions: list[Sample] = []
        for _ in range(rounds):
            replays.append(timed(lambda s=step: _exact(run_dir, s)))
            functions.append(_functions(run_dir, step))
        rows.append(
            (
                step,
                len(recomputed),
                trained_s,
                Spread.of([s.wall_s for s in replays]),
                Spread.of([s.wall_s / trained_s for s in replays]),
                Spread.of([a.wall_s / b.wall_s for a, b in zip(replays, functions, strict=True)]),
                Spread.of([a.cpu_s / b.cpu_s for a, b in zip(replays, functions, strict=True)]),
                _command_seconds(run_dir, step),
            )
        )
    return Table(
        "Replay (target: 1.5 times training)",
        ("step", "steps recomputed", "training s, recorded", "replay s", "replay / training", "replay / step functions",
         "of CPU seconds", "t1 replay, whole command s"),
        tuple(rows),
        "Replayed alone on the machine; trained beside six other processes. *Step functions*: values, critic and actor of "
        "the recomputed steps called in this process. *Replay* besides reads the log, the trajectories and the states, and "
        "compares every digest. The whole command also starts Python and imports torch.",
    )  # fmt: skip


def chain(run_dir: Path) -> Chain:
    return Chain(read_inputs(FileLog(run_dir / "log")), FileBlobs(run_dir / "blobs"))


def training_seconds(step: StepView) -> float:
    """What the run recorded of a step's values, critic and actor."""
    return sum(part.seconds for part in (step.values, step.critic, step.actor) if part is not None)


def _exact(run_dir: Path, step: int) -> None:
    report = Replayer.open(run_dir).step(step)
    if not report.bit_exact:
        raise RuntimeError(f"replaying step {step} of the run was not bit-exact:\n{report.text()}")


def _functions(run_dir: Path, step: int) -> Sample:
    """The step functions alone: everything that they need is read before the clock starts."""
    made = chain(run_dir)
    plan = made.plan(step)
    for planned in plan:
        made.batch(planned.step)
    return timed(lambda: [made.run(planned) for planned in plan])


def _command_seconds(run_dir: Path, step: int) -> float:
    began_s = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "t1actors", "replay", str(run_dir), "--step", str(step)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - began_s
