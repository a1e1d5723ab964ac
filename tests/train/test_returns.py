"""Credit: GAE over sampled tokens, whitening, explained variance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t1actors.train.returns import batch_credit, chunk_credit, explained_variance, gae, whiten

unit = st.floats(0, 1, allow_nan=False)
value = st.floats(-5, 5, allow_nan=False)


def test_observation_positions_neither_decay_nor_reset_anything():
    _, returns = gae([0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1, 0, 1], gamma=0.5, lam=1.0)
    assert returns.tolist() == [0.5, 1.0, 1.0]


def test_values_at_masked_positions_change_nothing():
    plain = gae([0, 0, 0, 1], [0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1], gamma=0.9, lam=0.8)
    wild = gae([0, 0, 0, 1], [1e6, 0.2, 1e6, 0.4], [0, 1, 0, 1], gamma=0.9, lam=0.8)
    assert np.array_equal(plain[0], wild[0])
    assert np.array_equal(plain[1], wild[1])
    assert plain[0][0] == 0.0
    assert plain[0][2] == 0.0


def test_a_reward_on_an_observation_is_refused_because_it_would_be_lost():
    with pytest.raises(ValueError, match="unsampled position 1"):
        gae([0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1, 0, 1], gamma=1.0, lam=1.0)


@given(st.lists(value, min_size=1, max_size=12), value)
def test_with_gamma_and_lambda_1_the_return_is_the_reward_and_the_advantage_reward_minus_value(values, reward):
    advantages, returns = chunk_credit(reward, np.array(values), gamma=1.0, lam=1.0)
    assert returns == pytest.approx(np.full(len(values), reward), abs=1e-9)
    assert advantages == pytest.approx(reward - np.array(values), abs=1e-9)


@given(st.lists(value, min_size=1, max_size=8), value, unit, unit)
def test_advantages_equal_the_discounted_sum_of_temporal_differences(values, reward, gamma, lam):
    n = len(values)
    advantages, returns = chunk_credit(reward, np.array(values), gamma=gamma, lam=lam)
    following = [*values[1:], 0.0]
    delta = [(reward if k == n - 1 else 0.0) + gamma * following[k] - values[k] for k in range(n)]
    for k in range(n):
        expected = sum((gamma * lam) ** (j - k) * delta[j] for j in range(k, n))
        assert advantages[k] == pytest.approx(expected, abs=1e-9)
        assert returns[k] == pytest.approx(expected + values[k], abs=1e-9)


def test_nothing_is_bootstrapped_across_chunks_and_each_gets_the_whole_reward():
    values = np.array([0.5, 0.5, 9.0, 0.25])
    advantages, returns = batch_credit([1.0, 1.0, 2.0], [2, 1, 1], values, gamma=1.0, lam=0.5)
    assert advantages.tolist() == [0.25, 0.5, -8.0, 1.75]
    assert returns.tolist() == [0.75, 1.0, 1.0, 2.0]


def test_values_that_do_not_match_the_sampled_tokens_are_refused():
    with pytest.raises(ValueError, match="3 sampled tokens"):
        batch_credit([1.0], [3], np.zeros(2), gamma=1.0, lam=1.0)


def test_whitening_gives_mean_0_and_deviation_1_and_survives_equal_advantages():
    white = whiten(np.array([1.0, 2.0, 6.0]))
    assert white.mean() == pytest.approx(0.0, abs=1e-12)
    assert white.std() == pytest.approx(1.0, abs=1e-6)
    assert np.array_equal(whiten(np.full(4, 0.25)), np.zeros(4))


def test_explained_variance_is_1_for_the_returns_0_for_a_constant_and_negative_for_noise():
    returns = np.array([0.0, 1.0, 2.0, 3.0])
    assert explained_variance(returns, returns + 7.0) == 1.0
    assert explained_variance(returns, np.zeros(4)) == 0.0
    assert explained_variance(returns, -3 * returns) < -1
    assert explained_variance(np.ones(4), returns) == 0.0
