"""Short runs that differ in one thing: a few steps of an arm on one seed, then held-out tasks.

Guarantees: arms of a seed see the same tasks with the same trial seeds (but for group relative arms, whose groups need other
launches), begin with the same episodes, and are evaluated on the same held-out trials, so that they can be compared in pairs;
an arm that two parts ask for is run once. Differences come with two errors: over pairs (task x seed: how well these runs were
measured) and over seeds (what another run would give; with three seeds a rough figure).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.learning.arms import Arm
from bench.learning.learner import Learner, Outcome
from bench.learning.rollout import Trial
from bench.learning.stage import Stage, with_seed
from bench.learning.statistics import Estimate, mean
from bench.tables import Cell, Table
from t1actors.actors.schedule import Schedule
from t1actors.config import Config, resolve
from t1actors.events import Purpose
from t1actors.train.state import TrainerState

SEEDS = (0, 1, 2)
SETTINGS = (
    # Longer tasks than the demonstration's: a critic is for long episodes.
    "tasks.levels=[1, 2, 3, 4, 5]",
    "rollout.batch_size=64",
    # Whitening would give every arm the same scale and hide what a baseline does to it; T1 has none.
    "train.actor.whiten_advantages=false",
    "schedule.warmup_steps=16",
    "schedule.recalibrate_steps=2",
    "schedule.train_steps=8",
)
TINY = (
    "tasks.levels=[1, 2]",
    "tasks.heldout_per_level=1",
    "rollout.batch_size=8",
    "schedule.warmup_steps=1",
    "schedule.recalibrate_steps=1",
    "schedule.train_steps=2",
)


def short(quick: bool) -> Config:
    """The demonstration's recipe on all levels, for a few steps."""
    return resolve(preset="demo", sets=[*SETTINGS, *(TINY if quick else ())]).config


def seeds(quick: bool) -> tuple[int, ...]:
    return SEEDS[:1] if quick else SEEDS


@dataclass(frozen=True)
class ArmRun:
    """One arm on one seed. ``heldout`` are trials at temperature 1 after the last step, in the order of the pool."""

    arm: str
    seed: int
    trained: tuple[Outcome, ...]
    heldout: tuple[Trial, ...]

    @property
    def step_cpu_s(self) -> float:
        return mean([outcome.took.total_s for outcome in self.trained])


async def play_arm(
    stage: Stage, config: Config, arm: Arm, *, critic: TrainerState | None = None, recalibrate: bool = False
) -> ArmRun:
    """``recalibrate``: the critic trains on the recalibration steps first; otherwise training begins at once."""
    wanted: set[Purpose] = {"train", "recalibrate"} if recalibrate else {"train"}
    key = ("arm", config, arm.name, None if critic is None else critic.optimizer_digest(), recalibrate)

    async def play() -> ArmRun:
        schedule = Schedule(config, Path("."))
        learner = Learner(stage, config, arm, critic=critic)
        steps = [step for step in range(len(schedule)) if schedule.purpose(step) in wanted]
        outcomes = [await learner.step(schedule.planned(step)) for step in steps]
        trained = tuple(outcome for outcome in outcomes if outcome.purpose == "train")
        after = next(s for s in range(len(schedule)) if s > steps[-1] and schedule.purpose(s) == "evaluate")
        heldout = await learner.step(schedule.planned(after))
        made = ArmRun(arm.name, config.run.seed, trained, heldout.trials)
        explained = " ".join(f"{o.explained_variance:+.2f}" for o in trained if o.explained_variance is not None)
        stage.context.say(
            f"{arm.name}, seed {made.seed}: steps {' '.join(f'{o.share:.2f}' for o in trained)}, held-out "
            f"{heldout.share:.3f}, {made.step_cpu_s:.1f} CPU s a step{f', EV {explained}' if explained else ''}"
        )
        return made

    return await stage.context.once(key, play)


async def untrained(stage: Stage, config: Config, quick: bool) -> list[ArmRun]:
    """The warm start on the held-out trials of every seed."""
    runs: list[ArmRun] = []
    for seed in seeds(quick):
        planned = Schedule(with_seed(config, seed), Path(".")).planned(0)
        runs.append(ArmRun("warm start, before", seed, (), (await stage.play(stage.initial, planned)).trials))
    return runs


Measure = Callable[[Trial], float]


def share(trial: Trial) -> float:
    return trial.share


def solved(trial: Trial) -> float:
    return float(trial.solved)


def over_seeds(runs: Sequence[ArmRun], measure: Measure) -> Estimate:
    """Held-out mean of each seed; the error is over seeds."""
    return Estimate.of([mean([measure(trial) for trial in run.heldout]) for run in runs])


def difference(runs: Sequence[ArmRun], base: Sequence[ArmRun], measure: Measure) -> tuple[Estimate, Estimate]:
    """``runs`` minus ``base`` on held-out trials: (over pairs of task and seed, over seeds)."""
    each: list[float] = []
    by_seed: list[float] = []
    for run, other in zip(runs, base, strict=True):
        if run.seed != other.seed or [t.record.task for t in run.heldout] != [t.record.task for t in other.heldout]:
            raise ValueError(f"arms {run.arm} and {other.arm} were not evaluated on the same seeds and tasks")
        pairs = [measure(ours) - measure(theirs) for ours, theirs in zip(run.heldout, other.heldout, strict=True)]
        each += pairs
        by_seed.append(mean(pairs))
    return Estimate.of(each), Estimate.of(by_seed)


def table(title: str, arms: Sequence[Sequence[ArmRun]], before: Sequence[ArmRun], note: str) -> Table:
    """A row an arm, compared with the first arm."""
    base = arms[0]
    columns = (
        "arm",
        "held-out share",
        "difference ± over pairs",
        "± over seeds",
        "complete solves",
        "their difference ± over pairs",
        "share of the last 4 steps",
        "CPU s a step",
    )

    def row(runs: Sequence[ArmRun]) -> tuple[Cell, ...]:
        compared = runs is not base and runs is not before
        shares = difference(runs, base, share) if compared else (None, None)
        solves = difference(runs, base, solved)[0] if compared else None
        trained = None if runs is before else Estimate.of([mean([o.share for o in r.trained[-4:]]) for r in runs])
        cost = None if runs is before else mean([run.step_cpu_s for run in runs])
        return (runs[0].arm, over_seeds(runs, share), *shares, over_seeds(runs, solved), solves, trained, cost)

    return Table(title, columns, tuple(row(runs) for runs in (before, *arms)), note)


async def on_every_seed(
    stage: Stage,
    config: Config,
    arm: Arm,
    quick: bool,
    *,
    critic: TrainerState | None = None,
    recalibrate: bool = False,
) -> list[ArmRun]:
    return [
        await play_arm(stage, with_seed(config, seed), arm, critic=critic, recalibrate=recalibrate)
        for seed in seeds(quick)
    ]
