"""What do the fidelity mechanisms do at this size: routing replay under a bfloat16 sampler, and streams that stay aligned?

*Replay.* The same warm start samples in float32 and in bfloat16 (``model.sampler_dtype``); a float32 trainer takes
log-probs of what was sampled with replayed routing and with free routers (``train.replay_routing``). Means hide what
replay is for, so the tail is shown: the 99.9th percentile and the largest gap.

*Alignment.* The control for "all streams of a trial move by the same offsets" (``bench.learning.misaligned``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.learning import misaligned
from bench.learning.frozen import batch_of, frozen_trials
from bench.learning.gaps import Gaps, gaps
from bench.learning.part import Answer, Context, Gate, Part
from bench.learning.stage import Stage, staged
from bench.learning.statistics import Estimate, paired
from bench.tables import Cell, Table
from t1actors.config import resolve
from t1actors.train.networks import load_masters

TAIL = 99.9


@dataclass(frozen=True)
class Sizes:
    batches: int = 5
    batch: int = 96


QUICK = Sizes(batches=2, batch=6)


@dataclass(frozen=True)
class Sampled:
    """One ``Gaps`` a batch, of trials that a sampler of ``dtype`` made."""

    dtype: str
    batches: tuple[Gaps, ...]

    @property
    def flipped(self) -> Estimate:
        return Estimate.of([float(g.flipped_T.mean()) for g in self.batches])

    def lines(self, replayed: bool) -> list[np.ndarray]:
        """|d| of each batch."""
        return [g.replayed_T if replayed else g.free_T for g in self.batches]

    def largest(self, replayed: bool) -> float:
        return max(float(line_T.max()) for line_T in self.lines(replayed))


async def sampled(stage: Stage, sizes: Sizes) -> Sampled:
    """Trials by the stage's sampler, and the trainer's gaps to it."""
    trials = await frozen_trials(stage, "fidelity", stage.config.tasks.levels, sizes.batches * sizes.batch, number=10)
    load_masters(stage.policy, stage.policy_state.weights)
    found: list[Gaps] = []
    for first in range(0, len(trials), sizes.batch):
        batch = batch_of(stage, trials[first : first + sizes.batch])
        found.append(gaps(stage.policy, batch, stage.config.train))
    made = Sampled(stage.config.model.sampler_dtype, tuple(found))
    stage.context.say(
        f"{made.dtype} sampler: {made.flipped.mean:.2%} of tokens flipped, largest |d| {made.largest(False):.2g}, "
        f"with replay {made.largest(True):.2g}"
    )
    return made


def gap_table(samplers: tuple[Sampled, ...]) -> Table:
    def row(found: Sampled, replayed: bool) -> tuple[Cell, ...]:
        lines = found.lines(replayed)
        flips = [line_T[g.flipped_T] for line_T, g in zip(lines, found.batches, strict=True)]
        return (
            found.dtype,
            "replayed" if replayed else "free",
            found.flipped,
            Estimate.of([float(line_T.mean()) for line_T in lines]),
            Estimate.of([float(line_T.mean()) for line_T in flips if len(line_T)]) if any(map(len, flips)) else None,
            Estimate.of([float(np.percentile(line_T, TAIL)) for line_T in lines]),
            Estimate.of([float(line_T.max()) for line_T in lines]),
            found.largest(replayed),
        )

    tokens = " and ".join(f"{sum(len(g.free_T) for g in found.batches):,} ({found.dtype})" for found in samplers)
    return Table(
        "Gap |d| between sampler and float32 trainer, same weights",
        (
            "sampler",
            "routing in the trainer",
            "tokens with a flipped expert",
            "mean |d|",
            "mean |d| of flipped tokens",
            f"{TAIL} % of tokens below",
            "largest of a batch",
            "largest",
        ),
        tuple(row(found, replayed) for found in samplers for replayed in (False, True)),
        f"{tokens} sampled tokens; errors over {len(samplers[0].batches)} batches. A token is flipped when the trainer's "
        "free router chooses other experts for it than the sampler recorded, in some layer. *free*: "
        "train.replay_routing=false.",
    )


def gates(exact_side: Sampled, rounded: Sampled) -> list[Gate]:
    flips = sum(int(g.flipped_T.sum()) for g in exact_side.batches)
    largest = max(exact_side.largest(True), exact_side.largest(False))
    means = [[float(line_T.mean()) for line_T in rounded.lines(replayed)] for replayed in (True, False)]
    less = paired(*means)
    text = f"{less.mean:+.1e}" + (f" ± {less.error:.0e}" if less.error is not None else "")
    return [
        Gate(
            "float32 on both sides: no flipped expert and a gap of exactly 0, with and without replay",
            f"{flips} flips, largest |d| {largest:g}",
            flips == 0 and largest == 0,
        ),
        Gate("bfloat16 sampler: replay lowers the mean |d|", text, less.mean < 0),
        Gate(
            "bfloat16 sampler: replay lowers the largest |d|",
            f"{rounded.largest(True):.2g}, free {rounded.largest(False):.2g}",
            rounded.largest(True) < rounded.largest(False),
        ),
    ]


async def run(context: Context) -> Answer:
    sizes = QUICK if context.quick else Sizes()
    config = resolve(preset="demo").config
    updates = config.train.actor.epochs * config.train.actor.minibatches
    async with staged(context, config) as stage:
        exact_side = await sampled(stage, sizes)
        natural = await misaligned.drifted(stage, config.rollout.temperature, batches=sizes.batches, size=sizes.batch)
        forced = await misaligned.drifted(stage, misaligned.FORCED_TEMPERATURE, batches=sizes.batches, size=sizes.batch)
    async with staged(context, resolve(preset="demo", sets=["model.sampler_dtype=bfloat16"]).config) as stage:
        rounded = await sampled(stage, sizes)
    tables = (gap_table((exact_side, rounded)), misaligned.table((natural, forced), updates))
    return Answer(tables, (*gates(exact_side, rounded), *misaligned.gates(forced)))


PART = Part(
    name="fidelity",
    question="How far is the trainer from the sampler with and without routing replay, and what does a misaligned stream do?",
    cpu_seconds=100,
    run=run,
)
