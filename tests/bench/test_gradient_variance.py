"""The estimators of the policy gradient and the statistics on them, against cases whose answers can be written down."""

import math
import random

import numpy as np
import pytest
import torch

from bench.learning.gradients import Estimator, Products, advantages, group_gradients
from bench.learning.jackknife import jackknife
from bench.learning.statistics import Estimate
from bench.learning.variance import SETS, Sizes
from tests.train.tiny_batches import TRAIN, batch_of, tiny_policy

POLICY = tiny_policy()
BATCH = batch_of(POLICY, 5)
VALUES = np.linspace(-0.4, 0.6, BATCH.sampled).astype(np.float32)
MEAN, FIRST, CRITIC = Estimator("", "mean"), Estimator("", "first"), Estimator("", "critic")


def within(estimate, truth, errors=4.0):
    return abs(estimate.mean - truth) < errors * estimate.error


# --- jackknife ---------------------------------------------------------------------------------------------------------


def test_the_jackknife_of_a_mean_is_the_usual_standard_error():
    values = [0.3, 1.7, -2.0, 4.4, 0.1]
    found = jackknife(lambda keep: sum(values[g] for g in keep) / len(keep), len(values))
    usual = Estimate.of(values)
    assert found.mean == pytest.approx(usual.mean)
    assert found.error == pytest.approx(usual.error)


def test_the_jackknife_of_a_ratio_does_not_see_what_both_sides_share():
    sizes = [1.0, 5.0, 2.0, 9.0]
    ratio = jackknife(lambda keep: sum(3 * sizes[g] for g in keep) / sum(sizes[g] for g in keep), len(sizes))
    assert (ratio.mean, ratio.error) == (pytest.approx(3.0), pytest.approx(0.0, abs=1e-12))


def test_one_group_has_no_error_and_is_refused():
    with pytest.raises(ValueError, match="at least two"):
        jackknife(lambda keep: 0.0, 1)


# --- credit ------------------------------------------------------------------------------------------------------------


def of_trial(line_T, place):
    trial = BATCH.trials[place]
    return line_T[trial.first : trial.first + trial.sampled]


def test_without_a_baseline_every_token_has_the_reward():
    line_T = advantages(Estimator("", "none"), BATCH, VALUES)
    assert all(np.allclose(of_trial(line_T, n), trial.reward) for n, trial in enumerate(BATCH.trials))


def test_a_trial_does_not_enter_the_mean_that_it_is_compared_with():
    line_T = advantages(MEAN, BATCH, VALUES)
    rewards = [trial.reward for trial in BATCH.trials]
    for n, reward in enumerate(rewards):
        others = [r for m, r in enumerate(rewards) if m != n]
        assert np.allclose(of_trial(line_T, n), reward - sum(others) / len(others))


def test_the_first_state_is_the_first_sampled_token_of_the_trial():
    line_T = advantages(FIRST, BATCH, VALUES)
    for n, trial in enumerate(BATCH.trials):
        assert np.allclose(of_trial(line_T, n), trial.reward - VALUES[trial.first])


def test_the_critic_is_subtracted_token_by_token_and_lambda_mixes_what_lies_ahead():
    line_T = advantages(CRITIC, BATCH, VALUES)
    short_T = advantages(Estimator("", "critic", lam=0.95), BATCH, VALUES)
    for n, trial in enumerate(BATCH.trials):
        values = of_trial(VALUES, n).astype(np.float64)
        assert np.allclose(of_trial(line_T, n), trial.reward - values)
        deltas = np.append(values[1:], trial.reward) - values
        wanted = [sum(0.95 ** (j - k) * deltas[j] for j in range(k, len(deltas))) for k in range(len(deltas))]
        assert np.allclose(of_trial(short_T, n), wanted)


# --- gradients ---------------------------------------------------------------------------------------------------------


