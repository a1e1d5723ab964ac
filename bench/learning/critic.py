"""What does a critic buy? T1's figure 7 (warm against cold) at this size, and arms with other baselines beside it.

*Critic Warm-Up* as T1 has it (section 6): actor and critic train together on the warm-up pool; of it only the critic's
weights are kept, no moments, and the policy begins again at the warm start; then two recalibration rollouts train the critic
alone. One warm-up (seed 0) serves all seeds. *Cold*: no warm-up, no recalibration, and a random head. The product's own heads
start at zero; that critic, not warmed up, is measured too.

The random head is normal with deviation 1 / sqrt(hidden), so that values have the scale that Hugging Face's deviation of .02
gives at width 2,500: a real model's. At this width .02 itself gives smaller values; what they would explain is in the note.

Arms (formulas: ``bench.learning.arms``; gamma 1 and lambda 1, no whitening), each with as many training episodes:
batch mean A = r - b; group relative (8 trials a task) A = (r - mean) / deviation; critic A = r - V, warm and cold. The
episodes of warm-up and recalibration come on top for the warm critic; they are in its note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.axes import Axes

from bench.learning.arms import Arm, counted, group_relative
from bench.learning.comparison import (
    ArmRun,
    difference,
    on_every_seed,
    share,
    short,
    table,
    untrained,
)
from bench.learning.learner import Learner, Outcome
from bench.learning.part import Answer, Context, Gate, Part, Picture
from bench.learning.pictures import INK
from bench.learning.stage import Stage, staged, with_seed
from bench.learning.statistics import Estimate, mean
from bench.tables import Cell, Table, text
from t1actors.actors.schedule import Schedule
from t1actors.config import Config
from t1actors.train.batch import Batch
from t1actors.train.critic_step import critic_step, estimate_values
from t1actors.train.state import TrainerState

GROUP = 8
LEAST_WARM = 0.2
MOST_COLD = -10.0
LEAST_GAIN = 0.03
EARLY = 4
HEAD = "value_head.weight"


def batch_mean(config: Config) -> Arm:
    return Arm("batch mean", counted(config.verify.reward_scale), "batch mean")


async def warmed_up(stage: Stage, config: Config) -> tuple[TrainerState, list[Outcome]]:
    """(the critic after warm-up, weights only; the warm-up steps). The warm-up's policy is forgotten."""

    async def make() -> tuple[TrainerState, list[Outcome]]:
        schedule = Schedule(config, Path("."))
        learner = Learner(stage, config, Arm("warm-up", counted(config.verify.reward_scale), "critic"))
        steps = [step for step in range(len(schedule)) if schedule.purpose(step) == "warmup"]
        outcomes = [await learner.step(schedule.planned(step)) for step in steps]
        explained = " ".join(f"{outcome.explained_variance:+.2f}" for outcome in outcomes)
        stage.context.say(f"critic warm-up: {len(steps)} steps, EV {explained}")
        return learner.critic_state.without_moments(), outcomes

    return await stage.context.once(("warm-up", config), make)


def drawn_head(state: TrainerState, deviation: float, seed: int) -> TrainerState:
    """The critic with a head drawn from a normal distribution instead of zeros."""
    drawn = torch.randn(state.weights[HEAD].shape, generator=torch.Generator().manual_seed(seed)) * deviation
    return replace(state, weights={**state.weights, HEAD: drawn})


def first_explained(stage: Stage, config: Config, runs: Sequence[ArmRun], critic: TrainerState) -> Estimate:
    """Explained variance of an untrained critic on the first batch of ``runs``, over seeds."""
    found: list[float] = []
    for run in runs:
        batch = counted_batch(stage, config, run.trained[0])
        found.append(estimate_values(stage.critic, critic, batch, config.train).explained_variance)
    return Estimate.of(found)


def counted_batch(stage: Stage, config: Config, outcome: Outcome) -> Batch:
    """A step's trials, paid P / S."""
    paid = counted(config.verify.reward_scale)(outcome.trials, outcome.planned.step)
    return Batch.of(zip((t.record for t in outcome.trials), paid, strict=True), stage.geometry)


def beside(stage: Stage, config: Config, runs: Sequence[ArmRun], critic: TrainerState) -> list[list[float]]:
    """Explained variance a step of a critic that trains on the batches of ``runs`` and has no say in them."""
    train = config.train
    found: list[list[float]] = []
    for run in runs:
        state, explained = critic, list[float]()
        for outcome in run.trained:
            batch = counted_batch(stage, config, outcome)
            values = estimate_values(stage.critic, state, batch, train)
            explained.append(values.explained_variance)
            step = critic_step(
                stage.critic, state, batch, values.values_T, train, seed=run.seed, step=outcome.planned.step
            )
            state = step.state
        found.append(explained)
    return found


def explained_by(runs: Sequence[ArmRun]) -> list[list[float]]:
    """Explained variance of every step, a list a seed."""
    return [[o.explained_variance for o in run.trained if o.explained_variance is not None] for run in runs]


