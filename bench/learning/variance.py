"""What does a baseline do to the variance of the policy gradient? On a frozen policy, so that nothing else moves.

A critic with a zero head is trained on fresh batches of the frozen warm start (two epochs each, the demonstration's
settings). Then other trials of the same policy are cut into disjoint groups, and each group's gradient is taken under
every estimator of credit (``bench.learning.gradients``): no baseline, batch mean, V of the first state, critic at
lambda 1 and at lambda .95. *Variance* is the mean squared deviation of a group's gradient from the mean over groups,
all parameters. All errors are jackknife errors over groups, and estimators share groups, so ratios are paired.

Three sets: all levels mixed, the shortest tasks alone, the longest alone. Built-in tasks have levels 1 to 5 and 5 to
20 assertions; the warm start keeps far below ``rollout.max_ids`` on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from bench.learning.frozen import batch_of, frozen_trials
from bench.learning.gradients import Estimator, Products, advantages, group_gradients
from bench.learning.part import Answer, Context, Gate, Part
from bench.learning.rollout import Trial
from bench.learning.stage import Stage, staged
from bench.learning.statistics import Estimate, mean
from bench.tables import Cell, Table
from t1actors.config import resolve
from t1actors.tasks.generate import LEVELS
from t1actors.train.batch import Batch
from t1actors.train.critic_step import critic_step, estimate_values
from t1actors.train.networks import load_masters
from t1actors.train.returns import explained_variance
from t1actors.train.state import TrainerState

NONE = Estimator("no baseline", "none")
MEAN = Estimator("batch mean", "mean")
FIRST = Estimator("V(first state)", "first")
CRITIC = Estimator("critic, lambda 1", "critic")
SHORTENED = Estimator("critic, lambda .95", "critic", lam=0.95)
ESTIMATORS = (NONE, MEAN, FIRST, CRITIC, SHORTENED)
BASE, REFERENCE = ESTIMATORS.index(MEAN), ESTIMATORS.index(CRITIC)

MIXED, SHORT, LONG = "mixed", "short", "long"
SETS = {MIXED: tuple(LEVELS), SHORT: (LEVELS[0],), LONG: (LEVELS[-1],)}
LEAST_CRITIC = 1.4
LEAST_SHORTENED = 4.0
MOST_SHORT = 1.4


@dataclass(frozen=True)
class Sizes:
    """``group`` is a multiple of the number of levels, so that every group has them evenly."""

    groups: int = 24
    group: int = 25
    critic_batches: int = 24
    critic_batch: int = 100


QUICK = Sizes(groups=3, group=5, critic_batches=1, critic_batch=10)


@dataclass(frozen=True)
class Measured:
    """One set of trials; V of the first state explains ``explained_first`` of the variance of rewards over trials."""

    name: str
    levels: tuple[int, ...]
    trials: tuple[Trial, ...]
    batch: Batch
    explained: float
    explained_first: float
    sizes: tuple[float, ...]
    """Root mean square of each estimator's advantages, over tokens."""
    products: Products


async def warm_critic(stage: Stage, sizes: Sizes) -> TrainerState:
    """A critic of the frozen policy: zero head, one pass over fresh batches."""
    count = sizes.critic_batches * sizes.critic_batch
    trials = await frozen_trials(stage, "critic", SETS[MIXED], count, number=0)
    train, state, explained = stage.config.train, stage.critic_state, list[float]()
    for step in range(sizes.critic_batches):
        batch = batch_of(stage, trials[step * sizes.critic_batch : (step + 1) * sizes.critic_batch])
        values = estimate_values(stage.critic, state, batch, train)
        state = critic_step(stage.critic, state, batch, values.values_T, train, seed=0, step=step).state
        explained.append(values.explained_variance)
    stage.context.say(f"critic of the frozen policy: EV {' '.join(f'{value:+.2f}' for value in explained)}")
    return state


async def measure(stage: Stage, name: str, number: int, critic: TrainerState, sizes: Sizes) -> Measured:
    """The gradients of one set under every estimator."""
    levels = SETS[name]
    trials = await frozen_trials(stage, name, levels, sizes.groups * sizes.group, number=number)
    batch = batch_of(stage, trials)
    values = estimate_values(stage.critic, critic, batch, stage.config.train)
    advantages_ET = np.stack([advantages(estimator, batch, values.values_T) for estimator in ESTIMATORS])
    load_masters(stage.policy, stage.policy_state.weights)
    gradients: list[torch.Tensor] = []
    for group in range(sizes.groups):
        places = range(group * sizes.group, (group + 1) * sizes.group)
        gradients.append(group_gradients(stage.policy, batch, places, advantages_ET, stage.config.train))
    measured = Measured(
        name=name,
        levels=levels,
        trials=trials,
        batch=batch,
        explained=values.explained_variance,
        explained_first=explained_by_first(batch, values.values_T),
        sizes=tuple(float(np.sqrt(np.square(line_T).mean())) for line_T in advantages_ET),
        products=Products.of(torch.stack(gradients, dim=1)),
    )
    reduction = measured.products.reduction(REFERENCE, BASE)
    stage.context.say(f"{name}: EV {measured.explained:+.2f}, critic against batch mean x {reduction.mean:.2f}")
    return measured


