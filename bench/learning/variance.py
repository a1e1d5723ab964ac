"""What does a baseline do to the variance of the policy gradient? On a frozen policy, so that nothing else moves.

A critic with a zero head is trained on fresh batches of the frozen warm start (two epochs each, the demonstration's
settings), and is looked at twice: half trained and, much later, when its explained variance has stopped rising. Other
trials of the same policy are cut into disjoint groups, and each group's gradient is taken under every estimator of
credit (``bench.learning.gradients``): no baseline, batch mean, and for each of the two critics V of the first state,
lambda 1 and lambda .95. *Variance* is the mean squared deviation of a group's gradient from the mean over groups,
all parameters. All errors are jackknife errors over groups, and estimators share groups, so ratios are paired. Gates
are asked of the critic that has learned what it could.

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
WITHOUT, OF_CRITIC = (NONE, MEAN), (FIRST, CRITIC, SHORTENED)
BASE = WITHOUT.index(MEAN)

MIXED, SHORT, LONG = "mixed", "short", "long"
SETS = {MIXED: tuple(LEVELS), SHORT: (LEVELS[0],), LONG: (LEVELS[-1],)}
LEAST_CRITIC = 1.4
LEAST_SHORTENED = 4.0
MOST_SHORT = 1.4


@dataclass(frozen=True)
class Sizes:
    """``group`` is a multiple of the number of levels, so that every group has them evenly. A critic for each of
    ``critic_batches``, in rising order: the same one, after so many batches."""

    groups: int = 24
    group: int = 25
    critic_batches: tuple[int, ...] = (24, 64)
    critic_batch: int = 100

    def place(self, estimator: Estimator, critic: int = -1) -> int:
        """Of an estimator among all estimators of a set; with the last critic by default."""
        if estimator in WITHOUT:
            return WITHOUT.index(estimator)
        critic %= len(self.critic_batches)
        return len(WITHOUT) + critic * len(OF_CRITIC) + OF_CRITIC.index(estimator)

    @property
    def estimators(self) -> tuple[tuple[Estimator, int | None], ...]:
        """All of a set, each with the batches that its critic was trained on."""
        of_critics = ((estimator, batches) for batches in self.critic_batches for estimator in OF_CRITIC)
        return (*((estimator, None) for estimator in WITHOUT), *of_critics)


QUICK = Sizes(groups=3, group=5, critic_batches=(1, 2), critic_batch=10)


@dataclass(frozen=True)
class Measured:
    """One set of trials. By critic: V explains ``explained`` of the variance of returns over tokens, V of the first state
    ``explained_first`` of that of rewards over trials."""

    name: str
    levels: tuple[int, ...]
    trials: tuple[Trial, ...]
    batch: Batch
    explained: tuple[float, ...]
    explained_first: tuple[float, ...]
    sizes: tuple[float, ...]
    """Root mean square of each estimator's advantages, over tokens."""
    products: Products


async def warm_critics(stage: Stage, sizes: Sizes) -> list[TrainerState]:
    """A critic of the frozen policy after each of ``critic_batches``: zero head, one pass over fresh batches."""
    count = max(sizes.critic_batches) * sizes.critic_batch
    trials = await frozen_trials(stage, "critic", SETS[MIXED], count, number=0)
    train, state, explained = stage.config.train, stage.critic_state, list[float]()
    found: list[TrainerState] = []
    for step in range(max(sizes.critic_batches)):
        batch = batch_of(stage, trials[step * sizes.critic_batch : (step + 1) * sizes.critic_batch])
        values = estimate_values(stage.critic, state, batch, train)
        state = critic_step(stage.critic, state, batch, values.values_T, train, seed=0, step=step).state
        explained.append(values.explained_variance)
        if step + 1 in sizes.critic_batches:
            found.append(state)
    stage.context.say(f"critic of the frozen policy: EV {' '.join(f'{value:+.2f}' for value in explained)}")
    return found


