"""A batch: its order, what it refuses, its name, and how a step divides it."""

import itertools
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t1actors.train.batch import Batch, batch_digest, micro_batches, minibatches
from t1actors.train.errors import BatchError
from t1actors.train.networks import geometry_of
from t1actors.train.packing import pack
from tests.train.tiny_batches import batch_of, record, tiny_policy

POLICY = tiny_policy()
GEOMETRY = geometry_of(POLICY)
BATCH = batch_of(POLICY, 7, chunks=2)


def with_chunk(made, **changes):
    return msgspec.structs.replace(made, chunks=(msgspec.structs.replace(made.chunks[0], **changes), *made.chunks[1:]))


def test_the_order_is_the_trial_index_whoever_arrived_first():
    shuffled = list(BATCH.items)
    random.Random(3).shuffle(shuffled)
    again = Batch.of(shuffled, GEOMETRY)
    assert [t.index for t in again.trials] == list(range(7))
    assert again.digest == BATCH.digest


def test_a_record_without_its_routing_is_refused_by_name_and_never_filled_with_zeros():
    made = record(POLICY, "s4.t9", 0, seed=1)
    rows, layers, top_k = made.chunks[0].routing_shape
    one_row_short = made.chunks[0].routing[: (rows - 1) * layers * top_k]
    for routing, shape in ((b"", (0, layers, top_k)), (one_row_short, (rows - 1, layers, top_k))):
        with pytest.raises(BatchError, match=r"trial s4\.t9, chunk 0"):
            Batch.of([(with_chunk(made, routing=routing, routing_shape=shape), 0.5)], GEOMETRY)


def test_what_cannot_be_trained_on_is_refused_by_name():
    made = record(POLICY, "a", 0, seed=1)
    other = record(POLICY, "b", 1, seed=2)
    with pytest.raises(BatchError, match="at least one trial"):
        Batch.of([], GEOMETRY)
    with pytest.raises(BatchError, match="trials a and b share the index 0"):
        Batch.of([(made, 0.5), (msgspec.structs.replace(other, index=0), 0.5)], GEOMETRY)
    with pytest.raises(BatchError, match="trial b: reward nan"):
        Batch.of([(made, 0.5), (other, float("nan"))], GEOMETRY)
    with pytest.raises(BatchError, match=r"trial b: temperature 0\.5"):
        Batch.of([(made, 0.5), (msgspec.structs.replace(other, temperature=0.5), 0.5)], GEOMETRY)
    with pytest.raises(BatchError, match="greedy"):
        Batch.of([(msgspec.structs.replace(made, temperature=0.0), 0.5)], GEOMETRY)


def test_a_changed_id_a_changed_reward_or_another_order_give_another_name():
    (first, reward), *rest = BATCH.items
    ids = bytearray(first.chunks[0].ids)
    ids[0] ^= 1
    names = {
        BATCH.digest,
        Batch.of([(with_chunk(first, ids=bytes(ids)), reward), *rest], GEOMETRY).digest,
        Batch.of([(first, reward + 0.05), *rest], GEOMETRY).digest,
        batch_digest([("aa" * 32, 0.0), ("bb" * 32, 0.0)]),
        batch_digest([("bb" * 32, 0.0), ("aa" * 32, 0.0)]),
    }
    assert len(names) == 5


def test_per_token_streams_lie_in_trial_chunk_position_order():
    expected = [
        float(chunk.logprobs_N[j])
        for trial in BATCH.trials
        for chunk in trial.chunks
        for j in range(len(chunk.ids_N))
        if chunk.mask_N[j]
    ]
    assert BATCH.sampler_logprobs_T.tolist() == expected
    assert BATCH.sampled == len(expected) == sum(BATCH.chunk_sampled)
    assert len(BATCH.chunk_rewards) == 14
    third = BATCH.trials[2]
    assert BATCH.trial_of_token(third.first) is third
    assert BATCH.trial_of_token(third.first - 1) is BATCH.trials[1]


