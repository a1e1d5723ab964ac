"""Re-tokenised and shifted streams really part ids and q, and gaps and flips are counted at the right tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs

from bench.learning.gaps import flipped, gaps
from bench.learning.retokenised import (
    encoded_again,
    kept_by_position,
    laid_out,
    non_canonical_turns,
    retokenised,
    shifted,
    turns_of,
    with_turns,
)
from bench.learning.sampler_ratio import sampler_ratio_step
from bench.workload import FOLDER
from bench.workload import batch as workload
from t1actors.models.pretrained import load_policy
from t1actors.models.tokenizer import Tokenizer
from t1actors.tito.record import check
from t1actors.train.actor_step import actor_step
from t1actors.train.batch import Batch
from t1actors.train.networks import geometry_of
from tests.train.tiny_batches import batch_of, policy_state, tiny_policy, with_actor

TOKENIZER = Tokenizer.from_folder(FOLDER)


@pytest.fixture(scope="module")
def policy():
    return load_policy(FOLDER)


@pytest.fixture(scope="module")
def canonical(policy):
    """A trial of several turns whose first token is a word of more than one letter."""
    batch = workload(policy, policy.digest(), 8)
    return next(t.record for t in batch.trials if len(t.chunks[0].ids_N) < 200 and len(t.record.chunks[0].turns) > 2)


@pytest.fixture(scope="module")
def spelled(policy, canonical):
    """The same trial as if the second turn's first token had been sampled letter by letter."""
    (chunk,) = canonical.chunks
    turns = turns_of(chunk)
    letters = [i for letter in TOKENIZER.decode(turns[1][:1]) for i in TOKENIZER.encode(letter)]
    assert len(letters) > 1
    turns[1] = [*letters, *turns[1][1:]]
    other = with_turns(chunk, turns, canonical.temperature, policy, geometry_of(policy))
    return structs.replace(canonical, chunks=(other,))


def q_by_turn(record):
    (chunk,) = record.chunks
    return [chunk.arrays().logprobs_N[start:end] for start, end in chunk.turns]


def test_text_and_back_restores_the_canonical_ids_and_keeps_the_end_of_the_turn(canonical, spelled):
    end = TOKENIZER.special.end
    letters = [i for letter in "echo" for i in TOKENIZER.encode(letter)]
    assert encoded_again([*letters, end], TOKENIZER) == [*TOKENIZER.encode("echo"), end]
    assert encoded_again(letters, TOKENIZER) == TOKENIZER.encode("echo")
    assert non_canonical_turns(canonical, TOKENIZER)[0] == 0
    assert non_canonical_turns(spelled, TOKENIZER) == (1, len(canonical.chunks[0].turns))


def test_a_canonical_trial_comes_back_as_it_is(policy, canonical):
    assert retokenised(canonical, TOKENIZER, policy, geometry_of(policy)) == canonical


def test_retokenising_with_new_log_probs_gives_an_aligned_record(policy, canonical, spelled):
    again = retokenised(spelled, TOKENIZER, policy, geometry_of(policy))
    assert turns_of(again.chunks[0]) == turns_of(canonical.chunks[0])
    assert np.allclose(again.chunks[0].arrays().logprobs_N, canonical.chunks[0].arrays().logprobs_N, atol=1e-5)
    check(again, geometry_of(policy))


def test_q_kept_by_position_stands_beside_other_ids_from_the_first_drift_on(policy, spelled):
    geometry = geometry_of(policy)
    again = retokenised(spelled, TOKENIZER, policy, geometry)
    in_turn, in_trial = (kept_by_position(spelled, again, scope) for scope in ("turn", "trial"))
    sampled, aligned = q_by_turn(spelled), q_by_turn(again)
    extra = len(sampled[1]) - len(aligned[1])
    assert extra > 0
    for record in (in_turn, in_trial):
        check(record, geometry)
        assert turns_of(record.chunks[0]) == turns_of(again.chunks[0])
        assert np.array_equal(q_by_turn(record)[0], sampled[0])
        assert np.array_equal(q_by_turn(record)[1], sampled[1][:-extra])
    assert np.array_equal(q_by_turn(in_turn)[2], sampled[2])
    behind = np.concatenate([sampled[1][-extra:], *sampled[2:]])
    assert np.array_equal(np.concatenate(q_by_turn(in_trial)[2:]), behind[:-extra])


def test_what_is_too_long_is_cut_and_what_is_too_short_is_filled_with_the_last():
    q = [[-1.0, -2.0], [-3.0]]
    assert laid_out(q, (1, 2), "turn") == [-1.0, -3.0, -3.0]
    assert laid_out(q, (1, 2), "trial") == [-1.0, -2.0, -3.0]
    assert laid_out(q, (2, 2), "trial") == [-1.0, -2.0, -3.0, -3.0]