def explained_table(named: Sequence[tuple[str, list[list[float]]]], note: str) -> Table:
    steps = len(named[0][1][0])

    def row(name: str, found: list[list[float]]) -> tuple[Cell, ...]:
        cells = [Estimate.of([seed[step] for seed in found]) for step in range(steps)]
        negative = sum(value < 0 for seed in found for value in seed)
        return (name, *cells, f"{negative} of {sum(len(seed) for seed in found)}")

    columns = ("critic", *(f"step {step}" for step in range(steps)), "negative steps")
    return Table("Explained variance, before each update", columns, tuple(row(*one) for one in named), note)


def gates(warm: Sequence[ArmRun], cold: Sequence[ArmRun]) -> list[Gate]:
    warm_ev, cold_ev = explained_by(warm), explained_by(cold)
    early = mean([value for seed in warm_ev for value in seed[:EARLY]])
    lowest = min(value for seed in warm_ev for value in seed)
    first = mean([seed[0] for seed in cold_ev])
    fewest = min(sum(value < 0 for value in seed) for seed in cold_ev)
    steps = len(cold_ev[0])
    gain = difference(warm, cold, share)[0]
    return [
        Gate(
            f"warm: explained variance of steps 0 to {EARLY - 1} above {LEAST_WARM}", f"{early:.2f}", early > LEAST_WARM
        ),
        Gate("warm: explained variance positive in every step of every seed", f"lowest {lowest:+.2f}", lowest > 0),
        Gate(f"cold: explained variance of step 0 below {MOST_COLD:.0f}", f"{first:.1f}", first < MOST_COLD),
        Gate(
            f"cold: negative in at least {3 * steps // 4} of {steps} steps on every seed",
            f"fewest {fewest}",
            fewest >= 3 * steps // 4,
        ),
        Gate(
            f"held-out share with the warm critic at least {LEAST_GAIN} above the cold one",
            f"{gain.mean:+.3f} ± {gain.error or 0.0:.3f} over pairs",
            gain.mean >= LEAST_GAIN,
        ),
    ]


def picture(named: Sequence[tuple[str, list[list[float]]]]) -> Picture:
    def draw(axes: Axes) -> None:
        for (name, found), ink in zip(named, INK, strict=False):
            for number, seed in enumerate(found):
                axes.plot(seed, ".-", color=ink, alpha=0.8, linewidth=1, label=name if number == 0 else None)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_yscale("symlog", linthresh=1)
        axes.set_xlabel("training step")
        axes.set_ylabel("explained variance (linear to 1, then log)", fontsize=8)
        axes.legend(fontsize=8)

    return Picture("learning-critic", "Explained variance: warmed up, cold, and cold with a random head", draw)


async def run(context: Context) -> Answer:
    config, quick = short(context.quick), context.quick
    scale = config.verify.reward_scale
    async with staged(context, config) as stage:
        before = await untrained(stage, config, quick)
        base = await on_every_seed(stage, config, batch_mean(config), quick)
        grouped = Arm(f"group relative, {GROUP} a task", group_relative(counted(scale), GROUP), "zero", group=GROUP)
        groups = await on_every_seed(stage, config, grouped, quick)
        warm_state, warmup = await warmed_up(stage, with_seed(config, 0))
        warm_arm = Arm("critic, warm", counted(scale), "critic")
        warm = await on_every_seed(stage, config, warm_arm, quick, critic=warm_state, recalibrate=True)
        narrow, wide = stage.critic.config.initializer_range, stage.critic_state.weights[HEAD].shape[1] ** -0.5
        cold_state = drawn_head(stage.critic_state, wide, seed=0)
        cold_arm = Arm("critic, cold with a random head", counted(scale), "critic")
        cold = await on_every_seed(stage, config, cold_arm, quick, critic=cold_state)
        zero = beside(stage, config, base, stage.critic_state)
        small = first_explained(stage, config, base, drawn_head(stage.critic_state, narrow, seed=0))
    named = (
        ("warm", explained_by(warm)),
        ("cold, zero head", zero),
        ("cold, random head", explained_by(cold)),
    )
    episodes, batch = sum(len(o.trials) for o in warmup), config.rollout.batch_size
    shares = " ".join(f"{outcome.explained_variance:+.2f}" for outcome in warmup)
    explained = explained_table(
        named,
        f"± over {len(base)} seeds. Warm-up: {len(warmup)} steps, {episodes:,} episodes of another pool (EV {shares}), "
        f"then {config.schedule.recalibrate_steps} recalibration steps of {batch}. The cold critic with a zero head "
        f"trains on the batches of the arm *batch mean*. Random head: deviation {wide:.3f}; with {narrow} step 0 would be at "
        f"{text(small)}.",
    )
    compared = table(
        f"Arms after {config.schedule.train_steps} steps of {batch} episodes",
        (base, groups, warm, cold),
        before,
        f"Levels {', '.join(map(str, config.tasks.levels))}, {len(base[0].heldout)} held-out tasks at temperature 1, "
        f"{len(base)} seeds. Differences are from *batch mean*, paired by task and trial seed. Shares are P / n.",
    )
    return Answer((explained, compared), tuple(gates(warm, cold)), (picture(named),))


PART = Part(
    name="critic",
    question="What does a critic buy: warm against cold, and beside a batch mean and a group relative baseline?",
    cpu_seconds=400,
    run=run,
)
