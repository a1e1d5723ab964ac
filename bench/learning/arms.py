"""What arms of a comparison differ in: what a trial is paid, and what is subtracted. Formulas, and nothing that runs.

Every arm goes through the product's ``actor_step`` and its credit (``train.returns``), with gamma 1. With r the pay of a
trial, b the batch's mean pay (over trials, not tokens), V the critic's value before its update, and a trial of n sampled
tokens in one chunk:

| baseline | values given | advantage of token k |
|---|---|---|
| zero | 0 | A_k = r |
| batch mean | b at every token, lambda 1 | A_k = r - b |
| critic | V_k | lambda 1: A_k = r - V_k; below 1: GAE |

| pay | formula |
|---|---|
| counted | r = P / S, S fixed (T1 section 8) |
| ratio | r = P / n |
| binary | r = 1 if P = n, else 0 |
| group relative | r = (P/S - mean) / (deviation + 1e-6) over the G trials of its task, sample deviation; with baseline zero |
| permuted | another trial's pay: a derangement of the batch, new in every step |

A group relative arm launches the first B/G tasks of a step G times each, so that it plays as many episodes as the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import structs

from bench.learning.rollout import Trial
from bench.learning.statistics import mean
from t1actors.actors.schedule import PlannedStep
from t1actors.events import TrialSpec
from t1actors.tasks.draws import Draws
from t1actors.train.batch import Batch

Pay = Callable[[Sequence[Trial], int], list[float]]
"""What each trial of a step is paid: (trials in index order, step)."""
Baseline = Literal["zero", "batch mean", "critic"]
GROUP_EPSILON = 1e-6


@dataclass(frozen=True)
class Arm:
    """``group``: how often each task of a step is launched."""

    name: str
    pay: Pay
    baseline: Baseline
    group: int = 1


def counted(scale: float) -> Pay:
    return lambda trials, step: [trial.passed / scale for trial in trials]


def ratio(trials: Sequence[Trial], step: int) -> list[float]:
    return [trial.share for trial in trials]


def binary(trials: Sequence[Trial], step: int) -> list[float]:
    return [float(trial.solved) for trial in trials]


def group_relative(pay: Pay, size: int) -> Pay:
    """Trials of one group lie side by side (``launched_in_groups``)."""

    def paid(trials: Sequence[Trial], step: int) -> list[float]:
        raw = np.array(pay(trials, step), dtype=np.float64)
        groups = raw.reshape(-1, size)
        if any(len({t.record.task for t in trials[i : i + size]}) != 1 for i in range(0, len(trials), size)):
            raise ValueError(f"step {step}: groups of {size} trials are not of one task each; launch them in groups")
        relative = (groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + GROUP_EPSILON)
        return relative.reshape(-1).tolist()

    return paid


def permuted(pay: Pay, seed: int) -> Pay:
    """The control: no trial keeps its own pay, so there is nothing to learn from it."""

    def paid(trials: Sequence[Trial], step: int) -> list[float]:
        own = pay(trials, step)
        return [own[place] for place in derangement(len(own), f"permuted-{seed}-{step}")]

    return paid


def derangement(count: int, seed: str) -> list[int]:
    """A permutation without a fixed place, every one of them equally likely. Raises ``ValueError`` for a single item."""
    if count == 1:
        raise ValueError("one item cannot change places; a control needs at least two trials")
    draws = Draws(seed)
    while True:  # a shuffle has no fixed place with probability 1/e
        order = draws.shuffled(range(count))
        if all(place != item for place, item in enumerate(order)):
            return order


def launched_in_groups(planned: PlannedStep, size: int) -> PlannedStep:
    """The step with its first B / ``size`` tasks launched ``size`` times each. Trial ids and seeds stay as they were."""
    if planned.batch_size % size:
        raise ValueError(f"step {planned.step}: {planned.batch_size} trials are not a whole number of groups of {size}")

    def as_member(spec: TrialSpec, of: TrialSpec) -> TrialSpec:
        return structs.replace(spec, task=of.task, turn_limit=of.turn_limit)

    trials = planned.trials[: planned.batch_size]
    return replace(planned, trials=tuple(as_member(spec, trials[n // size]) for n, spec in enumerate(trials)))


def constant_values(batch: Batch, baseline: Baseline) -> npt.NDArray[np.float32]:
    """The values that make ``actor_step`` compute the advantages of an arm without a critic (at lambda 1)."""
    value = mean([trial.reward for trial in batch.trials]) if baseline == "batch mean" else 0.0
    return np.full(batch.sampled, value, dtype=np.float32)
