"""The barrier as a pure state machine: which step opens when, with which weights. No process, no time."""

from collections.abc import Sequence, Set
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors import config as cfg
from t1actors.actors.publisher import RECLAIM_KEY, Publisher, PublisherState
from t1actors.events import (
    ActorInitialised,
    ActorReady,
    ActorStarted,
    ActorStopped,
    AnyEvent,
    BarrierOpened,
    BatchItem,
    BatchSealed,
    BatchShort,
    CriticInitialised,
    DiskFreed,
    DiskLow,
    EffectFinished,
    EffectIntended,
    GenerationQuiesced,
    ModelExported,
    Payload,
    RunFailed,
    RunFinished,
    RunPaused,
    RunStarted,
    SandboxReclaimed,
    StepOpened,
    StopRequested,
    TimerFired,
    WeightsLoaded,
    WeightsOffered,
    WeightsPublished,
)
from t1actors.log.blobs import MemoryBlobs
from t1actors.runtime.actor import NOTHING, ActorContext, Wait
from tests.actors.samples import actor_updated, critic_updated


def payload(name: str) -> Payload:
    return Payload(digest=name, size_bytes=1, inline=b"w")


@cache
def resolved(sets: tuple[str, ...]) -> cfg.Config:
    return cfg.resolve(preset="smoke", sets=sets).config


class Bench:
    """A publisher fed by hand: ``send`` folds and decides, folds what was decided, and returns it."""

    def __init__(self, tmp_path: Path, *sets: str) -> None:
        config = resolved(sets)
        context = ActorContext("publisher", tmp_path, config, MemoryBlobs(), 1, lambda: 0.0)
        self.publisher = Publisher(context)
        self.state: PublisherState = self.publisher.initial()
        self.opened: list[StepOpened] = []

    def send(self, event: AnyEvent) -> Sequence[AnyEvent]:
        self.state = self.publisher.fold(self.state, event)
        events = list(self.publisher.decide(self.state, event).events)
        for out in events:
            self.state = self.publisher.fold(self.state, out)
            if isinstance(out, StepOpened):
                self.opened.append(out)
        return events

    def start(self) -> None:
        self.send(CriticInitialised(weights="c0", state=payload("c0")))
        [barrier] = self.send(ActorInitialised(version="v0", weights=payload("v0"), state=payload("s0")))
        assert isinstance(barrier, BarrierOpened)
        self.answer(barrier.step, "v0")

    def train_step_zero(self) -> None:
        """Steps 0 and 1 are open, 0 is sealed and trained to version v1."""
        self.start()
        self.seal(0)
        self.send(critic_updated(0))
        self.send(actor_updated(0, "v1"))

    def answer(self, step: int, digest: str) -> Sequence[AnyEvent]:
        [offered] = self.send(GenerationQuiesced(step=step, replica="sampler"))
        assert isinstance(offered, WeightsOffered)
        assert offered.digest == digest
        return self.send(WeightsLoaded(step=step, replica="sampler", digest=digest, seconds=0.25))

    def seal(self, step: int) -> Sequence[AnyEvent]:
        """Its sandboxes are reclaimed by then."""
        before = [said for trial in sorted(self.trials(step)) for said in self.send(reclaimed(trial))]
        purpose = self.publisher._schedule.purpose(step)
        item = BatchItem(trial=f"s{step}.t0", index=0, trajectory_digest="00", reward=0.5)
        sealed = BatchSealed(step=step, purpose=purpose, items=(item,), digest="b", launched=1, failed=0, cancelled=0)
        return [*before, *self.send(sealed)]

    def trials(self, step: int) -> set[str]:
        """Those of the step that may have a sandbox."""
        return {trial for trial in self.state.held if trial.startswith(f"s{step}.")}


def reclaimed(trial: str) -> SandboxReclaimed:
    return SandboxReclaimed(trial=trial, seconds=0.1)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, "schedule.evaluate=false", "schedule.recalibrate_steps=0", "schedule.train_steps=4")


def test_the_first_two_training_steps_open_together_with_the_first_weights(bench: Bench) -> None:
    bench.start()
    assert [(s.step, s.version, s.version_index) for s in bench.opened] == [(0, "v0", 0), (1, "v0", 0)]


