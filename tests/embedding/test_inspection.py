"""A look inside the step of actor and critic: it sees what the update is made of, and decides no bit of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from t1actors.log.blobs import MemoryBlobs
from t1actors.log.memory import MemoryLog
from t1actors.replay.inputs import read_inputs
from t1actors.replay.run import Replayer
from t1actors.train.actor_step import actor_step
from t1actors.train.batch import Batch
from t1actors.train.critic_step import critic_step, estimate_values
from t1actors.train.errors import BatchError, NonFiniteError
from t1actors.train.inspection import ActorUpdateView, CriticUpdateView
from t1actors.train.networks import geometry_of
from tests.replay.synthetic_run import write_run
from tests.train.tiny_batches import batch_of, critic_state, policy_state, tiny_policy, with_actor, with_critic

POLICY = tiny_policy()
STATE = policy_state(POLICY)
BATCH = batch_of(POLICY, chunks=2)
CONFIG = with_actor(minibatches=3, epochs=2)
VALUES = np.linspace(-1, 1, BATCH.sampled, dtype=np.float32)


def step(inspect=None, *, batch=BATCH, config=CONFIG):
    return actor_step(tiny_policy(), STATE, {}, batch, VALUES[: batch.sampled], config, seed=0, step=3, inspect=inspect)


def views_of(**arguments) -> list[ActorUpdateView]:
    views: list[ActorUpdateView] = []
    step(views.append, **arguments)
    return views


def test_with_and_without_a_look_every_digest_is_equal_even_if_the_looker_scribbles_on_what_it_was_given():
    def scribble(view: ActorUpdateView) -> None:
        for array in (view.current_n, view.behaviour_n, view.sampler_n, view.advantage_n, view.value_n, view.loss_n):
            array[:] = np.nan
        view.tokens_n[:] = 0
        for gradient in view.gradients.values():
            gradient.zero_()

    with_look, without = step(scribble), step()
    assert with_look.report.detail == without.report.detail
    digests = ("weights_after", "optimizer_after", "old_logprobs_digest", "loss_digest", "gradient_digest")
    assert [getattr(with_look.report, d) for d in digests] == [getattr(without.report, d) for d in digests]
    assert np.array_equal(with_look.report.tokens, without.report.tokens)


def test_every_update_is_shown_once_with_the_figures_that_the_report_has():
    views, report = views_of(), step().report
    assert [(view.step, view.epoch, view.update) for view in views] == [(3, n // 3, n + 1) for n in range(6)]
    assert [float(view.loss_n.mean(dtype=np.float64)) for view in views] == pytest.approx(report.losses)
    assert float(np.mean([view.gradient_norm for view in views])) == report.gradient_norm
    assert max(float(np.exp(view.log_ratio_n).max()) for view in views) == pytest.approx(report.ratio_max)
    tokens = np.concatenate([view.kl * len(view.tokens_n) for view in views], axis=None).sum()
    assert tokens / sum(len(view.tokens_n) for view in views) == pytest.approx(report.kl, rel=1e-4)


def test_in_the_first_update_the_policy_is_still_the_one_that_sampled():
    first, second, *_ = views_of()
    assert not first.log_ratio_n.any()
    assert first.kl == 0.0
    assert second.log_ratio_n.any()
    assert np.abs(first.behaviour_n - first.sampler_n).max() < 1e-4


def test_a_token_of_the_view_is_found_in_its_trial_chunk_turn_and_position():
    for view in views_of()[:3]:
        for n, token in enumerate(view.tokens_n.tolist()):
            place = view.place(n)
            chunk = place.trial.record.chunks[place.chunk]
            assert place.trial is BATCH.trial_of_token(token)
            start, end = chunk.turns[place.turn]
            assert start <= place.position < end
            assert chunk.arrays().logprobs_N[place.position] == view.sampler_n[n]
            assert chunk.arrays().ids_N[place.position] == place.id
    positions = [(p.chunk, p.position) for p in map(BATCH.place_of_token, range(BATCH.trials[0].sampled))]
    assert positions == sorted(set(positions))
    with pytest.raises(IndexError, match="sampled tokens"):
        BATCH.place_of_token(BATCH.sampled)


def test_an_update_whose_gradient_is_not_finite_is_shown_before_the_step_refuses_it():
    shown: list[float] = []
    values = np.full(BATCH.sampled, np.float32(3e38))
    with pytest.raises(NonFiniteError):
        actor_step(
            tiny_policy(),
            STATE,
            {},
            BATCH,
            values,
            CONFIG,
            seed=0,
            step=3,
            inspect=lambda v: shown.append(v.gradient_norm),
        )
    assert len(shown) == 1
    assert not np.isfinite(shown[0])


def test_what_the_looker_raises_leaves_the_step_and_the_next_step_is_the_same_as_ever():
    def stop(view: ActorUpdateView) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        step(stop)
    assert not torch.are_deterministic_algorithms_enabled()
    assert step().report.gradient_digest == step().report.gradient_digest


CRITIC, FRESH = critic_state(POLICY)
CRITIC_CONFIG = with_critic(minibatches=3, epochs=2)


def critic(inspect=None, *, values=VALUES, config=CRITIC_CONFIG):
    return critic_step(CRITIC, FRESH, BATCH, values, config, seed=0, step=3, inspect=inspect)


def critic_views(**arguments) -> list[CriticUpdateView]:
    views: list[CriticUpdateView] = []
    critic(views.append, **arguments)
    return views


def test_a_look_at_the_critic_changes_no_digest_even_if_the_looker_scribbles_on_what_it_was_given():
    def scribble(view: CriticUpdateView) -> None:
        for array in (view.value_n, view.old_value_n, view.return_n, view.loss_n):
            array[:] = np.nan
        view.tokens_n[:] = 0
        for gradient in view.gradients.values():
            gradient.zero_()

    assert critic(scribble).report == critic().report


def test_every_update_of_the_critic_is_shown_once_with_the_figures_that_the_report_has():
    config = with_critic(CRITIC_CONFIG, loss_scale=2.0, value_clip=0.2)
    views, report = critic_views(config=config), critic(config=config).report
    assert [(view.step, view.epoch, view.update) for view in views] == [(3, n // 3, n + 1) for n in range(6)]
    assert [float(view.loss_n.mean(dtype=np.float64)) for view in views] == pytest.approx(report.losses)
    assert float(np.mean([view.gradient_norm for view in views])) == report.gradient_norm
    for view in views:
        assert np.array_equal(view.old_value_n, VALUES[view.tokens_n])
        free_n = 2 * np.square(view.error_n)
        assert view.loss_n[~view.clipped_n] == pytest.approx(free_n[~view.clipped_n])
        assert (view.loss_n[view.clipped_n] > free_n[view.clipped_n]).all()
        assert all(view.place(n).trial is BATCH.trial_of_token(token) for n, token in enumerate(view.tokens_n.tolist()))
    assert any(view.clipped_n.any() for view in views)
    assert not any(view.clipped_n.any() for view in critic_views(config=with_critic(CRITIC_CONFIG, value_clip=0.0)))


def test_in_the_first_update_the_critic_still_has_the_values_of_before():
    old = estimate_values(CRITIC, critic().state, BATCH, CRITIC_CONFIG).values_T
    views: list[CriticUpdateView] = []
    critic_step(CRITIC, critic().state, BATCH, old, CRITIC_CONFIG, seed=0, step=4, inspect=views.append)
    assert np.array_equal(views[0].value_n, views[0].old_value_n)
    assert not np.array_equal(views[1].value_n, views[1].old_value_n)


def test_a_replayed_step_is_bit_exact_with_a_look_and_shows_the_recorded_step():
    log, blobs = MemoryLog(), MemoryBlobs()
    write_run(log, blobs)
    replayer = Replayer(read_inputs(log), blobs)
    views: list[ActorUpdateView] = []
    of_critic: list[CriticUpdateView] = []
    assert replayer.step(6, inspect=views.append, inspect_critic=of_critic.append).bit_exact
    assert {view.step for view in views} == {6}  # not those of the steps that had to be run again for it
    assert {view.step for view in of_critic} == {6}
    assert float(np.mean([view.gradient_norm for view in of_critic])) == replayer.inputs.step(6).critic.gradient_norm
    recorded = replayer.inputs.step(6).actor
    assert float(np.mean([view.gradient_norm for view in views])) == recorded.gradient_norm
    trial = replayer.batch(6).trials[0].trial
    views.clear()
    assert replayer.step(6, inspect=views.append, edit=lambda batch: batch.without(trial)).edited
    assert all(t.trial != trial for view in views for t in view.batch.trials)


def test_a_batch_without_a_trial_is_the_batch_of_the_others_and_an_unknown_trial_is_named():
    gone = BATCH.trials[2].trial
    assert BATCH.without(gone).digest == Batch.of([*BATCH.items[:2], *BATCH.items[3:]], geometry_of(POLICY)).digest
    with pytest.raises(BatchError, match=r"no trial s9\.t9; it has s0\.t0"):
        BATCH.without("s9.t9")
