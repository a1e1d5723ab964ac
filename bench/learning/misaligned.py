"""What does it do to a PPO step when the sampler's log-probs stand beside other tokens than their own?

The same trials of the warm start are trained on once for each treatment of the streams
(``bench.learning.retokenised``), one epoch in the demonstration's minibatches, with a ratio that divides by the
recorded q (``bench.learning.sampler_ratio``). The trials are on policy, so an aligned step moves KL only by what its
own updates do.

Drift is what there is at temperature 1 (a few turns in a thousand); at temperature 1.6 every sixth turn or so is not
canonical, and that stands in for the drift of a harness that carries text, or of a run that collapses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.learning.frozen import batch_of, frozen_trials
from bench.learning.part import Gate
from bench.learning.retokenised import kept_by_position, non_canonical_turns, retokenised, shifted
from bench.learning.sampler_ratio import SamplerRatioStep, sampler_ratio_step
from bench.learning.stage import Stage
from bench.learning.statistics import Estimate
from bench.tables import Cell, Table
from t1actors.models.folder import model_folder
from t1actors.models.tokenizer import Tokenizer
from t1actors.tito.record import TrajectoryRecord
from t1actors.train.batch import Batch
from t1actors.train.networks import load_masters

FORCED_TEMPERATURE = 1.6
LEAST_KL = 1.0
ALIGNED = "aligned, as sampled"
RECOMPUTED = "re-tokenised, q computed again"
IN_TURN = "re-tokenised, q kept by position in the turn"
IN_TRIAL = "re-tokenised, q kept by position in the trial"
SHIFTED = "as sampled, q one token off"

Treatment = Callable[[TrajectoryRecord, TrajectoryRecord], TrajectoryRecord]
"""(record as sampled, record re-tokenised with q computed again) -> what is trained on."""
TREATMENTS: dict[str, Treatment] = {
    ALIGNED: lambda sampled, again: sampled,
    RECOMPUTED: lambda sampled, again: again,
    IN_TURN: lambda sampled, again: kept_by_position(sampled, again, "turn"),
    IN_TRIAL: lambda sampled, again: kept_by_position(sampled, again, "trial"),
    SHIFTED: lambda sampled, again: shifted(sampled),
}


@dataclass(frozen=True)
class Drifted:
    """Steps by treatment, one a batch, on trials sampled at ``temperature``."""

    temperature: float
    non_canonical: int
    turns: int
    steps: dict[str, list[SamplerRatioStep]]

    def kl(self, treatment: str) -> Estimate:
        return Estimate.of([step.kl for step in self.steps[treatment]])


async def drifted(stage: Stage, temperature: float, *, batches: int, size: int) -> Drifted:
    """One step a treatment and batch, each from the warm start with a fresh optimizer."""
    trials = await frozen_trials(
        stage, "fidelity", stage.config.tasks.levels, batches * size, number=10, temperature=temperature
    )
    tokenizer = Tokenizer.from_folder(model_folder(stage.config.model.policy))
    counts = [non_canonical_turns(trial.record, tokenizer) for trial in trials]
    steps: dict[str, list[SamplerRatioStep]] = {name: [] for name in TREATMENTS}
    for number in range(batches):
        batch = batch_of(stage, trials[number * size : (number + 1) * size])
        for name, treated in _treated(stage, batch, tokenizer).items():
            step = sampler_ratio_step(
                stage.policy, stage.policy_state, treated, stage.config.train, seed=0, step=number
            )
            steps[name].append(step)
    found = Drifted(temperature, sum(odd for odd, _ in counts), sum(turns for _, turns in counts), steps)
    stage.context.say(
        f"temperature {temperature}: {found.non_canonical} of {found.turns} turns not canonical, KL "
        + ", ".join(f"{name} {found.kl(name).mean:.2g}" for name in TREATMENTS)
    )
    return found


def _treated(stage: Stage, batch: Batch, tokenizer: Tokenizer) -> dict[str, Batch]:
    load_masters(stage.policy, stage.policy_state.weights)
    again = [retokenised(record, tokenizer, stage.policy, stage.geometry) for record, _ in batch.items]
    return {
        name: Batch.of(
            [(treat(record, copy), reward) for (record, reward), copy in zip(batch.items, again, strict=True)],
            stage.geometry,
        )
        for name, treat in TREATMENTS.items()
    }


def table(found: Sequence[Drifted], updates: int) -> Table:
    def row(drift: Drifted, name: str) -> tuple[Cell, ...]:
        steps = drift.steps[name]
        return (
            f"{drift.temperature:g}",
            f"{drift.non_canonical} of {drift.turns}",
            name,
            drift.kl(name),
            Estimate.of([step.clip_share for step in steps]),
            max(step.ratio_max for step in steps),
            f"{sum(step.refused for step in steps)} of {updates * len(steps)}",
        )

    return Table(
        "A PPO step whose ratio divides by the sampler's q",
        (
            "temperature",
            "turns not canonical",
            "streams",
            "KL",
            "clip share",
            "largest ratio",
            "updates refused",
        ),
        tuple(row(drift, name) for drift in found for name in TREATMENTS),
        f"The first {updates} updates of a run, one epoch; errors over batches. KL and clip share are over every token in "
        "the pass that trains it. The product's own ratio has the trainer's log-probs on both sides: a misaligned q would "
        "show in its engine gap and decide nothing. *Refused*: the gradient left the range of the trainer's exact sums.",
    )


def gates(found: Drifted) -> list[Gate]:
    """For the forced drift."""
    kl, aligned = found.kl(IN_TURN), found.kl(ALIGNED)
    return [
        Gate(
            f"re-tokenised ids beside the sampler's q by position: KL of the first updates above {LEAST_KL:g} "
            f"(temperature {found.temperature:g})",
            f"{kl.mean:.3g} ({aligned.mean:.1g} aligned)",
            kl.mean > LEAST_KL,
        )
    ]
