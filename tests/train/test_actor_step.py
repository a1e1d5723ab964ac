"""The actor's step: PPO against the behaviour version, routing replayed, the gap in its two parts."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from t1actors.train.actor_step import TOKEN_COLUMNS, actor_step, advantages, logprobs, staleness
from t1actors.train.batch import Batch
from t1actors.train.errors import NonFiniteError, TrainError
from t1actors.train.exactness import exact
from t1actors.train.networks import geometry_of, load_masters, policy_for, version_of, working_weights
from t1actors.train.packing import pack
from tests.train.tiny_batches import MODEL, batch_of, policy_state, record, tiny_policy, with_actor

POLICY = tiny_policy()
NETWORK = tiny_policy()
FRESH = policy_state(POLICY)
FIRST_VERSION = POLICY.digest()
BATCH = batch_of(POLICY)
GEOMETRY = geometry_of(POLICY)
ZERO = np.zeros(BATCH.sampled, dtype=np.float32)
ONE_UPDATE = with_actor(minibatches=1)
BEHAVIOUR, CURRENT, ADVANTAGE, VALUE, CLIPPED = range(5)


def step(state=FRESH, batch=BATCH, config=ONE_UPDATE, *, behaviours=None, values=None, number=0):
    values = np.zeros(batch.sampled, dtype=np.float32) if values is None else values
    return actor_step(NETWORK, state, behaviours or {}, batch, values, config, seed=0, step=number)


def first_weights():
    return working_weights(NETWORK, FRESH.weights)


def after_one_update():
    return step().state


def edited(batch, place, **changes):
    """The batch with another chunk at ``place``."""
    items = list(batch.items)
    made, reward = items[place]
    items[place] = (
        msgspec.structs.replace(made, chunks=(msgspec.structs.replace(made.chunks[0], **changes),)),
        reward,
    )
    return Batch.of(items, GEOMETRY)


def reference_logprobs(policy, batch):
    """By Hugging Face's own forward, a sequence at a time, routers free."""
    streams = []
    for trial in batch.trials:
        for chunk in trial.chunks:
            ids = torch.from_numpy(chunk.ids_N.astype(np.int64))
            logits = policy.hf(input_ids=ids[None, :-1]).logits[0] / batch.temperature
            line = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
            streams.append(line[torch.from_numpy(chunk.mask_N[1:] == 1)])
    return torch.cat(streams)


# --- the ratio ----------------------------------------------------------------------------------------------------------


def test_at_temperature_one_half_the_ratio_of_the_current_version_is_exactly_1():
    batch = batch_of(POLICY, temperature=0.5)
    report = step(batch=batch).report
    assert report.ratio_mean == report.ratio_max == 1.0
    assert report.kl == 0.0
    assert report.clip_share == 0.0
    assert np.array_equal(report.tokens[:, BEHAVIOUR], report.tokens[:, CURRENT])


def test_a_pass_with_gradient_and_one_without_give_the_same_bits():
    micro = pack(BATCH, range(len(BATCH.trials)))
    load_masters(NETWORK, FRESH.weights)
    with exact():
        with torch.no_grad():
            without, entropy = logprobs(NETWORK, micro, BATCH, ONE_UPDATE)
        with_gradient, entropy_too = logprobs(NETWORK, micro, BATCH, ONE_UPDATE, NETWORK.gradients())
    assert with_gradient.requires_grad
    assert torch.equal(with_gradient, without)
    assert torch.equal(entropy_too, entropy)


def test_the_ratio_is_exactly_1_before_the_first_update_also_when_the_version_is_run_from_its_own_weights():
    # the same weights under another optimizer state and a behaviour pass of their own
    other = tiny_policy(5)
    batch = batch_of(other)
    report = step(policy_state(other), batch, behaviours={FIRST_VERSION: first_weights()}).report
    assert report.ratio_max == 1.0
    mixed = Batch.of([*batch.items[:3], *BATCH.items[3:]], GEOMETRY)
    tokens = step(policy_state(other), mixed, behaviours={FIRST_VERSION: first_weights()}).report.tokens
    own = mixed.version_T == 0
    assert np.array_equal(tokens[own, BEHAVIOUR], tokens[own, CURRENT])
    assert not np.any(tokens[~own, BEHAVIOUR] == tokens[~own, CURRENT])


