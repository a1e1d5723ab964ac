"""Smoke of both steps; the semantics are in the other files."""

import numpy as np

from t1actors.train.actor_step import actor_step
from t1actors.train.critic_step import critic_step, estimate_values
from tests.train.tiny_batches import TRAIN, batch_of, critic_state, policy_state, tiny_policy


def test_the_same_step_gives_the_same_digests_and_leaves_its_inputs_alone():
    policy = tiny_policy()
    batch = batch_of(policy)
    critic, state = critic_state(policy)
    before = state.optimizer_digest()
    values = estimate_values(critic, state, batch, TRAIN)
    results = [critic_step(critic, state, batch, values.values_T, TRAIN, seed=0, step=0) for _ in range(2)]
    assert results[0].report == results[1].report
    assert results[0].report.weights_after != results[0].report.weights_before
    assert state.optimizer_digest() == before

    actor = policy_state(policy)
    pair = [actor_step(policy, actor, {}, batch, values.values_T, TRAIN, seed=0, step=0) for _ in range(2)]
    assert pair[0].report.weights_after == pair[1].report.weights_after
    assert pair[0].report.detail == pair[1].report.detail
    assert np.array_equal(pair[0].report.tokens, pair[1].report.tokens)