def test_every_token_knows_its_own_behaviour_version():
    older, newer = tiny_policy(1), tiny_policy(2)
    made = [record(older, "a", 0, seed=1), record(newer, "b", 1, seed=2), record(older, "c", 2, seed=3)]
    batch = Batch.of([(m, 0.0) for m in made], GEOMETRY)
    assert batch.versions == (older.digest(), newer.digest())
    a, b, c = batch.trials
    assert batch.version_T.tolist() == [0] * a.sampled + [1] * b.sampled + [0] * c.sampled


def test_minibatches_share_out_every_trial_once_each_in_index_order():
    parts = minibatches(BATCH, 3, seed=0, step=5, epoch=0, part="actor")
    assert sorted(place for part in parts for place in part) == list(range(7))
    assert [len(part) for part in parts] == [2, 2, 3]
    assert all(list(part) == sorted(part) for part in parts)


def test_the_shuffle_is_fixed_for_ever_and_differs_by_seed_step_epoch_and_part():
    assert minibatches(BATCH, 3, seed=0, step=5, epoch=0, part="actor") == [(1, 2), (4, 6), (0, 3, 5)]
    cuts = {
        str(minibatches(BATCH, 3, seed=seed, step=step, epoch=epoch, part=part))
        for seed, step, epoch, part in [
            (0, 5, 0, "actor"),
            (1, 5, 0, "actor"),
            (0, 6, 0, "actor"),
            (0, 5, 1, "actor"),
            (0, 5, 0, "critic"),
        ]
    }
    assert len(cuts) == 5


def test_more_minibatches_than_trials_leave_no_empty_one():
    assert sorted(minibatches(BATCH, 50, seed=0, step=0, epoch=0, part="actor")) == [(n,) for n in range(7)]


@given(st.integers(1, 200), st.lists(st.integers(0, 6), min_size=1, max_size=7, unique=True))
def test_micro_batches_keep_the_order_and_the_limit_and_a_long_trial_stands_alone(limit, places):
    parts = micro_batches(BATCH, places, limit)
    assert [place for part in parts for place in part] == places
    ids = [sum(BATCH.trials[place].ids for place in part) for part in parts]
    assert all(held <= limit or len(part) == 1 for held, part in zip(ids, parts, strict=True))
    for before, after in itertools.pairwise(parts):
        assert sum(BATCH.trials[place].ids for place in before) + BATCH.trials[after[0]].ids > limit


def test_one_response_token_after_a_two_token_prompt_gives_exactly_one_loss_position():
    made = record(POLICY, "a", 0, seed=1, turns=1)
    arrays = made.chunks[0].arrays()
    start = int(np.argmax(arrays.mask_N))
    short = with_chunk(
        made,
        ids=arrays.ids_N[start - 2 : start + 1].tobytes(),
        mask=np.array([0, 0, 1], dtype=np.uint8).tobytes(),
        logprobs=arrays.logprobs_N[start - 2 : start + 1].tobytes(),
        routing=arrays.routing_RLK[:2].tobytes(),
        routing_shape=(2, 2, 2),
        versions=(msgspec.structs.replace(made.chunks[0].versions[0], start=2, end=3),),
        turns=((2, 3),),
    )
    batch = Batch.of([(short, 1.0)], GEOMETRY)
    micro = pack(batch, [0])
    assert batch.sampled == 1
    assert micro.rows_n.tolist() == [1]
    assert micro.targets_n.tolist() == [int(arrays.ids_N[start])]
    assert micro.ids_R.shape[0] == micro.routing_RLK.shape[0] == 2


def test_a_slab_predicts_every_sampled_token_from_the_row_before_it_in_its_own_chunk():
    micro = pack(BATCH, [4, 1])
    cursor = row = 0
    for place in (4, 1):
        for chunk in BATCH.trials[place].chunks:
            for j in range(1, len(chunk.ids_N)):
                assert micro.ids_R[row] == chunk.ids_N[j - 1]
                assert micro.routing_RLK[row].tolist() == chunk.routing_RLK[j - 1].tolist()
                if chunk.mask_N[j]:
                    assert micro.rows_n[cursor] == row
                    assert micro.targets_n[cursor] == chunk.ids_N[j]
                    assert BATCH.sampler_logprobs_T[micro.tokens_n[cursor]] == chunk.logprobs_N[j]
                    cursor += 1
                row += 1
    assert cursor == len(micro.rows_n)
    assert row == len(micro.ids_R)
