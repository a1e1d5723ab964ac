"""The policy gradient of groups of trials under several estimators of credit, and what the spread of the groups says.

Every estimator is one formula, generalised advantage estimation (``train.returns``), with other values in the
critic's place:

| estimator | value of token k | lambda | advantage | unbiased |
|---|---|---|---|---|
| none | 0 | 1 | r | yes |
| mean | mean reward of the other trials of the batch | 1 | r - b | yes |
| first | the critic's, at the trial's first sampled token | 1 | r - V_1 | yes |
| critic | the critic's | 1 | r - V_k | yes |
| critic | the critic's | below 1 | GAE | no |

The gradient is that of the trainer's policy loss at ratio 1, without clipping or whitening: sum_k A_k grad log pi_k /
N over the N sampled tokens of a group. Only inner products of gradients are kept (``Products``): variances, cosines
and lengths are sums of them, and leaving a group out costs nothing.

Shapes: E estimators, G groups, D parameters, T sampled tokens of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from bench.learning.jackknife import jackknife
from bench.learning.statistics import Estimate
from t1actors.config import TrainConfig
from t1actors.models.policy import Policy
from t1actors.train.actor_step import logprobs
from t1actors.train.batch import Batch, micro_batches
from t1actors.train.exactness import exact
from t1actors.train.losses import policy_terms
from t1actors.train.packing import pack
from t1actors.train.returns import Floats, batch_credit

BLOCK = 65_536
"""Parameters whose inner products are summed at once in float32; blocks are added in float64."""


@dataclass(frozen=True)
class Estimator:
    name: str
    values: Literal["none", "mean", "first", "critic"]
    lam: float = 1.0


def advantages(estimator: Estimator, batch: Batch, critic_T: npt.NDArray[np.floating]) -> Floats:
    """Over the batch's T sampled tokens, gamma 1; ``critic_T`` are the critic's values."""
    rewards = np.array([trial.reward for trial in batch.trials])
    counts = [trial.sampled for trial in batch.trials]
    match estimator.values:
        case "none":
            values_T = np.zeros(batch.sampled)
        case "mean":
            values_T = np.repeat((rewards.sum() - rewards) / (len(rewards) - 1), counts)
        case "first":
            values_T = np.repeat([critic_T[trial.first] for trial in batch.trials], counts)
        case "critic":
            values_T = critic_T
    return batch_credit(batch.chunk_rewards, batch.chunk_sampled, values_T, gamma=1.0, lam=estimator.lam)[0]


SCALE = 12
"""Tokens enter the exact sums with the weight 2^-12, which keeps the sums in their range."""


def group_gradients(
    policy: Policy, batch: Batch, places: Sequence[int], advantages_ET: npt.NDArray[np.floating], config: TrainConfig
) -> torch.Tensor:
    """(E, D): the gradient of the loss over the trials at ``places`` under each line of ``advantages_ET``.

    One forward pass for all, one backward pass an estimator. The policy holds the weights that sampled the batch.
    """
    given_ET = torch.from_numpy(advantages_ET.astype(np.float32))
    total = sum(batch.trials[place].sampled for place in places)
    size = sum(p.numel() for p in policy.parameters().values())
    summed_ED = torch.zeros(len(given_ET), size, dtype=torch.float64)
    with exact():
        for micro in (pack(batch, m) for m in micro_batches(batch, places, config.micro_batch_ids)):
            sums, before_D = policy.gradients(), torch.zeros(size, dtype=torch.float64)
            current_n, _ = logprobs(policy, micro, batch, config, sums)
            for place, given_T in enumerate(given_ET):
                terms = policy_terms(
                    current_n, current_n.detach(), given_T[torch.from_numpy(micro.tokens_n)], clip=float("inf")
                )
                last = place == len(given_ET) - 1
                weight = torch.full_like(terms.loss_n, 2.0**-SCALE)
                torch.autograd.backward(terms.loss_n, weight, retain_graph=not last)
                so_far_D = torch.cat([total_of.sum.reshape(-1) for total_of in sums.sums.values()])
                summed_ED[place] += so_far_D - before_D
                before_D = so_far_D
    return (summed_ED * (2.0**SCALE / total)).float()


class Products:
    """Inner products of all gradients, and the statistics that are made of them.

    g_eh is the gradient of estimator e on group h. Groups are independent and equally distributed, so the products of
    *different* groups estimate products of expected gradients, without the noise.
    """

    def __init__(self, products_EGEG: Floats) -> None:
        self._of = products_EGEG
        self._groups = products_EGEG.shape[1]

    @staticmethod
    def of(gradients_EGD: torch.Tensor) -> Products:
        estimators, groups, size = gradients_EGD.shape
        lines = gradients_EGD.reshape(estimators * groups, size)
        found = torch.zeros(len(lines), len(lines), dtype=torch.float64)
        for start in range(0, size, BLOCK):
            block = lines[:, start : start + BLOCK]
            found += (block @ block.T).double()
        return Products(found.reshape(estimators, groups, estimators, groups).numpy())

    def variance(self, estimator: int) -> Estimate:
        """Mean squared deviation of a group's gradient from the mean (over G - 1), summed over all parameters."""
        return jackknife(lambda keep: self._variance(estimator, keep), self._groups)

    def reduction(self, estimator: int, against: int) -> Estimate:
        """How many times smaller the variance is than that of ``against``."""
        return jackknife(lambda keep: self._variance(against, keep) / self._variance(estimator, keep), self._groups)

    def largest_share(self, estimator: int) -> float:
        """Of the squared deviations, what the group with the largest one has: 1 / G if all were alike. How far a variance is
        the work of a few trials."""
        block = self._block(estimator, estimator, range(self._groups))
        deviations = np.diag(block) - 2 * block.mean(1) + block.mean()
        return float(deviations.max() / deviations.sum())

    def cosine(self, estimator: int, reference: int) -> Estimate:
        """Of one group's gradient with the reference's mean over the other groups, on average: how well one batch of this
        size points."""

        def statistic(keep: Sequence[int]) -> float:
            cross, own = self._block(estimator, reference, keep), np.diag(self._block(estimator, estimator, keep))
            theirs = self._block(reference, reference, keep)
            products = cross.sum(1) - np.diag(cross)
            squares = theirs.sum() - 2 * theirs.sum(1) + np.diag(theirs)
            return float(np.mean(products / np.sqrt(own * squares)))

        return jackknife(statistic, self._groups)

    def direction(self, estimator: int, reference: int) -> Estimate | None:
        """Cosine of the *expected* gradients, from products of different groups: 1 without bias, up to the error. ``None``
        where the groups are too noisy to see an expected gradient at all."""

        def statistic(keep: Sequence[int]) -> float:
            squares = [self._expected(e, e, keep) for e in (estimator, reference)]
            return (
                self._expected(estimator, reference, keep) / math.prod(squares) ** 0.5 if min(squares) > 0 else math.nan
            )

        found = jackknife(statistic, self._groups)
        return None if math.isnan(found.mean) or (found.error is not None and math.isnan(found.error)) else found

    def length(self, estimator: int, reference: int) -> Estimate:
        """The expected gradient's component along the reference's, in units of it: 1 without bias. Below 1 a part of a
        variance reduction is mere shrinking, which a learning rate would give as well."""
        return jackknife(
            lambda keep: self._expected(estimator, reference, keep) / self._expected(reference, reference, keep),
            self._groups,
        )

    def _block(self, one: int, other: int, keep: Sequence[int]) -> Floats:
        return self._of[one][:, other][np.ix_(keep, keep)]

    def _variance(self, estimator: int, keep: Sequence[int]) -> float:
        block = self._block(estimator, estimator, keep)
        return float((np.trace(block) - block.sum() / len(block)) / (len(block) - 1))

    def _expected(self, one: int, other: int, keep: Sequence[int]) -> float:
        block = self._block(one, other, keep)
        return float((block.sum() - np.trace(block)) / (len(block) * (len(block) - 1)))