def test_a_shift_moves_every_q_to_the_sampled_token_before_it(canonical):
    before, after = (np.concatenate(q_by_turn(r)) for r in (canonical, shifted(canonical)))
    assert np.array_equal(after[:-1], before[1:])
    assert after[-1] == before[-1]
    assert shifted(canonical).chunks[0].ids == canonical.chunks[0].ids


# --- the step against q --------------------------------------------------------------------------------------------------

TINY = tiny_policy()
STATE = policy_state(TINY)
CONFIG = with_actor(whiten_advantages=True)


def test_with_aligned_streams_the_step_against_q_is_the_products_own():
    batch = batch_of(TINY)
    ours = sampler_ratio_step(tiny_policy(), STATE, batch, CONFIG, seed=0, step=0)
    values_T = np.zeros(batch.sampled, dtype=np.float32)
    theirs = actor_step(tiny_policy(), STATE, {}, batch, values_T, CONFIG, seed=0, step=0)
    assert ours.first_kl < 1e-9
    assert ours.kl == pytest.approx(theirs.report.kl, rel=1e-3)
    assert ours.clip_share == pytest.approx(theirs.report.clip_share)
    assert ours.refused == 0
    for name, weight in theirs.state.weights.items():
        assert torch.allclose(ours.state.weights[name], weight, atol=1e-3)


def test_an_update_too_large_for_exact_sums_is_counted_and_left_out():
    batch = batch_of(TINY)
    far = [(lowered(record, 60.0), reward) for record, reward in batch.items]
    found = sampler_ratio_step(tiny_policy(), STATE, Batch.of(far, batch.geometry), CONFIG, seed=0, step=0)
    assert found.refused == CONFIG.actor.minibatches
    assert found.kl > 1e20
    assert all(torch.equal(found.state.weights[name], weight) for name, weight in STATE.weights.items())


def lowered(record, nats):
    """The record with every q that much lower: ratios of e^nats."""

    def of(chunk):
        logprobs = chunk.arrays().logprobs_N - np.float32(nats) * chunk.arrays().mask_N
        return structs.replace(chunk, logprobs=logprobs.astype("<f4").tobytes())

    return structs.replace(record, chunks=tuple(of(chunk) for chunk in record.chunks))


def test_a_shifted_q_moves_kl_before_anything_was_trained():
    batch = batch_of(TINY)
    off = Batch.of([(shifted(record), reward) for record, reward in batch.items], batch.geometry)
    assert sampler_ratio_step(tiny_policy(), STATE, off, CONFIG, seed=0, step=0).first_kl > 1e-3


# --- gaps and flips ------------------------------------------------------------------------------------------------------


def test_a_flip_is_another_set_of_experts_in_any_layer_and_no_other_order():
    recorded = torch.tensor([[[0, 1], [2, 3]], [[0, 1], [2, 3]], [[0, 1], [2, 3]], [[0, 1], [2, 3]]])
    chosen = torch.tensor([[[0, 1], [2, 3]], [[1, 0], [3, 2]], [[0, 2], [2, 3]], [[0, 1], [1, 3]]])
    assert flipped(recorded, chosen).tolist() == [False, False, True, True]


def test_one_edited_routing_row_is_one_flipped_token_and_moves_only_the_replayed_side():
    batch = batch_of(TINY, 4)
    clean = gaps(TINY, batch, CONFIG)
    assert not clean.flipped_T.any()
    assert max(clean.free_T.max(), clean.replayed_T.max()) < 1e-5
    record, reward = batch.items[2]
    (chunk,) = record.chunks
    routing = chunk.arrays().routing_RLK.copy()
    last = len(routing) - 1  # predicts the trial's last token, and nothing attends to it
    routing[last, 1] = [e for e in range(batch.geometry.experts) if e not in routing[last, 1]][:2]
    edited = structs.replace(record, chunks=(structs.replace(chunk, routing=routing.tobytes()),))
    items = [*batch.items[:2], (edited, reward), *batch.items[3:]]
    found = gaps(TINY, Batch.of(items, batch.geometry), replace(CONFIG, micro_batch_ids=16))
    token = batch.trials[2].first + batch.trials[2].sampled - 1
    assert np.flatnonzero(found.flipped_T).tolist() == [token]
    assert found.free_T.max() < 1e-5
    assert np.flatnonzero(found.replayed_T > 1e-4).tolist() == [token]