def test_step_two_opens_only_when_step_zero_is_trained_and_step_one_is_sealed(bench: Bench) -> None:
    bench.start()
    bench.seal(0)
    bench.send(critic_updated(0))
    assert bench.send(actor_updated(0, "v1")) == []  # batch 1 is still being collected
    [barrier] = bench.seal(1)
    assert isinstance(barrier, BarrierOpened)
    published, opened = bench.answer(barrier.step, "v1")
    assert isinstance(published, WeightsPublished)
    assert isinstance(opened, StepOpened)
    assert (opened.step, opened.version, opened.version_index) == (2, "v1", 1)


def test_a_step_trained_while_the_barrier_is_open_does_not_change_what_the_barrier_publishes(bench: Bench) -> None:
    bench.train_step_zero()
    [barrier] = bench.seal(1)
    assert isinstance(barrier, BarrierOpened)
    bench.send(critic_updated(1))
    assert bench.send(actor_updated(1, "v2")) == []
    _, opened = bench.answer(barrier.step, "v1")
    assert isinstance(opened, StepOpened)
    assert (opened.step, opened.version, opened.version_index) == (2, "v1", 1)
    [following] = bench.seal(2)
    assert isinstance(following, BarrierOpened)
    assert bench.state.barrier is not None
    assert bench.state.barrier.version.digest == "v2"


def test_a_publisher_that_was_away_opens_with_the_weights_of_two_steps_before(bench: Bench) -> None:
    bench.start()
    for step in range(2):
        bench.state = bench.publisher.fold(bench.state, critic_updated(step))
        bench.state = bench.publisher.fold(bench.state, actor_updated(step, f"v{step + 1}"))
    bench.seal(0)
    [barrier] = bench.seal(1)
    assert isinstance(barrier, BarrierOpened)
    _, opened = bench.answer(barrier.step, "v1")
    assert isinstance(opened, StepOpened)
    assert (opened.version, opened.version_index) == ("v1", 1)


def test_staleness_is_zero_for_the_first_batch_and_one_for_every_later_one(bench: Bench) -> None:
    bench.start()
    for step in range(4):
        bench.seal(step)
        bench.send(critic_updated(step))
        bench.send(actor_updated(step, f"v{step + 1}"))
        if step + 1 < 4:
            for event in bench.seal(step + 1):
                if isinstance(event, BarrierOpened):
                    bench.answer(event.step, f"v{step + 1}")
    trained_before = range(4)
    assert [k - s.version_index for k, s in zip(trained_before, bench.opened, strict=True)] == [0, 1, 1, 1]


def test_an_evaluation_stands_alone_and_the_last_one_has_the_final_weights(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "schedule.recalibrate_steps=0", "schedule.train_steps=1")
    bench.start()
    assert [s.purpose for s in bench.opened] == ["evaluate"]
    bench.seal(0)
    assert [s.temperature for s in bench.opened] == [1.0, 0.0]
    bench.seal(1)
    assert [s.step for s in bench.opened] == [0, 1, 2]
    bench.seal(2)
    bench.send(critic_updated(2))
    [barrier] = bench.send(actor_updated(2, "v1"))
    assert isinstance(barrier, BarrierOpened)
    bench.answer(barrier.step, "v1")
    assert (bench.opened[-1].purpose, bench.opened[-1].version) == ("evaluate", "v1")
    bench.seal(3)
    assert (bench.opened[-1].temperature, bench.opened[-1].version) == (0.0, "v1")
    assert bench.send(ModelExported(version="v1", folder="model")) == []
    assert [type(e) for e in bench.seal(4)] == [RunFinished]


def test_the_critic_may_finish_after_the_actor_without_a_step_opening_early(bench: Bench) -> None:
    bench.start()
    bench.seal(0)
    bench.seal(1)
    assert bench.send(actor_updated(0, "v1")) == []
    assert [type(e) for e in bench.send(critic_updated(0))] == [BarrierOpened]


