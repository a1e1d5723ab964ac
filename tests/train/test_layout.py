"""A step's bytes do not depend on how it was computed: micro-batches, packing, recomputation; see ``test_ranks`` for
processes."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from t1actors.config import TrainConfig
from t1actors.tito.record import TokenSpan, TrajectoryRecord, chunk_of
from t1actors.train import actor_step as actor_module
from t1actors.train import critic_step as critic_module
from t1actors.train.actor_step import ActorReport, actor_step
from t1actors.train.batch import Batch
from t1actors.train.critic_step import CriticReport, critic_step
from t1actors.train.networks import geometry_of
from tests.train.tiny_batches import TRAIN, VOCABULARY, critic_state, policy_state, tiny_policy

LENGTHS = [2, 40, 66, 130, 9, 70, 33, 64]
"""Ids of each trial: one of a single sampled token after one id, some longer than a grain of 64 rows."""


def trial(index: int, length: int) -> TrajectoryRecord:
    """Arbitrary ids, one turn of half of them, and routing that names three of the four experts only (one gets no
    rows)."""
    draw = random.Random(index)
    ids = np.array([draw.randrange(VOCABULARY) for _ in range(length)], dtype=np.int32)
    start = (length + 1) // 2
    mask = (np.arange(length) >= start).astype(np.uint8)
    routing = np.array([[draw.sample(range(3), 2) for _ in range(2)] for _ in range(length - 1)], dtype=np.uint8)
    chunk = chunk_of(
        ids_N=ids,
        mask_N=mask,
        logprobs_N=np.where(mask == 1, np.float32(-1), np.float32(0)),
        routing_RLK=routing,
        versions=(TokenSpan(version=VERSION, start=start, end=length),),
        turns=((start, length),),
        geometry=geometry_of(POLICY),
    )
    return TrajectoryRecord(trial=f"s0.t{index}", index=index, task="task", temperature=1.0, chunks=(chunk,))


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
POLICY = tiny_policy()
VERSION = POLICY.digest()
BATCH = Batch.of([(trial(i, n), (i % 3) / 2) for i, n in enumerate(LENGTHS)], geometry_of(POLICY))
VALUES = np.linspace(-1, 1, BATCH.sampled).astype(np.float32)


def actor(config: TrainConfig = TRAIN, dtype: str = "float32") -> ActorReport:
    network = tiny_policy(dtype=DTYPES[dtype])
    state = policy_state(POLICY)
    behaviours = {VERSION: POLICY.weights()} if dtype == "bfloat16" else {}
    return actor_step(network, state, behaviours, BATCH, VALUES, config, seed=0, step=0).report


def critic(config: TrainConfig = TRAIN) -> CriticReport:
    network, state = critic_state(POLICY)
    return critic_step(network, state, BATCH, VALUES, config, seed=0, step=0).report


def one_by_one(batch, places, limit_ids):
    return [(place,) for place in places]


def in_pairs(batch, places, limit_ids):
    return [tuple(places[i : i + 2]) for i in range(0, len(places), 2)]


def shuffled(batch, places, limit_ids):
    order = list(places)
    random.Random(5).shuffle(order)
    return [tuple(order[i : i + 3]) for i in range(0, len(order), 3)]


@pytest.mark.parametrize("packing", [one_by_one, in_pairs, shuffled])
def test_no_packing_changes_a_bit_of_either_step(packing, monkeypatch):
    wanted_actor, wanted_critic = actor(), critic()
    for module in (actor_module, critic_module):
        monkeypatch.setattr(module, "micro_batches", packing)
    assert actor().weights_after == wanted_actor.weights_after
    found = actor()
    assert replace(found, tokens=wanted_actor.tokens) == wanted_actor
    assert np.array_equal(found.tokens, wanted_actor.tokens)
    assert critic() == wanted_critic


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_neither_micro_batches_nor_recomputation_change_a_bit(dtype):
    wanted = actor(dtype=dtype)
    for config in (
        replace(TRAIN, micro_batch_ids=1),
        replace(TRAIN, micro_batch_ids=10_000),
        replace(TRAIN, recompute_layers=True),
    ):
        found = actor(config, dtype)
        assert found.weights_after == wanted.weights_after
        assert found.optimizer_after == wanted.optimizer_after
        assert found.gradient_digest == wanted.gradient_digest
        assert found.old_logprobs_digest == wanted.old_logprobs_digest
    assert wanted.weights_after != wanted.weights_before


def test_a_trial_more_changes_the_update():
    """The control: the digests do see what a batch holds."""
    network, state = tiny_policy(), policy_state(POLICY)
    fewer = BATCH.without("s0.t3")
    values = np.zeros(fewer.sampled, dtype=np.float32)
    found = actor_step(network, state, {}, fewer, values, TRAIN, seed=0, step=0).report
    assert found.weights_after != actor().weights_after