async def measure(stage: Stage, name: str, number: int, critics: Sequence[TrainerState], sizes: Sizes) -> Measured:
    """The gradients of one set under every estimator."""
    levels = SETS[name]
    trials = await frozen_trials(stage, name, levels, sizes.groups * sizes.group, number=number)
    batch = batch_of(stage, trials)
    values = [estimate_values(stage.critic, critic, batch, stage.config.train) for critic in critics]
    lines = [advantages(estimator, batch, values[0].values_T) for estimator in WITHOUT]
    lines += [advantages(estimator, batch, found.values_T) for found in values for estimator in OF_CRITIC]
    advantages_ET = np.stack(lines)
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
        explained=tuple(found.explained_variance for found in values),
        explained_first=tuple(explained_by_first(batch, found.values_T) for found in values),
        sizes=tuple(float(np.sqrt(np.square(line_T).mean())) for line_T in advantages_ET),
        products=Products.of(torch.stack(gradients, dim=1)),
    )
    reduction = measured.products.reduction(sizes.place(CRITIC), BASE)
    stage.context.say(f"{name}: EV {measured.explained[-1]:+.2f}, critic against batch mean x {reduction.mean:.2f}")
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
            *found.explained,
            *found.explained_first,
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
            *(f"explained by V, over tokens, {batches} batches" for batches in sizes.critic_batches),
            *(f"explained by V(first state), over trials, {batches} batches" for batches in sizes.critic_batches),
            "the largest group's share of the variance",
        ),
        tuple(described(found) for found in sets),
        f"Reward is P / S. The critic was trained on batches of {sizes.critic_batch} other trials of mixed levels, and "
        f"looked at after {' and '.join(map(str, sizes.critic_batches))} of them. The last column is under the batch mean; "
        f"it would be {1 / sizes.groups:.3f} if all groups were "
        "alike: a single trial with rare tokens can be most of a group's gradient.",
    )
    reference = sizes.place(CRITIC)
    reductions = Table(
        "Variance of the policy gradient: how many times smaller than under the batch mean",
        ("estimator", "batches the critic had", *(found.name for found in sets)),
        tuple(
            (estimator.name, batches, *(None if e == BASE else found.products.reduction(e, BASE) for found in sets))
            for e, (estimator, batches) in enumerate(sizes.estimators)
        ),
        f"{sizes.groups} disjoint groups of {sizes.group} trials a set; ± is the jackknife's error over groups. The batch "
        "mean is that of all other trials of the set.",
    )
    expected = Table(
        "What the gradients point to",
        (
            "set",
            "estimator",
            "batches the critic had",
            "r.m.s. of advantages",
            "cosine of a group with the others' mean",
            "cosine of expected gradients",
            "length of the expected gradient",
        ),
        tuple(
            (
                found.name,
                estimator.name,
                batches,
                found.sizes[e],
                found.products.cosine(e, reference),
                found.products.direction(e, reference),
                found.products.length(e, reference),
            )
            for found in sets
            for e, (estimator, batches) in enumerate(sizes.estimators)
        ),
        "Reference: the last critic's gradient at lambda 1, which is unbiased. *Cosine of a group with the others' "
        "mean*: how well one group's gradient points, noise included. *Cosine of expected gradients* and *length* (along the "
        "reference, in units of it) are made of products of different groups, so noise is not in them: 1 without bias, "
        "within the error.",
    )
    return [about, reductions, expected]


def gates(sets: Sequence[Measured], sizes: Sizes) -> list[Gate]:
    by_name = {found.name: found.products for found in sets}

    def reduction(name: str, estimator: Estimator) -> tuple[Estimate, str]:
        found = by_name[name].reduction(sizes.place(estimator), BASE)
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
        critics = await warm_critics(stage, sizes)
        sets = [await measure(stage, name, number, critics, sizes) for number, name in enumerate(SETS, 1)]
    return Answer(tuple(results(sets, sizes)), tuple(gates(sets, sizes)))


PART = Part(
    name="variance",
    question="How much of the policy gradient's variance does a baseline take away, and where does a critic pay?",
    cpu_seconds=240,
    run=run,
)