def test_recalibration_steps_wait_for_the_critic_alone_and_publish_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "schedule.evaluate=false", "schedule.recalibrate_steps=3", "schedule.train_steps=1")
    bench.start()
    bench.seal(0)
    bench.seal(1)
    [opened] = bench.send(critic_updated(0))
    assert isinstance(opened, StepOpened)
    assert (opened.step, opened.version) == (2, "v0")


def test_after_warm_up_the_policy_is_published_as_it_was_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "schedule.evaluate=false", "schedule.warmup_steps=2", "schedule.train_steps=1")
    bench.start()
    bench.seal(0)
    bench.seal(1)
    bench.send(critic_updated(0))
    # step 2 recalibrates: it samples from the first weights, which are still the published ones
    [opened] = bench.send(actor_updated(0, "warm1"))
    assert isinstance(opened, StepOpened)
    assert (opened.purpose, opened.version) == ("recalibrate", "v0")


def test_a_run_that_stood_still_in_a_barrier_goes_on_when_it_is_resumed(bench: Bench) -> None:
    """The deadline passed while nothing ran, so it fires at once: the replica gets time to start and answer."""
    bench.send(CriticInitialised(weights="c0", state=payload("c0")))
    bench.send(ActorInitialised(version="v0", weights=payload("v0"), state=payload("s0")))
    fired = TimerFired(key="barrier/-1/deadline", due_s=120.0)
    [wait] = bench.publisher.decide(bench.state, fired).effects
    assert isinstance(wait, Wait)
    bench.answer(-1, "v0")
    assert [opened.step for opened in bench.opened] == [0, 1]


def test_a_batch_without_one_graded_trial_fails_the_run(bench: Bench) -> None:
    bench.start()
    [failed] = bench.send(
        BatchSealed(step=0, purpose="train", items=(), digest="b", launched=24, failed=24, cancelled=0)
    )
    assert isinstance(failed, RunFailed)
    assert "24 trials" in failed.reason


def test_a_short_batch_stops_the_run_only_when_policy_says_so(tmp_path: Path) -> None:
    short = BatchShort(step=0, wanted=24, possible=20, causes={"infra": 4})
    patient = Bench(tmp_path)
    patient.start()
    assert patient.send(short) == []
    strict = Bench(tmp_path, "rollout.on_batch_short=stop")
    strict.start()
    [failed] = strict.send(short)
    assert isinstance(failed, RunFailed)
    assert "4 x infra" in failed.reason


def test_every_training_step_draws_other_tasks_until_the_pool_is_used_up(bench: Bench) -> None:
    schedule = bench.publisher._schedule
    drawn = [spec.task for step in range(4) for spec in schedule.planned(step).trials]
    assert len(set(drawn)) == len(drawn) == 96  # smoke: 4 steps of 24 are its pool of 96


def test_a_critic_update_alone_never_counts_as_a_trained_step(bench: Bench) -> None:
    bench.start()
    bench.seal(0)
    bench.seal(1)
    assert bench.send(critic_updated(0)) == []


# --- stopping after the phase -----------------------------------------------------------------------------------------


def started(session: int) -> RunStarted:
    return RunStarted(
        run="r", config_digest="", config_toml="", code_version="", environment={}, resumed=session > 1, session=session
    )


def test_while_the_disk_is_low_nothing_opens_and_what_is_under_way_comes_to_its_end(bench: Bench) -> None:
    bench.train_step_zero()
    assert bench.send(DiskLow(free_bytes=1)) == []
    assert bench.seal(1) == []  # the barrier that would open step 2 stays shut
    bench.send(critic_updated(1))
    assert bench.send(actor_updated(1, "v2")) == []
    [barrier] = bench.send(DiskFreed(free_bytes=10**12))
    assert isinstance(barrier, BarrierOpened)
    _, opened = bench.answer(barrier.step, "v1")
    assert isinstance(opened, StepOpened)
    assert (opened.step, opened.version) == (2, "v1")


def test_a_barrier_that_is_open_when_the_disk_gets_low_is_not_left_open(bench: Bench) -> None:
    bench.train_step_zero()
    [barrier] = bench.seal(1)
    assert isinstance(barrier, BarrierOpened)
    bench.send(DiskLow(free_bytes=1))
    assert [type(event) for event in bench.answer(barrier.step, "v1")] == [WeightsPublished, StepOpened]