def test_after_an_update_the_ratio_to_the_version_that_sampled_is_not_1():
    report = step(after_one_update(), behaviours={FIRST_VERSION: first_weights()}, number=1).report
    assert report.ratio_max > 1.0
    assert report.kl > 0.0
    assert report.gap.movement_mean > 0.0
    moved = report.tokens[:, CURRENT] != report.tokens[:, BEHAVIOUR]
    assert moved.all()


def test_later_minibatches_train_against_the_behaviour_version_and_not_against_the_last_update():
    config = with_actor(minibatches=3)
    report = step(config=config).report
    assert report.ratio_max > 1.0  # the second and third update see weights that have moved
    assert report.gap.movement_max == 0.0  # at the step's start nothing had
    assert np.array_equal(report.tokens[:, BEHAVIOUR], report.tokens[:, CURRENT])


def test_a_far_away_policy_is_clipped_and_a_clipped_token_gives_no_gradient():
    state = step(config=with_actor(minibatches=1, epochs=6, learning_rate=0.1)).state
    report = step(state, behaviours={FIRST_VERSION: first_weights()}, number=1).report
    tokens = report.tokens
    ratio = np.exp(tokens[:, CURRENT] - tokens[:, BEHAVIOUR])
    expected = ((tokens[:, ADVANTAGE] > 0) & (ratio > 1.2)) | ((tokens[:, ADVANTAGE] < 0) & (ratio < 0.8))
    assert np.array_equal(tokens[:, CLIPPED] == 1, expected)
    assert 0 < report.clip_share < 1
    assert report.clip_share == pytest.approx(expected.mean())


def test_log_probs_are_made_from_the_rows_that_a_full_forward_gives():
    micro = pack(BATCH, range(len(BATCH.trials)))
    load_masters(NETWORK, FRESH.weights)
    with torch.no_grad():
        for routing in (None, micro.routing_RLK, (micro.routing_RLK + 1) % 4):
            full = NETWORK.forward_packed(micro.ids_R, micro.lengths, routing).hidden_NH[micro.rows_n]
            narrow = NETWORK.forward_packed(micro.ids_R, micro.lengths, routing, rows_R=micro.rows_n).hidden_NH
            assert torch.equal(narrow, full)


# --- the behaviour version --------------------------------------------------------------------------------------------


def test_the_old_log_probs_are_those_of_each_tokens_own_version():
    older, newer = tiny_policy(11), tiny_policy(12)
    made = [record(older if n % 2 else newer, f"t{n}", n, seed=n) for n in range(4)]
    batch = Batch.of([(m, 0.1 * n) for n, m in enumerate(made)], GEOMETRY)
    behaviours = {p.digest(): {n: w.clone() for n, w in p.weights().items()} for p in (older, newer)}
    report = step(batch=batch, behaviours=behaviours).report
    assert report.tokens[:, BEHAVIOUR] == pytest.approx(batch.sampler_logprobs_T, abs=1e-5)
    assert report.gap.engine_max < 1e-5
    assert report.gap.movement_mean > 0.1


def test_what_the_sampler_recorded_decides_nothing_but_the_engine_gap():
    chunk = BATCH.items[2][0].chunks[0]
    q = chunk.arrays().logprobs_N.copy()
    q[chunk.arrays().mask_N == 1] -= 0.75
    tampered = edited(BATCH, 2, logprobs=q.tobytes())
    clean, other = step().report, step(batch=tampered).report
    assert other.weights_after == clean.weights_after
    assert other.old_logprobs_digest == clean.old_logprobs_digest
    assert clean.gap.engine_max < 1e-5
    assert other.gap.engine_max == pytest.approx(0.75, abs=1e-5)
    assert other.gap.engine_mean == pytest.approx(0.75 * BATCH.trials[2].sampled / BATCH.sampled, abs=1e-5)
    assert other.gap.movement_max == 0.0
    assert other.gap.total_max == pytest.approx(0.75, abs=1e-5)


