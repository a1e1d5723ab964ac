"""Trainer states: bytes, digests, and which state a step begins from."""

import subprocess
import sys

import pytest
import torch

from t1actors.train.actor_step import actor_step
from t1actors.train.critic_step import critic_step, estimate_values
from t1actors.train.errors import StateError
from t1actors.train.lanes import actor_lane, critic_drops_moments, last_before, trains_critic
from t1actors.train.networks import critic_for, load_masters, policy_for, version_of
from t1actors.train.state import (
    TrainerState,
    from_bytes,
    to_bytes,
)
from tests.train.tiny_batches import MODEL, TRAIN, batch_of, critic_state, policy_state, tiny_policy

POLICY = tiny_policy()
FRESH = policy_state(POLICY)
BATCH = batch_of(POLICY)


def trained() -> TrainerState:
    critic, state = critic_state(POLICY)
    values = estimate_values(critic, state, BATCH, TRAIN)
    return critic_step(critic, state, BATCH, values.values_T, TRAIN, seed=0, step=0).state


def test_a_state_survives_its_bytes_in_every_bit_and_the_bytes_are_always_the_same():
    state = trained()
    raw = to_bytes(state)
    again = from_bytes(raw)
    assert again.optimizer_digest() == state.optimizer_digest()
    assert (again.updates, again.architecture) == (state.updates, state.architecture)
    backwards = TrainerState(
        state.architecture,
        *(dict(reversed(list(t.items()))) for t in (state.weights, state.first, state.second)),
        state.updates,
    )
    assert to_bytes(again) == raw == to_bytes(backwards)


def test_another_process_writes_the_same_bytes():
    code = (
        "from tests.train.tiny_batches import policy_state, tiny_policy;"
        "from t1actors.train.state import to_bytes; from t1actors.payloads import digest_of;"
        "print(digest_of(to_bytes(policy_state(tiny_policy()))))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    from t1actors.payloads import digest_of

    assert out.stdout.strip() == digest_of(to_bytes(FRESH))


def test_going_on_from_the_bytes_gives_the_digests_of_going_on_in_memory():
    critic, _ = critic_state(POLICY)
    state = trained()
    values = estimate_values(critic, state, BATCH, TRAIN)
    here = critic_step(critic, state, BATCH, values.values_T, TRAIN, seed=0, step=1).report
    reloaded = from_bytes(to_bytes(state))
    network = critic_for(reloaded, MODEL)
    there = critic_step(network, reloaded, BATCH, values.values_T, TRAIN, seed=0, step=1).report
    assert there == here


def test_a_network_made_for_a_state_computes_what_the_original_did():
    network = policy_for(from_bytes(to_bytes(FRESH)), MODEL)
    values = estimate_values(*critic_state(POLICY), BATCH, TRAIN).values_T
    here = actor_step(POLICY, FRESH, {}, BATCH, values, TRAIN, seed=0, step=0).report
    there = actor_step(network, FRESH, {}, BATCH, values, TRAIN, seed=0, step=0).report
    assert there.weights_after == here.weights_after
    assert there.detail == here.detail


def test_a_fresh_optimizer_is_not_one_with_moments_of_zero():
    zeros = {name: torch.zeros_like(w) for name, w in FRESH.weights.items()}
    assert (
        TrainerState(FRESH.architecture, FRESH.weights, zeros, zeros, 0).optimizer_digest() != FRESH.optimizer_digest()
    )


def test_dropping_the_moments_keeps_the_weights_and_counts_from_zero():
    state = trained()
    dropped = state.without_moments()
    assert dropped.updates == 0
    assert not dropped.first
    assert not dropped.second
    assert all(torch.equal(dropped.weights[n], w) for n, w in state.weights.items())


def test_the_optimizer_digest_covers_masters_moments_and_the_count():
    state = trained()
    name = next(iter(state.weights))

    def bumped(tensors):
        changed = {n: t.clone() for n, t in tensors.items()}
        changed[name].view(-1)[0] += 1e-3
        return changed

    parts = (state.weights, state.first, state.second)
    others = [
        TrainerState(state.architecture, *(bumped(t) if i == k else t for k, t in enumerate(parts)), state.updates)
        for i in range(3)
    ]
    others.append(TrainerState(state.architecture, *parts, state.updates + 1))
    assert len({s.optimizer_digest() for s in [state, *others]}) == 5


@pytest.mark.parametrize("raw", [b"", b"garbage", to_bytes(FRESH)[:-1]])
def test_bytes_that_are_no_state_are_refused(raw):
    with pytest.raises(StateError, match="no trainer state"):
        from_bytes(raw)


def test_a_state_of_another_network_is_refused_and_the_network_stays_as_it_was():
    critic, of_critic = critic_state(POLICY)
    before = version_of(critic, of_critic)
    with pytest.raises(StateError, match="another network"):
        load_masters(critic, FRESH.weights)
    assert critic.digest() == before


def test_warm_up_trains_a_lane_of_its_own_and_of_the_critic_only_the_weights_are_kept():
    assert [actor_lane(p) for p in ("evaluate", "warmup", "recalibrate", "train")] == [None, "warmup", None, "train"]
    assert [trains_critic(p) for p in ("evaluate", "warmup", "recalibrate", "train")] == [False, True, True, True]
    assert critic_drops_moments("warmup", "recalibrate")
    assert critic_drops_moments("warmup", "train")
    assert not critic_drops_moments("warmup", "warmup")
    assert not critic_drops_moments("recalibrate", "train")
    assert not critic_drops_moments(None, "warmup")
    assert last_before(5, [7, 1, 4, 5]) == 4
    assert last_before(1, [1, 2]) is None