def test_a_session_that_begins_asks_anew_whether_the_disk_is_low(bench: Bench) -> None:
    bench.send(DiskLow(free_bytes=1))
    bench.send(
        RunStarted(run="r", config_digest="", config_toml="", code_version="", environment={}, resumed=True, session=2)
    )
    bench.start()
    assert [opened.step for opened in bench.opened] == [0, 1]


STOP = StopRequested(by="SIGINT")


def test_a_stop_waits_for_the_rollout_under_way_and_the_training_before_it(bench: Bench) -> None:
    bench.send(started(1))
    bench.start()
    assert bench.send(STOP) == []
    assert bench.seal(0) == []
    assert bench.send(critic_updated(0)) == []
    assert bench.send(actor_updated(0, "v1")) == []
    assert bench.seal(1) == [RunPaused(step=2, session=1)]


def test_a_paused_publisher_says_so_once_and_opens_nothing(bench: Bench) -> None:
    bench.send(started(1))
    assert bench.send(STOP) == [RunPaused(step=0, session=1)]
    assert bench.send(STOP) == []
    assert bench.send(CriticInitialised(weights="c0", state=payload("c0"))) == []
    assert bench.send(ActorInitialised(version="v0", weights=payload("v0"), state=payload("s0"))) == []
    [barrier] = bench.send(started(2))
    assert isinstance(barrier, BarrierOpened)


def test_what_happened_while_it_was_paused_is_not_lost_on_the_resumed_run(bench: Bench) -> None:
    bench.send(started(1))
    bench.start()
    bench.seal(0)
    bench.seal(1)
    bench.send(critic_updated(0))
    [barrier] = bench.send(actor_updated(0, "v1"))
    assert isinstance(barrier, BarrierOpened)
    assert bench.send(STOP) == [RunPaused(step=2, session=1)]  # in the barrier nothing is under way
    assert bench.send(GenerationQuiesced(step=barrier.step, replica="sampler")) == []
    [offered] = bench.send(started(2))
    assert isinstance(offered, WeightsOffered)
    assert bench.send(STOP) == [RunPaused(step=2, session=2)]
    assert bench.send(WeightsLoaded(step=barrier.step, replica="sampler", digest="v1", seconds=0.1)) == []
    published, opened = bench.send(started(3))
    assert isinstance(published, WeightsPublished)
    assert isinstance(opened, StepOpened)
    assert (opened.step, opened.version) == (2, "v1")


def test_a_stop_of_an_earlier_session_that_is_read_late_ends_that_session_and_no_other(bench: Bench) -> None:
    bench.send(started(1))
    assert bench.send(STOP) == [RunPaused(step=0, session=1)]
    bench.send(started(2))
    bench.start()
    assert [s.step for s in bench.opened] == [0, 1]
    assert not bench.state.stopping


def test_a_run_with_nothing_left_to_open_finishes_instead_of_pausing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "schedule.evaluate=false", "schedule.recalibrate_steps=0", "schedule.train_steps=1")
    bench.send(started(1))
    bench.start()
    assert bench.send(STOP) == []
    bench.seal(0)
    bench.send(critic_updated(0))
    bench.send(actor_updated(0, "v1"))
    assert [type(e) for e in bench.send(ModelExported(version="v1", folder="model"))] == [RunFinished]


def finishing(tmp_path: Path) -> Bench:
    """All is done, but the step's sandboxes live."""
    bench = Bench(tmp_path, "schedule.evaluate=false", "schedule.recalibrate_steps=0", "schedule.train_steps=1")
    bench.start()
    bench.seal(0)
    bench.state.held.update({"s0.t0", "s0.t1"})
    bench.send(critic_updated(0))
    bench.send(actor_updated(0, "v1"))
    assert bench.send(ModelExported(version="v1", folder="model")) == []
    return bench


def test_a_run_is_finished_when_its_last_sandbox_is_reclaimed(tmp_path: Path) -> None:
    bench = finishing(tmp_path)
    assert bench.send(reclaimed("s0.t1")) == []
    assert [type(e) for e in bench.send(reclaimed("s0.t0"))] == [RunFinished]