def test_a_version_whose_weights_are_not_given_or_are_others_is_refused_by_name():
    state = after_one_update()
    with pytest.raises(TrainError, match=f"trial s0.t0 was sampled by version {FIRST_VERSION[:16]}"):
        step(state)
    with pytest.raises(TrainError, match=f"weights given for version {FIRST_VERSION[:16]}"):
        step(state, behaviours={FIRST_VERSION: tiny_policy(9).weights()})


def test_staleness_counts_from_the_oldest_version_in_the_batch():
    older, newer = tiny_policy(11), tiny_policy(12)
    batch = Batch.of([(record(newer, "a", 0, seed=1), 0.0), (record(older, "b", 1, seed=2), 0.0)], GEOMETRY)
    index = {older.digest(): 3, newer.digest(): 4}
    assert staleness(batch, index, 4) == (older.digest(), 1)
    assert staleness(BATCH, {FIRST_VERSION: 0}, 0) == (FIRST_VERSION, 0)


# --- routing ----------------------------------------------------------------------------------------------------------


def test_the_recorded_routing_is_replayed_when_configured_and_only_then():
    chunk = BATCH.items[1][0].chunks[0]
    others = ((chunk.arrays().routing_RLK + 1) % 4).astype(np.uint8)
    rerouted = edited(BATCH, 1, routing=others.tobytes())
    free = replace(ONE_UPDATE, replay_routing=False)
    assert step(batch=rerouted).report.weights_after != step().report.weights_after
    assert step(batch=rerouted, config=free).report.weights_after == step(config=free).report.weights_after
    assert step(batch=rerouted).report.gap.engine_max > 1e-3  # a token's log-prob is not what its sampler saw
    assert step(config=free).report.gap.engine_max < 1e-5


# --- the update -------------------------------------------------------------------------------------------------------


def test_one_update_equals_an_independent_implementation_on_hugging_faces_forward():
    config = with_actor(minibatches=1, learning_rate=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    oracle = tiny_policy()
    oracle.hf.requires_grad_(True)
    optimizer = torch.optim.AdamW(oracle.hf.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, eps=1e-8)
    rewards = np.concatenate([np.full(t.sampled, t.reward) for t in BATCH.trials])
    current = reference_logprobs(oracle, BATCH)
    ratio = torch.exp(current - current.detach())
    loss = -(ratio * torch.from_numpy(rewards).float()).sum() / BATCH.sampled
    loss.backward()
    norm = float(torch.nn.utils.clip_grad_norm_(oracle.hf.parameters(), 1.0))
    optimizer.step()

    result = step(config=config)
    assert result.report.losses[0] == pytest.approx(float(loss.detach()), abs=1e-6)
    assert result.report.gradient_norm == pytest.approx(norm, rel=1e-4)
    assert result.report.tokens[:, CURRENT] == pytest.approx(current.detach().numpy(), abs=1e-5)
    # Adam's first step divides by the gradient's own size, so rounding shows where a gradient is next to nothing
    apart = [float((result.state.weights[n] - w).abs().max()) for n, w in oracle.weights().items()]
    assert np.median(apart) < 1e-5
    assert max(apart) < 2e-3


def test_the_temperature_divides_the_logits():
    batch = batch_of(POLICY, temperature=0.5)
    with torch.no_grad():
        expected = reference_logprobs(tiny_policy(), batch).numpy()
    assert step(batch=batch).report.tokens[:, CURRENT] == pytest.approx(expected, abs=1e-5)
    assert not np.allclose(expected, step().report.tokens[:, CURRENT], atol=1e-2)


def test_the_gap_and_the_losses_do_not_depend_on_the_number_of_micro_batches():
    state = after_one_update()
    behaviours = {FIRST_VERSION: first_weights()}
    whole = step(state, config=replace(ONE_UPDATE, micro_batch_ids=10_000), behaviours=behaviours).report
    cut = step(state, config=replace(ONE_UPDATE, micro_batch_ids=1), behaviours=behaviours).report
    assert cut.gap.total_mean == pytest.approx(whole.gap.total_mean, rel=1e-3)
    assert cut.gap.movement_max == pytest.approx(whole.gap.movement_max, rel=1e-3)
    assert cut.losses[0] == pytest.approx(whole.losses[0], abs=1e-6)
    assert cut.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-3)