def explained_by_first(batch: Batch, values_T: npt.NDArray[np.floating]) -> float:
    """Explained variance over trials, not tokens, of V at each trial's first sampled token."""
    rewards = [trial.reward for trial in batch.trials]
    return explained_variance(rewards, [float(values_T[trial.first]) for trial in batch.trials])


def results(sets: Sequence[Measured], sizes: Sizes) -> list[Table]:
    def described(found: Measured) -> tuple[Cell, ...]:
        rewards = np.array([trial.reward for trial in found.batch.trials])
        return (
            found.name,
            ", ".join(map(str, found.levels)),
            len(found.trials),
            mean([trial.ids for trial in found.trials]),
            found.batch.sampled / len(found.trials),
            float(rewards.mean()),
            float(rewards.std(ddof=1)),
            found.explained,
            found.explained_first,
            found.products.largest_share(BASE),
        )

    about = Table(
        "The frozen policy's trials",
        (
            "set",
            "levels",
            "trials",
            "ids a trial",
            "sampled tokens a trial",
            "mean reward",
            "its deviation",
            "explained by V, over tokens",
            "explained by V(first state), over trials",
            "the largest group's share of the variance",
        ),
        tuple(described(found) for found in sets),
        f"Reward is P / S. The critic was trained on {sizes.critic_batches} batches of {sizes.critic_batch} other trials of "
        f"mixed levels. The last column is under the batch mean; it would be {1 / sizes.groups:.3f} if all groups were "
        "alike: a single trial with rare tokens can be most of a group's gradient.",
    )
    reductions = Table(
        "Variance of the policy gradient: how many times smaller than under the batch mean",
        ("estimator", *(found.name for found in sets)),
        tuple(
            (estimator.name, *(None if e == BASE else found.products.reduction(e, BASE) for found in sets))
            for e, estimator in enumerate(ESTIMATORS)
        ),
        f"{sizes.groups} disjoint groups of {sizes.group} trials a set; ± is the jackknife's error over groups. The batch "
        "mean is that of all other trials of the set.",
    )
    expected = Table(
        "What the gradients point to",
        (
            "set",
            "estimator",
            "r.m.s. of advantages",
            "cosine of a group with the others' mean",
            "cosine of expected gradients",
            "length of the expected gradient",
        ),
        tuple(
            (
                found.name,
                estimator.name,
                found.sizes[e],
                found.products.cosine(e, REFERENCE),
                found.products.direction(e, REFERENCE),
                found.products.length(e, REFERENCE),
            )
            for found in sets
            for e, estimator in enumerate(ESTIMATORS)
        ),
        "Reference: the critic's gradient at lambda 1, which is unbiased. *Cosine of a group with the others' mean*: how "
        "well one group's gradient points, noise included. *Cosine of expected gradients* and *length* (along the "
        "reference, in units of it) are made of products of different groups, so noise is not in them: 1 without bias, "
        "within the error.",
    )
    return [about, reductions, expected]


def gates(sets: Sequence[Measured]) -> list[Gate]:
    by_name = {found.name: found.products for found in sets}

    def reduction(name: str, estimator: Estimator) -> tuple[Estimate, str]:
        found = by_name[name].reduction(ESTIMATORS.index(estimator), BASE)
        return found, f"{found.mean:.2f}" + (f" ± {found.error:.2f}" if found.error is not None else "")

    critic, critic_text = reduction(MIXED, CRITIC)
    shortened, shortened_text = reduction(MIXED, SHORTENED)
    short, short_text = reduction(SHORT, CRITIC)
    against = "variance of the policy gradient against the batch mean"
    return [
        Gate(
            f"{against}: critic, lambda 1, mixed levels, >= {LEAST_CRITIC} times smaller",
            critic_text,
            critic.mean >= LEAST_CRITIC,
        ),
        Gate(
            f"{against}: critic, lambda .95, mixed levels, >= {LEAST_SHORTENED:.0f} times smaller",
            shortened_text,
            shortened.mean >= LEAST_SHORTENED,
        ),
        Gate(
            f"{against}: critic, lambda 1, short tasks of one level, <= {MOST_SHORT} times smaller: it does not pay",
            short_text,
            short.mean <= MOST_SHORT,
        ),
    ]


async def run(context: Context) -> Answer:
    config = resolve(preset="demo", sets=[f"tasks.levels={list(LEVELS)}"]).config
    sizes = QUICK if context.quick else Sizes()
    async with staged(context, config) as stage:
        critic = await warm_critic(stage, sizes)
        sets = [await measure(stage, name, number, critic, sizes) for number, name in enumerate(SETS, 1)]
    return Answer(tuple(results(sets, sizes)), tuple(gates(sets)))


PART = Part(
    name="variance",
    question="How much of the policy gradient's variance does a baseline take away, and where does a critic pay?",
    cpu_seconds=150,
    run=run,
)
