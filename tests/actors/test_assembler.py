"""Which trials make a batch: the first B graded, in index order; failures are replaced; the rest is cancelled."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from t1actors import config as cfg
from t1actors.actors.assembler import Assemble, Assembler, AssemblerState
from t1actors.events import (
    AnyEvent,
    AssertionResult,
    BatchSealed,
    BatchShort,
    EffectFinished,
    EpisodeEnded,
    Graded,
    Isolation,
    Outcome,
    RunStarted,
    StepOpened,
    TrajectoryAssembled,
    TrialCancelled,
    TrialFailed,
    TrialReplaced,
    TrialSpec,
)
from t1actors.log.blobs import MemoryBlobs
from t1actors.payloads import pack
from t1actors.runtime.actor import ActorContext, Decision


def graded(trial: str, outcome: Outcome = "graded") -> Graded:
    return Graded(
        trial=trial,
        task="l1-100000000",
        outcome=outcome,
        assertions=(AssertionResult(id="a", passed=True),),
        passed=1,
        expected=1,
        reward=0.05 if outcome == "graded" else None,
        layer_digest="l",
        tests_digest="t",
        tools_digest="o",
        isolation=Isolation(backend="test"),
        seconds=0.1,
    )


class Bench:
    def __init__(self, tmp_path: Path, launched: int, wanted: int) -> None:
        context = ActorContext("assembler", tmp_path, cfg.resolve(preset="smoke").config, MemoryBlobs(), 1, lambda: 0.0)
        self.blobs = context.blobs
        self.assembler = Assembler(context)
        self.state: AssemblerState = self.assembler.initial()
        self.out: list[AnyEvent] = []
        trials = tuple(
            TrialSpec(trial=f"s0.t{n}", index=n, task=f"l1-{100_000_000 + n}", seed=n, turn_limit=5)
            for n in range(launched)
        )
        self.send(
            StepOpened(
                step=0,
                purpose="train",
                version="v0",
                version_index=0,
                batch_size=wanted,
                temperature=1.0,
                trials=trials,
            )
        )

    def send(self, event: AnyEvent) -> Decision:
        self.state = self.assembler.fold(self.state, event)
        decision = self.assembler.decide(self.state, event)
        for out in decision.events:
            self.state = self.assembler.fold(self.state, out)
        self.out += decision.events
        return decision

    def finish(self, trial: str) -> Decision:
        """The trial ends, is graded, and its trajectory is assembled."""
        self.send(EpisodeEnded(trial=trial, reason="submitted", turns=1))
        [effect] = self.send(graded(trial)).effects
        assert isinstance(effect, Assemble)
        index = int(trial.rpartition("t")[2])
        own = TrajectoryAssembled(
            trial=trial,
            step=0,
            index=index,
            task="t",
            record=pack(self.blobs, trial.encode()),
            reward=0.05,
            ids=10,
            sampled=3,
            turns=1,
            chunks=1,
            boundaries=(),
            drift_in_loss=0,
            non_canonical_turns=0,
            end_reason="submitted",
        )
        self.state = self.assembler.fold(self.state, own)
        return self.send(EffectFinished(key=effect.key, status="done", seconds=0.0))

    def of(self, kind: type[AnyEvent]) -> Sequence[AnyEvent]:
        return [event for event in self.out if isinstance(event, kind)]

    def batch(self) -> BatchSealed:
        [batch] = self.of(BatchSealed)
        assert isinstance(batch, BatchSealed)
        return batch


def test_the_first_b_graded_trials_are_the_batch_in_index_order_and_the_rest_is_cancelled(tmp_path: Path) -> None:
    bench = Bench(tmp_path, launched=4, wanted=2)
    bench.finish("s0.t3")
    assert not bench.out
    bench.finish("s0.t1")
    assert [item.trial for item in bench.batch().items] == ["s0.t1", "s0.t3"]
    assert [e.trial for e in bench.of(TrialCancelled) if isinstance(e, TrialCancelled)] == ["s0.t0", "s0.t2"]


def test_arrival_order_changes_nothing_in_the_batch(tmp_path: Path) -> None:
    batches: list[BatchSealed] = []
    for order in (("s0.t0", "s0.t1", "s0.t2"), ("s0.t2", "s0.t0", "s0.t1")):
        bench = Bench(tmp_path, launched=3, wanted=3)
        for trial in order:
            bench.finish(trial)
        batches.append(bench.batch())
    assert batches[0] == batches[1]


@pytest.mark.parametrize("outcome", ["infra", "verifier_crash", "no_report", "partial_report", "verifier_timeout"])
def test_an_ungraded_trial_is_replaced_by_the_same_task_and_is_never_in_the_batch(
    tmp_path: Path, outcome: Outcome
) -> None:
    bench = Bench(tmp_path, launched=2, wanted=2)
    bench.send(graded("s0.t0", outcome))
    [replaced] = bench.of(TrialReplaced)
    assert isinstance(replaced, TrialReplaced)
    assert (replaced.failed, replaced.cause) == ("s0.t0", outcome)
    assert (replaced.replacement.trial, replaced.replacement.task) == ("s0.t2", "l1-100000000")
    bench.finish("s0.t1")
    bench.finish("s0.t2")
    assert [item.trial for item in bench.batch().items] == ["s0.t1", "s0.t2"]
    assert bench.batch().failed == 1


def test_a_failure_that_the_spare_trials_cover_is_not_replaced(tmp_path: Path) -> None:
    bench = Bench(tmp_path, launched=3, wanted=2)
    bench.send(TrialFailed(trial="s0.t0", cause="SandboxDied"))
    assert not bench.out


def test_when_every_trial_fails_the_step_ends_short_and_says_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path, launched=2, wanted=2)
    for index in range(4):
        bench.send(TrialFailed(trial=f"s0.t{index}", cause="SandboxDied"))
    [short] = bench.of(BatchShort)
    assert isinstance(short, BatchShort)
    assert (short.wanted, short.possible, short.causes) == (2, 0, {"SandboxDied": 4})
    assert bench.batch().items == ()


def test_failures_of_an_interruption_use_up_no_replacements(tmp_path: Path) -> None:
    bench = Bench(tmp_path, launched=2, wanted=2)
    for n in range(3):
        bench.send(
            RunStarted(run="r", config_digest="", config_toml="", code_version="", environment={}, resumed=n > 0)
        )
        for index in (2 * n, 2 * n + 1):
            bench.send(TrialFailed(trial=f"s0.t{index}", cause="SandboxGone"))
    bench.finish("s0.t6")
    bench.finish("s0.t7")
    assert [item.trial for item in bench.batch().items] == ["s0.t6", "s0.t7"]
    assert not bench.of(BatchShort)


def test_a_resumed_run_replaces_what_could_not_be_replaced_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path, launched=2, wanted=2)
    for index in (0, 2, 3):
        bench.send(TrialFailed(trial=f"s0.t{index}", cause="SandboxGone"))
    started = RunStarted(run="r", config_digest="", config_toml="", code_version="", environment={}, resumed=True)
    [replaced] = bench.send(started).events
    assert isinstance(replaced, TrialReplaced)
    assert (replaced.failed, replaced.replacement.trial) == ("s0.t3", "s0.t4")


def test_a_short_batch_still_holds_the_trials_that_were_graded(tmp_path: Path) -> None:
    bench = Bench(tmp_path, launched=2, wanted=2)
    bench.finish("s0.t1")
    for index in (0, 2, 3):
        bench.send(TrialFailed(trial=f"s0.t{index}", cause="SandboxDied"))
    assert [item.trial for item in bench.batch().items] == ["s0.t1"]


def test_late_events_of_a_cancelled_trial_change_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, launched=2, wanted=1)
    bench.finish("s0.t1")
    before = list(bench.out)
    bench.send(EpisodeEnded(trial="s0.t0", reason="submitted", turns=1))
    bench.send(graded("s0.t0"))
    bench.send(TrialFailed(trial="s0.t0", cause="late"))
    assert bench.out == before


def test_the_share_lost_is_reported_by_length(tmp_path: Path) -> None:
    bench = Bench(tmp_path, launched=3, wanted=2)
    bench.finish("s0.t0")
    bench.finish("s0.t2")
    [by_length] = bench.batch().lost_by_length
    assert (by_length.launched, by_length.lost) == (3, 1)