def test_the_normaliser_is_the_sampled_tokens_of_the_whole_minibatch():
    batch = Batch.of([(BATCH.items[0][0], 1.0), (BATCH.items[1][0], 0.0)], GEOMETRY)
    report = step(batch=batch).report
    share = batch.trials[0].sampled / batch.sampled
    assert report.losses[0] == pytest.approx(-share, abs=1e-6)  # ratio 1, advantage 1 on the first trial's tokens


def test_advantages_are_whitened_over_the_whole_batch_and_not_over_a_minibatch():
    config = with_actor(minibatches=3, whiten_advantages=True)
    white = advantages(BATCH, ZERO, config)
    assert white.mean() == pytest.approx(0.0, abs=1e-9)
    assert white.std() == pytest.approx(1.0, abs=1e-6)
    recorded = step(config=config).report.tokens[:, ADVANTAGE]
    assert np.array_equal(recorded, white.astype(np.float32))
    assert advantages(BATCH, ZERO, ONE_UPDATE).max() == max(t.reward for t in BATCH.trials)


def test_a_step_is_a_function_of_its_arguments():
    config = with_actor(minibatches=3, epochs=2)
    before = FRESH.optimizer_digest()
    first = step(config=config)
    step(after_one_update(), behaviours={FIRST_VERSION: first_weights()}, number=5)
    second = step(config=config)
    assert second.report.detail == first.report.detail
    assert second.report.weights_after == first.report.weights_after == version_of(NETWORK, first.state)
    assert np.array_equal(second.report.tokens, first.report.tokens)
    assert FRESH.optimizer_digest() == before
    assert first.state.updates == 6
    assert step(config=config, number=1).report.weights_after != first.report.weights_after  # another shuffle


def test_a_gradient_that_is_not_finite_stops_the_step_by_name():
    batch = Batch.of([(made, 1e38) for made, _ in BATCH.items], GEOMETRY)
    with pytest.raises(NonFiniteError, match="step 3, actor, update 1"):
        step(batch=batch, number=3)


def test_the_token_columns_are_what_they_are_called():
    values = np.linspace(0, 1, BATCH.sampled).astype(np.float32)
    tokens = step(values=values).report.tokens
    assert tokens.shape == (BATCH.sampled, len(TOKEN_COLUMNS))
    assert tokens.dtype == np.float32
    assert np.array_equal(tokens[:, VALUE], values)
    assert np.array_equal(tokens[:, ADVANTAGE], advantages(BATCH, values, ONE_UPDATE).astype(np.float32))
    assert set(tokens[:, CLIPPED]) <= {0.0, 1.0}


def test_bfloat16_training_keeps_float32_masters_that_move_where_bfloat16_could_not():
    model = replace(MODEL, train_dtype="bfloat16")
    network = policy_for(FRESH, model)
    sampler = policy_for(FRESH, model)
    batch = batch_of(sampler)
    config = with_actor(minibatches=1, learning_rate=1e-6)
    zero = np.zeros(batch.sampled, dtype=np.float32)
    result = actor_step(network, FRESH, {}, batch, zero, config, seed=0, step=0)
    assert result.report.ratio_max == 1.0
    assert all(w.dtype == torch.bfloat16 for w in result.weights.values())
    assert all(w.dtype == torch.float32 for w in result.state.weights.values())
    moved = sum(int((result.state.weights[n] != FRESH.weights[n]).sum()) for n in FRESH.weights)
    published = sum(int((result.weights[n] != working_weights(network, FRESH.weights)[n]).sum()) for n in FRESH.weights)
    assert moved > 10 * max(published, 1)