def test_the_wait_for_the_last_sandbox_has_ended_when_the_run_is_finished(tmp_path: Path) -> None:
    bench = finishing(tmp_path)
    bench.send(EffectIntended(key=RECLAIM_KEY, effect_kind="Wait", effect=b""))
    bench.send(reclaimed("s0.t1"))
    assert bench.send(reclaimed("s0.t0")) == []
    assert bench.publisher.decide(bench.state, reclaimed("s0.t0")).cancels == [RECLAIM_KEY]
    finished = EffectFinished(key=RECLAIM_KEY, status="cancelled", seconds=1.0, attempt=1)
    assert [type(e) for e in bench.send(finished)] == [RunFinished]


def test_a_sandbox_that_cannot_be_reclaimed_does_not_hold_up_the_end_for_ever(tmp_path: Path) -> None:
    bench = finishing(tmp_path)
    exported = ModelExported(version="v1", folder="model")
    [wait] = bench.publisher.decide(bench.state, exported).effects
    assert isinstance(wait, Wait)
    assert [type(e) for e in bench.send(TimerFired(key=wait.key, due_s=wait.seconds))] == [RunFinished]


def test_an_evaluation_under_way_is_finished_and_the_next_one_waits_for_the_resumed_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "schedule.recalibrate_steps=0", "schedule.train_steps=1")
    bench.send(started(1))
    bench.start()
    assert bench.send(STOP) == []
    assert bench.seal(0) == [RunPaused(step=1, session=1)]
    [opened] = bench.send(started(2))
    assert isinstance(opened, StepOpened)
    assert (opened.step, opened.purpose, opened.temperature) == (1, "evaluate", 0.0)


@settings(max_examples=40, deadline=None)
@given(stops=st.sets(st.integers(0, 40), max_size=6))
def test_wherever_a_run_is_stopped_and_resumed_it_opens_the_same_steps_with_the_same_weights(stops: set[int]) -> None:
    assert opened_by_a_run(stops) == opened_by_a_run(frozenset())


def opened_by_a_run(stops: Set[int]) -> list[tuple[int, str, str]]:
    """A whole run against a world that answers everything, stopped before the moves ``stops`` and resumed once paused."""
    sets = (
        "schedule.recalibrate_steps=1",
        "schedule.train_steps=3",
        "tasks.train_count=24",
        "tasks.heldout_per_level=1",
    )
    bench = Bench(Path("unused"), *sets)
    world = World(bench)
    world.hand(started(1))
    session = 1
    for move in range(400):
        if move in stops:
            world.hand(STOP)
        if bench.state.ended:
            return [(s.step, s.purpose, s.version) for s in bench.opened]
        if bench.state.paused:
            session += 1
            world.hand(started(session))
        elif world.waiting:
            world.hand(world.waiting.pop(0))
    raise AssertionError(f"the run stands still: {bench.state}")


def last_call(bench: Bench) -> Sequence[AnyEvent]:
    """The barrier's deadline and the last call pass."""
    step = bench.state.barrier.step if bench.state.barrier is not None else None
    [call] = bench.publisher.decide(bench.state, TimerFired(key=f"barrier/{step}/deadline", due_s=120.0)).effects
    return bench.send(TimerFired(key=call.key, due_s=60.0))


def at_the_first_barrier(tmp_path: Path, *sets: str) -> Bench:
    bench = Bench(tmp_path, "schedule.evaluate=false", *sets)
    bench.send(CriticInitialised(weights="c0", state=payload("c0")))
    bench.send(ActorInitialised(version="v0", weights=payload("v0"), state=payload("s0")))
    return bench


def test_a_ready_replica_that_does_not_answer_fails_the_run_by_name(tmp_path: Path) -> None:
    bench = at_the_first_barrier(tmp_path)
    bench.send(ActorStarted(actor="sampler", journal="sampler", epoch=1, pid=1))
    bench.send(ActorReady(actor="sampler", epoch=1, seconds=1.0))
    [failed] = last_call(bench)
    assert isinstance(failed, RunFailed)
    assert failed.reason == ("barrier after step -1: no answer within 180 s: sampler is ready; see logs/sampler.log")


