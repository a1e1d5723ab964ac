"""Critic Warm-Up in a real run: actor and critic train on a pool of their own; only the critic's weights are kept."""

from itertools import pairwise
from pathlib import Path

import pytest

from t1actors.events import ActorInitialised, ActorUpdated, CriticUpdated, StepOpened
from t1actors.log.blobs import FileBlobs
from t1actors.payloads import unpack
from t1actors.replay.run import Replayer
from t1actors.tasks.generate import parse_name
from t1actors.train.state import from_bytes
from tests.loop.runs import TinyRun, make_run

pytestmark = pytest.mark.slow

WARM_UP, TRAINED = 2, 3


@pytest.fixture(scope="module")
def warmed_run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return make_run(
        Path(tmp_path_factory.mktemp("run")) / "warmed",
        f"schedule.warmup_steps={WARM_UP}",
        f"schedule.train_steps={TRAINED}",
        "schedule.evaluate=false",
        "tasks.warmup_count=12",
        "train.snapshot_every=1",
    )


def steps_of(run: TinyRun, purpose: str) -> list[StepOpened]:
    return [step for step in run.of(StepOpened) if step.purpose == purpose]


def updates_of(run: TinyRun, kind: type, purpose: str) -> list:
    wanted = {step.step for step in steps_of(run, purpose)}
    return [update for update in run.of(kind) if update.step in wanted]


def optimizer_updates(run: TinyRun, update: ActorUpdated | CriticUpdated) -> int:
    """Updates since the moments were empty."""
    return from_bytes(unpack(FileBlobs(run.run_dir / "blobs"), update.state)).updates


def test_the_policy_of_warm_up_is_forgotten(warmed_run: TinyRun) -> None:
    initial = warmed_run.of(ActorInitialised)[0].version
    warmup, trained = (updates_of(warmed_run, ActorUpdated, purpose) for purpose in ("warmup", "train"))
    assert (len(warmup), len(trained)) == (WARM_UP, TRAINED)
    assert warmup[0].weights_before == trained[0].weights_before == initial
    assert {step.version for step in steps_of(warmed_run, "recalibrate")} == {initial}
    made_in_warmup = {update.weights_after for update in warmup}
    assert not made_in_warmup & {step.version for step in steps_of(warmed_run, "train")}
    assert [update.staleness for update in (*warmup, *trained)] == [0, 1, 0, 1, 1]


def test_both_lanes_begin_with_a_fresh_optimizer(warmed_run: TinyRun) -> None:
    minibatches = warmed_run.config.train.actor.minibatches
    for purpose in ("warmup", "train"):
        counts = [optimizer_updates(warmed_run, update) for update in updates_of(warmed_run, ActorUpdated, purpose)]
        assert counts == [minibatches * (n + 1) for n in range(len(counts))]


def test_the_critic_keeps_its_weights_and_drops_its_moments_after_warm_up(warmed_run: TinyRun) -> None:
    critic = warmed_run.config.train.critic
    warmup, recalibrated, trained = (
        updates_of(warmed_run, CriticUpdated, purpose) for purpose in ("warmup", "recalibrate", "train")
    )
    chain = [*warmup, *recalibrated, *trained]
    assert all(after.weights_before == before.weights_after for before, after in pairwise(chain))
    a_step = critic.epochs * critic.minibatches
    counts = [optimizer_updates(warmed_run, update) for update in chain]
    kept = len(recalibrated) + len(trained)
    assert counts == [a_step * (n + 1) for n in range(WARM_UP)] + [a_step * (n + 1) for n in range(kept)]


def test_warm_up_has_tasks_of_its_own(warmed_run: TinyRun) -> None:
    tasks = warmed_run.config.tasks
    pool = range(tasks.warmup_seed, tasks.warmup_seed + tasks.warmup_count)

    def seeds(purpose: str) -> set[int]:
        named = [parse_name(spec.task) for step in steps_of(warmed_run, purpose) for spec in step.trials]
        return {name[0] for name in named if name is not None}

    assert seeds("warmup") <= set(pool)
    assert not seeds("train") & set(pool)


def test_warm_up_and_what_follows_it_replay_bit_exact(warmed_run: TinyRun) -> None:
    reports = list(Replayer.open(warmed_run.run_dir).all())
    assert [report.step for report in reports] == [step.step for step in warmed_run.of(StepOpened)]
    assert all(report.bit_exact for report in reports), [report.text() for report in reports]
