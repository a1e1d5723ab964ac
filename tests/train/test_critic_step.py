"""The critic's step: values first, then its update."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from t1actors.models.trunk import Forwarded
from t1actors.models.value import ValueModel
from t1actors.train.batch import Batch
from t1actors.train.critic_step import critic_step, estimate_values
from t1actors.train.errors import NonFiniteError
from t1actors.train.networks import geometry_of, load_masters
from t1actors.train.packing import pack
from t1actors.train.returns import explained_variance
from tests.train.tiny_batches import TRAIN, batch_of, critic_state, tiny_policy, with_critic

POLICY = tiny_policy()
CRITIC, FRESH = critic_state(POLICY)
BATCH = batch_of(POLICY, chunks=2)
ZERO = np.zeros(BATCH.sampled, dtype=np.float32)
RETURNS = np.concatenate([np.full(t.sampled, t.reward) for t in BATCH.trials])


def step(state=FRESH, batch=BATCH, values=ZERO, config=TRAIN, *, number=0):
    return critic_step(CRITIC, state, batch, values, config, seed=0, step=number)


def some_state():
    """A critic whose head is not zero."""
    return step().state


def test_a_fresh_critic_values_everything_at_0_and_explains_nothing():
    values = estimate_values(CRITIC, FRESH, BATCH, TRAIN)
    assert np.array_equal(values.values_T, ZERO)
    assert values.explained_variance == 0.0


def test_a_value_belongs_to_a_sampled_token_and_comes_from_the_row_before_it():
    state = some_state()
    values = estimate_values(CRITIC, state, BATCH, TRAIN)
    load_masters(CRITIC, state.weights)
    expected = []
    with torch.no_grad():
        for trial in BATCH.trials:
            for chunk in trial.chunks:
                ids = torch.from_numpy(chunk.ids_N[:-1].astype(np.int64))
                rows = CRITIC.values(CRITIC.forward_packed(ids, [len(ids)]).hidden_NH).numpy()
                expected += [rows[j - 1] for j in range(len(chunk.ids_N)) if chunk.mask_N[j]]
    assert values.values_T == pytest.approx(np.array(expected), abs=1e-5)
    assert values.values_T.std() > 0
    assert values.explained_variance == pytest.approx(explained_variance(RETURNS, values.values_T))


def test_the_critic_routes_freely_whatever_was_recorded():
    state = some_state()
    items = []
    for made, reward in BATCH.items:
        chunks = tuple(
            msgspec.structs.replace(c, routing=((c.arrays().routing_RLK + 1) % 4).astype(np.uint8).tobytes())
            for c in made.chunks
        )
        items.append((msgspec.structs.replace(made, chunks=chunks), reward))
    other = Batch.of(items, geometry_of(POLICY))
    assert other.digest != BATCH.digest
    assert estimate_values(CRITIC, state, other, TRAIN).digest == estimate_values(CRITIC, state, BATCH, TRAIN).digest


def test_the_same_step_gives_the_same_report_and_leaves_its_inputs_alone():
    before = FRESH.optimizer_digest()
    first, second = step(), step()
    assert first.report == second.report
    assert first.report.weights_after != first.report.weights_before
    assert FRESH.optimizer_digest() == before


def test_a_step_depends_on_its_arguments_and_not_on_what_the_network_held():
    expected = step().report
    step(some_state(), number=9)
    assert step().report == expected


def test_the_first_loss_of_a_fresh_critic_is_the_scaled_mean_square_of_the_returns():
    config = with_critic(epochs=1, minibatches=1)
    assert step(config=config).report.losses[0] == pytest.approx(25 * float((RETURNS**2).mean()), rel=1e-6)


def test_wild_values_where_nothing_was_sampled_change_neither_the_values_nor_the_value_loss(monkeypatch):
    """1e6 in the hidden states, so in the values, of every row that predicts context (fault C2)."""
    state, config = some_state(), with_critic(replace(TRAIN, micro_batch_ids=10_000), epochs=1, minibatches=1)
    wanted = estimate_values(CRITIC, state, BATCH, config), step(state, config=config).report.losses
    forward = ValueModel.forward_packed
    sampled_n = pack(BATCH, range(len(BATCH.trials))).rows_n

    def poisoned(self, *given, rows_R=None, **named):
        hidden_NH = forward(self, *given, **named).hidden_NH
        context_N = torch.ones(len(hidden_NH), dtype=torch.bool).index_fill(0, sampled_n, False)
        hidden_NH = hidden_NH.masked_fill(context_N[:, None], 1e6)
        return Forwarded(hidden_NH if rows_R is None else hidden_NH[rows_R], torch.empty(0))

    monkeypatch.setattr(ValueModel, "forward_packed", poisoned)
    found = estimate_values(CRITIC, state, BATCH, config), step(state, config=config).report.losses
    assert np.array_equal(found[0].values_T, wanted[0].values_T)
    assert found[1] == wanted[1]


def test_the_loss_scale_multiplies_the_value_loss_and_its_gradient():
    one = step(config=with_critic(epochs=1, minibatches=1, loss_scale=1.0)).report
    four = step(config=with_critic(epochs=1, minibatches=1, loss_scale=4.0)).report
    assert four.losses[0] == pytest.approx(4 * one.losses[0], rel=1e-6)
    assert four.gradient_norm == pytest.approx(4 * one.gradient_norm, rel=1e-5)


def test_an_epoch_of_minibatches_is_that_many_updates():
    result = step(config=with_critic(epochs=2, minibatches=3))
    assert len(result.report.losses) == result.state.updates == 6
    assert len(result.report.detail.updates) == 6
    assert step(result.state, config=with_critic(epochs=1, minibatches=1)).state.updates == 7


def test_the_loss_of_an_update_is_its_minibatchs_own_mean_whatever_the_micro_batches():
    config = with_critic(epochs=1, minibatches=1)
    whole = step(config=replace(config, micro_batch_ids=10_000)).report
    cut = step(config=replace(config, micro_batch_ids=1)).report
    assert cut.losses[0] == pytest.approx(whole.losses[0], rel=1e-6)
    assert cut.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-4)


def test_repeated_updates_on_one_batch_fit_it():
    state, config = FRESH, with_critic(epochs=4, minibatches=1, value_clip=0.0)
    losses = []
    for number in range(4):
        values = estimate_values(CRITIC, state, BATCH, config)
        result = step(state, values=values.values_T, config=config, number=number)
        state = result.state
        losses += result.report.losses
    assert losses[-1] < losses[0] / 4
    assert estimate_values(CRITIC, state, BATCH, config).explained_variance > 0.5


def test_the_rate_warms_up_over_the_updates_of_the_optimizer_and_not_of_the_step():
    config = with_critic(epochs=1, minibatches=1, rate_warmup_updates=4, gradient_clip=0.0)
    first = step(config=config).state
    second = step(first, config=config).state
    moved = [
        max(float((b.weights[n] - a.weights[n]).abs().max()) for n in FRESH.weights)
        for a, b in ((FRESH, first), (first, second))
    ]
    # Adam's first step is a sign step: its largest move is the rate itself
    assert moved[0] == pytest.approx(config.critic.learning_rate / 4, rel=1e-3)
    assert moved[1] > 1.5 * moved[0]


def test_a_gradient_that_is_not_finite_stops_the_step_by_name():
    items = [(made, 1e30 if n == 2 else 0.0) for n, (made, _) in enumerate(BATCH.items)]
    with pytest.raises(NonFiniteError, match=r"step 7, critic, update 1: the gradient of .* is (not finite|too large)"):
        step(batch=Batch.of(items, geometry_of(POLICY)), number=7)


def test_detail_names_the_trial_and_tensor_that_another_reward_reaches():
    config = with_critic(epochs=1, minibatches=1)
    items = [(made, reward + 0.5 if n == 3 else reward) for n, (made, reward) in enumerate(BATCH.items)]
    here = step(config=config).report.detail
    there = step(batch=Batch.of(items, geometry_of(POLICY)), config=config).report.detail
    assert here.tensors == tuple(sorted(FRESH.weights))
    differ = [
        n
        for n in range(len(BATCH.trials))
        if here.updates[0].losses[8 * n : 8 * n + 8] != there.updates[0].losses[8 * n : 8 * n + 8]
    ]
    assert differ == [3]
    assert here.updates[0].gradients != there.updates[0].gradients