def test_a_replica_that_is_being_started_gets_the_time_for_it_and_then_the_cause_is_named(tmp_path: Path) -> None:
    bench = at_the_first_barrier(tmp_path)
    for _ in range(2):
        bench.send(ActorStarted(actor="sampler", journal="sampler", epoch=1, pid=1))
        bench.send(ActorStopped(actor="sampler", epoch=1, exit_code=-9, reason="not ready within 600 s"))
    assert last_call(bench) == []
    [failed] = bench.send(TimerFired(key="barrier/-1/start", due_s=1800.0))
    assert isinstance(failed, RunFailed)
    assert failed.reason == (
        "barrier after step -1: no answer within 1980 s: sampler is not ready and has stopped 2 times, the last time: "
        "not ready within 600 s; see logs/sampler.log"
    )


def test_loading_the_weights_may_take_any_time(tmp_path: Path) -> None:
    """The barrier's deadline is for the answer that nothing is being generated."""
    bench = at_the_first_barrier(tmp_path)
    quiet = GenerationQuiesced(step=-1, replica="sampler")
    bench.state = bench.publisher.fold(bench.state, quiet)
    offering = bench.publisher.decide(bench.state, quiet)
    assert set(offering.cancels) == {"barrier/-1/deadline", "barrier/-1/last-call", "barrier/-1/start"}
    for event in offering.events:
        bench.state = bench.publisher.fold(bench.state, event)
    # Those that had fired when they were cancelled.
    for key in offering.cancels:
        assert bench.publisher.decide(bench.state, TimerFired(key=key, due_s=1.0)) == NOTHING
    assert bench.send(WeightsLoaded(step=-1, replica="sampler", digest="v0", seconds=7200.0))


def test_of_several_replicas_those_that_are_not_quiet_are_named(tmp_path: Path) -> None:
    bench = at_the_first_barrier(tmp_path, "rollout.sampler_replicas=2")
    for name in ("sampler", "sampler1"):
        bench.send(ActorReady(actor=name, epoch=1, seconds=1.0))
    assert bench.send(GenerationQuiesced(step=-1, replica="sampler")) == []
    [failed] = last_call(bench)
    assert isinstance(failed, RunFailed)
    assert failed.reason == "barrier after step -1: no answer within 180 s: sampler1 is ready; see logs/sampler1.log"


def test_a_resumed_run_forgets_what_the_session_before_said_of_its_replicas(tmp_path: Path) -> None:
    bench = at_the_first_barrier(tmp_path)
    bench.send(ActorReady(actor="sampler", epoch=1, seconds=1.0))
    bench.send(started(2))
    assert not bench.state.replica("sampler").ready


class World:
    """What the other actors would answer, in order: ``waiting``."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.waiting: list[AnyEvent] = [
            CriticInitialised(weights="c0", state=payload("c0")),
            ActorInitialised(version="v0", weights=payload("v0"), state=payload("s0")),
        ]

    def hand(self, event: AnyEvent) -> None:
        for said in self.bench.send(event):
            self.waiting += self.answers(said)

    def answers(self, said: AnyEvent) -> list[AnyEvent]:
        match said:
            case BarrierOpened():
                return [GenerationQuiesced(step=said.step, replica="sampler")]
            case WeightsOffered():
                return [WeightsLoaded(step=said.step, replica="sampler", digest=said.digest, seconds=0.1)]
            case StepOpened():
                item = BatchItem(trial=f"s{said.step}.t0", index=0, trajectory_digest="00", reward=0.5)
                sealed = BatchSealed(
                    step=said.step, purpose=said.purpose, items=(item,), digest="b", launched=1, failed=0, cancelled=0
                )
                trained = [critic_updated(said.step)] if said.purpose != "evaluate" else []
                if said.purpose == "train":
                    trained.append(actor_updated(said.step, f"v{said.step}"))
                last = said.step == self.bench.publisher._schedule.last("train")
                exported = [ModelExported(version="v", folder="model")] if last else []
                freed = [reclaimed(spec.trial) for spec in said.trials]
                return [sealed, *trained, *exported, *freed]
            case _:
                return []
