"""A step's bytes do not depend on how it was computed: micro-batches, packing, recomputation; see ``test_ranks`` for
processes."""

from __future__ import annotations

import functools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from t1actors.config import TrainConfig
from t1actors.tito.record import TokenSpan, TrajectoryRecord, chunk_of
from t1actors.train import actor_step as actor_module
from t1actors.train import critic_step as critic_module
from t1actors.train.actor_step import ActorResult, actor_step
from t1actors.train.batch import Batch
from t1actors.train.critic_step import CriticResult, critic_step
from t1actors.train.networks import geometry_of
from t1actors.train.state import Tensors, TrainerState
from tests.train.tiny_batches import TRAIN, VOCABULARY, critic_state, policy_state, tiny_policy, with_actor, with_critic

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


ONE_MINIBATCH = with_actor(with_critic(epochs=2, minibatches=1), epochs=2, minibatches=1)
"""Two updates over all eight trials: the first gives a fresh critic's trunk no gradient, since its head is 0."""


def actor(config: TrainConfig = TRAIN, dtype: str = "float32") -> ActorResult:
    # in bfloat16 the state's own version is another than the one that sampled, whose log-probs are then taken apart
    behaviours = {VERSION: POLICY.weights()} if dtype == "bfloat16" else {}
    network = tiny_policy(dtype=DTYPES[dtype])
    return actor_step(network, policy_state(POLICY), behaviours, BATCH, VALUES, config, seed=0, step=0)


def critic(config: TrainConfig = TRAIN, dtype: str = "float32") -> CriticResult:
    network, state = critic_state(tiny_policy(dtype=DTYPES[dtype]))
    near = VALUES / 10  # to those of a fresh critic, 0: its clip leaves every token a gradient
    return critic_step(network, state, BATCH, near, config, seed=0, step=0)


def assert_same_bytes(found: TrainerState, wanted: TrainerState) -> None:
    """Parameters and both moments."""
    for mine, theirs in zip(tensors(found), tensors(wanted), strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert torch.equal(mine[name].view(torch.int32), theirs[name].view(torch.int32)), name


def tensors(state: TrainerState) -> tuple[Tensors, Tensors, Tensors]:
    return state.weights, state.first, state.second


def cut_into(size: int, *, shuffled: bool = False):
    """Micro-batches of ``size`` trials."""

    def parts(batch, places, limit_ids):
        order = list(places)
        if shuffled:
            random.Random(5).shuffle(order)
            assert order != list(places)
        return [tuple(order[i : i + size]) for i in range(0, len(order), size)]

    return parts


PACKINGS = {
    "one by one": cut_into(1),
    "in pairs": cut_into(2),
    "all eight": cut_into(8),
    "shuffled in threes": cut_into(3, shuffled=True),
    "shuffled, all eight": cut_into(8, shuffled=True),
}


def test_the_batch_holds_what_layouts_differ_over():
    """An expert without rows, a sequence of one row, and some longer than a grain."""
    chunks = [chunk for trial in BATCH.trials for chunk in trial.chunks]
    assert len(chunks) == 8
    assert {expert for chunk in chunks for expert in np.unique(chunk.routing_RLK)} == {0, 1, 2}
    assert POLICY.shape.experts == 4
    rows = [len(chunk.routing_RLK) for chunk in chunks]
    assert min(rows) == 1
    assert sum(n > 64 for n in rows) >= 3


@functools.cache
def wanted(dtype: str) -> tuple[ActorResult, CriticResult]:
    """Of the micro-batches that the configuration makes."""
    return actor(ONE_MINIBATCH, dtype), critic(ONE_MINIBATCH, dtype)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("packing", list(PACKINGS))
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_no_packing_and_no_recomputation_changes_a_bit_of_the_actor(dtype, packing, recompute, monkeypatch):
    """Micro-batches of 1, 2 and 8, shuffled packings, with and without checkpointing (fault C4)."""
    before, _ = wanted(dtype)
    monkeypatch.setattr(actor_module, "micro_batches", PACKINGS[packing])
    found = actor(replace(ONE_MINIBATCH, recompute_layers=recompute), dtype)
    assert_same_bytes(found.state, before.state)
    assert np.array_equal(found.report.tokens, before.report.tokens)
    assert replace(found.report, tokens=before.report.tokens) == before.report
    assert found.report.weights_after != found.report.weights_before


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("packing", ["one by one", "shuffled, all eight"])
def test_no_packing_and_no_recomputation_changes_a_bit_of_the_critic(packing, recompute, monkeypatch):
    _, before = wanted("float32")
    monkeypatch.setattr(critic_module, "micro_batches", PACKINGS[packing])
    found = critic(replace(ONE_MINIBATCH, recompute_layers=recompute))
    assert_same_bytes(found.state, before.state)
    assert found.report == before.report


@pytest.mark.parametrize("limit_ids", [1, 10_000])
def test_the_configured_size_of_a_micro_batch_changes_no_bit(limit_ids):
    """Of several minibatches."""
    assert_same_bytes(actor(replace(TRAIN, micro_batch_ids=limit_ids)).state, actor().state)


def test_a_trial_more_changes_the_update():
    """The control: the digests do see what a batch holds."""
    network, state = tiny_policy(), policy_state(POLICY)
    fewer = BATCH.without("s0.t3")
    values = np.zeros(fewer.sampled, dtype=np.float32)
    found = actor_step(network, state, {}, fewer, values, TRAIN, seed=0, step=0).report
    assert found.weights_after != actor().report.weights_after