def score(places, weights_T):
    """- sum_k A_k grad log pi_k / N by Hugging Face's own forward."""
    policy = tiny_policy()
    policy.hf.requires_grad_(True)
    total, count = torch.zeros(()), 0
    for place in places:
        trial = BATCH.trials[place]
        (chunk,) = trial.chunks
        ids = torch.from_numpy(chunk.ids_N.astype(np.int64))
        line = policy.hf(input_ids=ids[None]).logits[0].log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
        weights = torch.from_numpy(weights_T[trial.first : trial.first + trial.sampled].astype(np.float32))
        total = total - (line[torch.from_numpy(chunk.mask_N[1:] == 1)] * weights).sum()
        count += trial.sampled
    found = torch.autograd.grad(total / count, list(policy.parameters().values()))
    return torch.cat([g.reshape(-1) for g in found])


def test_a_groups_gradient_is_the_one_that_the_formula_says_for_every_estimator_at_once():
    lines = np.stack([advantages(estimator, BATCH, VALUES) for estimator, _ in Sizes().estimators])
    found = group_gradients(POLICY, BATCH, [1, 3, 4], lines, TRAIN)
    for place, line_T in enumerate(lines):
        wanted = score([1, 3, 4], line_T)
        assert torch.allclose(found[place], wanted, atol=1e-5 * float(wanted.abs().max()), rtol=1e-3)


# --- statistics, on bandits ----------------------------------------------------------------------------------------------
#
# A context c in {0, 1}, two actions of probability 1/2 each (score +-1/2, in one of many coordinates), reward c + noise of
# +-s: the action does nothing, so every expected gradient is 0, and Var = E[(r - b)^2] / 4.


def bandit(groups, noise):
    """(3, G, D): no baseline, the mean reward 1/2, the context's own value c."""
    draw = random.Random(1)
    found = torch.zeros(3, groups, 8)
    for g in range(groups):
        context, coordinate = draw.choice((0, 1)), draw.randrange(8)
        reward = context + draw.choice((-noise, noise))
        found[:, g, coordinate] = draw.choice((-0.5, 0.5)) * torch.tensor([reward, reward - 0.5, reward - context])
    return found


def test_variances_of_a_bandit_are_what_they_can_be_computed_to_be():
    noise = 0.25
    products = Products.of(bandit(120, noise))
    squares = (0.5 + noise**2, 0.25 + noise**2, noise**2)
    for estimator, square in enumerate(squares):
        found = products.variance(estimator)
        assert within(found, square / 4)
        assert found.error < 0.15 * found.mean
    assert within(products.reduction(2, 1), squares[1] / squares[2])
    assert within(products.reduction(0, 1), squares[1] / squares[0])


def noisy(groups, *expected):
    """Gradients with these expected values and unit noise in each of their coordinates."""
    noise = torch.randn(len(expected), groups, len(expected[0]), generator=torch.Generator().manual_seed(3))
    return torch.tensor(expected)[:, None, :] + noise


def test_bias_shows_in_direction_and_length_and_noise_does_not():
    angle = 0.6
    turned = [1.5 * math.cos(angle), 1.5 * math.sin(angle), *[0.0] * 30]
    products = Products.of(noisy(100, [3.0, 0.0, *[0.0] * 30], turned))
    direction = products.direction(1, 0)
    assert direction is not None
    assert within(direction, math.cos(angle))
    assert within(products.length(1, 0), 0.5 * math.cos(angle))
    assert products.cosine(1, 0).mean < 0.8 * math.cos(angle)


def test_a_group_that_deviates_alone_is_the_share_that_is_shown():
    far = torch.zeros(1, 5, 2)
    far[0, 3, 0] = 5.0  # deviations 4 and four times 1, squared
    assert Products.of(far).largest_share(0) == pytest.approx(16 / 20)


def test_a_direction_that_cannot_be_seen_is_no_figure():
    alternating = torch.tensor([1.0, -1.0] * 4)[None, :, None].repeat(2, 1, 1)
    assert Products.of(alternating).direction(1, 0) is None


def test_a_group_is_held_out_of_the_reference_it_is_compared_with():
    # g_b = e_b: each group alone, so a reference that held the group itself would give a positive cosine
    products = Products.of(torch.eye(5)[None])
    assert products.cosine(0, 0) == Estimate(0.0, 0.0, 5)


def test_groups_hold_all_levels_evenly():
    assert all(Sizes().group % len(levels) == 0 for levels in SETS.values())
