"""The whole loop for real, and the invariants of docs/architecture.md read off its log."""

import json
from collections import Counter

import numpy as np

from t1actors.events import (
    ActorUpdated,
    BatchSealed,
    CriticUpdated,
    EffectIntended,
    EpisodeEnded,
    Graded,
    RunFinished,
    SandboxReady,
    SandboxReclaimed,
    SandboxSealed,
    StepOpened,
    TrajectoryAssembled,
    TurnExecuted,
    TurnSampled,
    ValuesEstimated,
    WeightsLoaded,
    WeightsPublished,
)
from t1actors.log.blobs import FileBlobs
from t1actors.payloads import unpack_array
from t1actors.tito.stored import load
from tests.loop.runs import TinyRun, engine_gaps


def test_the_run_ends_with_every_step_it_planned(tiny_run: TinyRun) -> None:
    assert tiny_run.result.reason == "finished"
    [finished] = tiny_run.of(RunFinished)
    purposes = [step.purpose for step in tiny_run.of(StepOpened)]
    assert purposes == ["evaluate", "evaluate", "recalibrate", "train", "train", "train", "train"] + ["evaluate"] * 2
    assert finished.version == tiny_run.of(ActorUpdated)[-1].weights_after


def test_staleness_is_zero_then_one(tiny_run: TinyRun) -> None:
    assert [update.staleness for update in tiny_run.of(ActorUpdated)] == [0, 1, 1, 1]


def test_every_batch_is_the_wanted_size_in_index_order_and_only_of_graded_trials(tiny_run: TinyRun) -> None:
    graded = {g.trial: g for g in tiny_run.of(Graded) if g.outcome == "graded"}
    for batch in tiny_run.of(BatchSealed):
        indices = [item.index for item in batch.items]
        assert indices == sorted(indices)
        assert len(indices) == (3 if batch.purpose == "evaluate" else 6)
        assert all(graded[item.trial].reward == item.reward for item in batch.items)


def test_rewards_are_passed_assertions_over_twenty(tiny_run: TinyRun) -> None:
    for grade in tiny_run.of(Graded):
        assert grade.outcome == "graded", grade.detail
        assert grade.passed == sum(a.passed for a in grade.assertions)
        assert grade.reward == grade.passed / 20.0


def test_routing_rows_are_ids_minus_one_and_the_loss_region_holds_what_was_sampled(tiny_run: TinyRun) -> None:
    blobs = FileBlobs(tiny_run.run_dir / "blobs")
    sampled: dict[str, list[int]] = {}
    for turn in tiny_run.of(TurnSampled):
        sampled.setdefault(turn.trial, []).extend(turn.sampled_ids)
    for trajectory in tiny_run.of(TrajectoryAssembled):
        assert trajectory.drift_in_loss == 0
        kept = load(blobs, trajectory.record)
        ids: list[int] = []
        for chunk in kept.chunks:
            arrays = chunk.arrays()
            assert arrays.routing_RLK.shape[0] == len(arrays.ids_N) - 1
            ids += arrays.ids_N[arrays.mask_N == 1].tolist()
        assert ids == sampled[trajectory.trial]


def test_every_token_of_a_step_was_sampled_by_the_version_the_step_opened_with(tiny_run: TinyRun) -> None:
    versions = {step.step: step.version for step in tiny_run.of(StepOpened)}
    for turn in tiny_run.of(TurnSampled):
        step = int(turn.trial.partition(".")[0][1:])
        assert {span.version for span in turn.versions} == {versions[step]}


def test_each_trial_is_created_sealed_graded_and_reclaimed_once(tiny_run: TinyRun) -> None:
    trials = {spec.trial for step in tiny_run.of(StepOpened) for spec in step.trials}
    ended = Counter(e.trial for e in tiny_run.of(EpisodeEnded))
    assert max(ended.values()) == 1
    for kind in (SandboxReady, SandboxSealed, Graded, TrajectoryAssembled, SandboxReclaimed):
        counted = Counter(event.trial for event in tiny_run.of(kind))
        assert max(counted.values()) == 1
        assert counted.keys() <= trials
    assert {e.trial for e in tiny_run.of(SandboxReclaimed)} >= {e.trial for e in tiny_run.of(SandboxReady)}


def test_no_command_ran_twice_and_none_of_a_turn_that_was_not_to_run(tiny_run: TinyRun) -> None:
    wanted = {(t.trial, t.turn) for t in tiny_run.of(TurnSampled) if t.execute}
    ran = Counter((t.trial, t.turn) for t in tiny_run.of(TurnExecuted))
    assert set(ran) <= wanted
    assert max(ran.values()) == 1


def test_weights_are_published_once_a_version_and_loaded_before(tiny_run: TinyRun) -> None:
    published = [w.version for w in tiny_run.of(WeightsPublished)]
    assert len(set(published)) == len(published)
    assert set(published) <= {w.digest for w in tiny_run.of(WeightsLoaded)}


def test_the_ratio_is_one_for_the_first_batch_and_moves_when_the_weights_have_moved(tiny_run: TinyRun) -> None:
    blobs = FileBlobs(tiny_run.run_dir / "blobs")
    first, second, *_ = tiny_run.of(ActorUpdated)
    behaviour, current = unpack_array(blobs, first.tokens)[:, 0], unpack_array(blobs, first.tokens)[:, 1]
    assert np.array_equal(behaviour, current)
    assert first.policy_movement_max == 0.0
    stale = unpack_array(blobs, second.tokens)
    assert not np.array_equal(stale[:, 0], stale[:, 1])
    assert second.policy_movement_mean > 0.0


def test_the_engine_gap_is_exactly_zero_for_every_token_of_every_step(tiny_run: TinyRun) -> None:
    updates = tiny_run.of(ActorUpdated)
    assert len(updates) == 4
    assert [(u.engine_gap_mean, u.engine_gap_max) for u in updates] == [(0.0, 0.0)] * 4
    assert engine_gaps(tiny_run.run_dir, tiny_run.events) == {update.step: 0 for update in updates}


def test_what_is_left_of_the_gap_is_the_policys_movement(tiny_run: TinyRun) -> None:
    for update in tiny_run.of(ActorUpdated):
        assert (update.gap_mean, update.gap_max) == (update.policy_movement_mean, update.policy_movement_max)


def test_the_critic_values_a_batch_before_it_trains_on_it(tiny_run: TinyRun) -> None:
    order = [(type(e), e.step) for e in tiny_run.events if isinstance(e, (ValuesEstimated, CriticUpdated))]
    for step in {step for _, step in order}:
        assert [kind for kind, s in order if s == step] == [ValuesEstimated, CriticUpdated]


def test_the_model_is_left_as_a_hugging_face_folder(tiny_run: TinyRun) -> None:
    assert json.loads((tiny_run.run_dir / "model" / "config.json").read_text())["model_type"] == "qwen3_moe"


def test_every_effect_key_says_what_is_done_and_is_intended_once(tiny_run: TinyRun) -> None:
    keys = Counter(intent.key for intent in tiny_run.of(EffectIntended))
    assert max(keys.values()) == 1
