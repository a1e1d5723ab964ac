"""Publisher: opens steps, holds the barrier between them, and publishes each version of the weights once.

Guarantees:
- Two steps of a segment are in flight at most: rollout of step t+1 overlaps training of step t. StepOpened(t+2) needs step
  t trained and BatchSealed(t+1); it stands in one frame with the WeightsPublished that it uses.
- An evaluation stands alone: it opens when everything before it is done, and nothing opens beside it.
- Hence the staleness of training batches is 0 for the first and exactly 1 for every later one.
- A replica that is given up answers no barrier any more; its trials that had not ended fail, and others sample what
  replaces them.
- Weights are offered once a version, when every replica has said that it generates nothing; one that has not said so by the
  barrier's deadline fails the run by name, and what is known of it. The deadline of one that is being started is the longer.
  Loading has none: as long as it goes on it shows progress, and a process that shows none is killed (rollout.load_stall_s).
- Once a stop is requested nothing opens: when no rollout is under way and the next step could open, RunPaused says so, once a
  session. The next RunStarted takes both back and goes on where this one stopped. A run with nothing left to open simply
  finishes.
- A task in quarantine is drawn no more; a step for which no task is left fails the run, and says why there is none.
- While the disk is low nothing opens either, and no barrier that would open something: what is under way comes to its end.
- A run is finished when nothing of it is left to do: the last sandbox is reclaimed, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from t1actors.actors.barrier import Barrier, Replica, Version
from t1actors.actors.quarantine import named
from t1actors.actors.replicas import owner, replica_names
from t1actors.actors.schedule import Schedule
from t1actors.events import (
    ActorInitialised,
    ActorReady,
    ActorStarted,
    ActorStopped,
    ActorUpdated,
    AnyEvent,
    BarrierOpened,
    BatchSealed,
    BatchShort,
    CriticInitialised,
    CriticUpdated,
    DiskFreed,
    DiskLow,
    EffectFinished,
    EffectIntended,
    EpisodeEnded,
    GenerationQuiesced,
    ModelExported,
    ReplicaReclaimed,
    RunFailed,
    RunFinished,
    RunPaused,
    RunStarted,
    SandboxReclaimed,
    StepOpened,
    StopRequested,
    TaskQuarantined,
    TimerFired,
    TrialCancelled,
    TrialFailed,
    TrialReplaced,
    UnknownEvent,
    WeightsLoaded,
    WeightsOffered,
    WeightsPublished,
)
from t1actors.runtime.actor import NOTHING, ActorContext, Decision, Effect, Performing, Wait

BARRIER_DEADLINE_S = 120.0
LAST_CALL_S = 60.0
"""Granted once more when the deadline has passed: it counts the time in which an interrupted run stood still, too, and
a replica that starts with the resumed run must get the time to answer."""
START_DEADLINE_S = 1800.0
"""And what a replica gets then that is being started, once or again: a large model takes minutes to load."""
RECLAIM_KEY = "finish/reclaimed"
RECLAIM_DEADLINE_S = 60.0
"""How long the end of a run waits for its last sandboxes: one that cannot be killed holds up nobody for ever."""


@dataclass
class PublisherState:
    """How far the run is: what is opened, sealed and trained, which version is out, and the open barrier."""

    opened: int = 0
    sealed: set[int] = field(default_factory=set[int])
    critic_done: set[int] = field(default_factory=set[int])
    actor_done: set[int] = field(default_factory=set[int])
    initial: Version | None = None
    critic_ready: bool = False
    updated: dict[int, Version] = field(default_factory=dict[int, Version])
    """Step -> the version that its update made."""
    published: str = ""
    barrier: Barrier | None = None
    exported: bool = False
    ended: bool = False
    session: int = 0
    stopping: bool = False
    """A stop was requested in this session."""
    paused: bool = False
    disk_low: bool = False
    held: set[str] = field(default_factory=set[str])
    """Trials that may have a sandbox."""
    replicas: dict[str, Replica] = field(default_factory=dict[str, Replica])
    reclaimed: set[str] = field(default_factory=set[str])
    """Replicas that were given up in this session."""
    sampled_by: dict[str, str] = field(default_factory=dict[str, str])
    """Trials whose episode has not ended, and which replica has them."""
    reclaiming: bool = False
    """The end waits for them."""
    quarantined: dict[str, str] = field(default_factory=dict[str, str])
    """Tasks for which no sandbox can be made, and why; ``not_made``: why the last one could not."""
    not_made: str = ""

    def replica(self, name: str) -> Replica:
        """What is known of it; nothing yet before it is started."""
        return self.replicas.get(name, Replica())


class Publisher:
    """See the module."""

    reads = frozenset({"sampler", "assembler", "critic", "actor", "pool"})
    effect_type = Wait

    def __init__(self, context: ActorContext) -> None:
        self._schedule = Schedule(context.config, context.run_dir)
        self._config = context.config
        self._count = context.config.rollout.sampler_replicas
        self._replicas = frozenset(replica_names(self._count))

    def initial(self) -> PublisherState:
        return PublisherState()

    def fold(self, state: PublisherState, event: AnyEvent | UnknownEvent) -> PublisherState:
        match event:
            case RunStarted():
                state.session, state.stopping, state.paused = event.session, False, False
                state.disk_low = False
                state.replicas = {}
                state.reclaimed.clear()
            case ReplicaReclaimed():
                state.reclaimed.add(event.replica)
            case ActorStarted() | ActorReady() | ActorStopped() if event.actor in self._replicas:
                replica = state.replicas.setdefault(event.actor, Replica())
                replica.ready = isinstance(event, ActorReady)
                if isinstance(event, ActorStopped):
                    replica.stopped, replica.reason = replica.stopped + 1, event.reason
            case DiskLow() | DiskFreed():
                state.disk_low = isinstance(event, DiskLow)
            case StopRequested():
                state.stopping = True
            case RunPaused():
                state.paused = True
            case ActorInitialised():
                state.initial = Version(event.version, 0, event.weights)
            case CriticInitialised():
                state.critic_ready = True
            case ActorUpdated():
                self._fold_update(state, event)
            case CriticUpdated():
                state.critic_done.add(event.step)
            case BatchSealed():
                state.sealed.add(event.step)
            case EffectIntended() | EffectFinished() | TimerFired() if event.key == RECLAIM_KEY:
                state.reclaiming = isinstance(event, EffectIntended)
            case StepOpened():
                state.opened = event.step + 1
                state.held.update(spec.trial for spec in event.trials)
                for spec in event.trials:
                    state.sampled_by[spec.trial] = owner(spec.index, self._count, event.reclaimed)
            case TrialReplaced():
                spec = event.replacement
                state.held.add(spec.trial)
                state.sampled_by[spec.trial] = owner(spec.index, self._count, event.reclaimed)
            case EpisodeEnded() | TrialCancelled() | TrialFailed():
                state.sampled_by.pop(event.trial, None)
                if isinstance(event, TrialFailed) and event.creating:
                    state.not_made = f"{event.cause}: {event.detail}"
            case SandboxReclaimed():
                state.held.discard(event.trial)
            case TaskQuarantined():
                state.quarantined[event.task] = f"{event.cause}: {event.detail}"
            case BarrierOpened():
                following = state.opened
                state.barrier = Barrier(event.step, self._version_for(state, following), following)
            case GenerationQuiesced() if state.barrier is not None and state.barrier.step == event.step:
                state.barrier.quiesced.add(event.replica)
            case WeightsOffered() if state.barrier is not None:
                state.barrier.offered = True
            case WeightsLoaded() if state.barrier is not None and state.barrier.version.digest == event.digest:
                state.barrier.loaded[event.replica] = event.seconds
            case WeightsPublished():
                state.published = event.version
                state.barrier = None
            case ModelExported():
                state.exported = True
            case RunFinished() | RunFailed():
                state.ended = True
            case _:
                pass
        return state

    def decide(self, state: PublisherState, event: AnyEvent | UnknownEvent) -> Decision:
        if state.ended:
            return NOTHING
        match event:
            case BatchShort() if self._config.rollout.on_batch_short == "stop":
                causes = ", ".join(f"{count} x {cause}" for cause, count in sorted(event.causes.items()))
                return _failed(
                    event.step,
                    f"step {event.step}: only {event.possible} of {event.wanted} trials can finish ({causes})",
                )
            case BatchSealed() if not event.items:
                return self._nothing_graded(state, event)
            case TimerFired() | EffectFinished() if event.key == RECLAIM_KEY:
                return self._finish(state)
            case TimerFired() if state.barrier is not None and not state.barrier.offered:
                return self._overdue(state, state.barrier, event.key)
            case (
                RunStarted()
                | StopRequested()
                | ActorInitialised()
                | CriticInitialised()
                | ActorUpdated()
                | CriticUpdated()
                | BatchSealed()
                | ModelExported()
                | DiskFreed()
            ):
                return self._advance(state)
            case GenerationQuiesced() | WeightsLoaded() if state.barrier is not None:
                return self._advance(state)
            case SandboxReclaimed() if not state.held:
                return self._advance(state)
            case ReplicaReclaimed():
                lost = self._lost(state)
                return Decision(events=lost) if lost else self._advance(state)
            case TrialReplaced():  # by an assembler that had not heard of it yet
                return Decision(events=self._lost(state))
            case _:
                return NOTHING

    async def perform(self, effect: Effect, performing: Performing) -> Sequence[AnyEvent]:
        raise AssertionError(f"the publisher has no effects of its own, got {effect.key}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    # --- which step may open, with which weights ------------------------------------------------------------------------

    def _fold_update(self, state: PublisherState, event: ActorUpdated) -> None:
        state.actor_done.add(event.step)
        before = self._latest(state, event.step, upto=event.step - 1)
        state.updated[event.step] = Version(event.weights_after, before.index + 1, event.weights)

    def _latest(self, state: PublisherState, step: int, *, upto: int) -> Version:
        """The newest version of ``step``'s lane made at or before step ``upto``. Warm-up trains a policy of its own (T1
        section 6); everything else follows the training steps."""
        warmup = self._schedule.purpose(step) == "warmup"
        lane = [s for s in state.updated if s <= upto and (self._schedule.purpose(s) == "warmup") == warmup]
        version = state.updated[max(lane)] if lane else state.initial
        assert version is not None
        return version

    def _version_for(self, state: PublisherState, step: int) -> Version:
        """What ``step`` samples from: the weights after step - 2, even where step - 1 is trained already (a publisher that
        was away finds it so), or staleness would not be 1. An evaluation has all that came before it."""
        overlap = 1 if self._schedule.purpose(step) == "evaluate" else 2
        return self._latest(state, step, upto=step - overlap)

    def _complete(self, state: PublisherState, step: int) -> bool:
        purpose = self._schedule.purpose(step)
        if step not in state.sealed:
            return False
        if purpose == "evaluate":
            return True
        return step in state.critic_done and (purpose == "recalibrate" or step in state.actor_done)

    def _may_open(self, state: PublisherState, step: int) -> bool:
        evaluate = self._schedule.purpose(step) == "evaluate"
        follows_evaluate = step > 0 and self._schedule.purpose(step - 1) == "evaluate"
        if evaluate or follows_evaluate:
            return all(self._complete(state, earlier) for earlier in range(max(0, step - 2), step))
        second_of_segment = step == 1 or (step >= 2 and self._schedule.purpose(step - 2) == "evaluate")
        if second_of_segment or step == 0:
            return True
        return self._complete(state, step - 2) and step - 1 in state.sealed

    def _at_rest(self, state: PublisherState) -> bool:
        """No rollout is under way, and there is a step that could open now: the place to stop at."""
        following = state.opened
        if following == len(self._schedule):
            return False
        sealed = all(step in state.sealed for step in range(max(0, following - 2), following))
        return sealed and (state.barrier is not None or self._may_open(state, following))

    def _advance(self, state: PublisherState) -> Decision:
        """The next move that the state allows, whatever brought it about: what a pause held back is found again."""
        if state.paused:
            return NOTHING
        if state.stopping and self._at_rest(state):
            return Decision(events=[RunPaused(step=state.opened, session=state.session)])
        if state.barrier is not None:
            return self._in_barrier(state, state.barrier)
        if state.initial is None or not state.critic_ready:
            return NOTHING
        following = state.opened
        if following == len(self._schedule):
            done = all(self._complete(state, step) for step in range(max(0, following - 2), following))
            if not (done and state.exported):
                return NOTHING
            if state.held:  # gone in a moment, or not at all
                return Decision(effects=[Wait(key=RECLAIM_KEY, seconds=RECLAIM_DEADLINE_S)])
            return Decision(cancels=[RECLAIM_KEY]) if state.reclaiming else self._finish(state)
        if state.disk_low or not self._may_open(state, following):
            return NOTHING
        if self._version_for(state, following).digest != state.published:
            step = following - 1 if following == 0 or self._schedule.purpose(following) == "evaluate" else following - 2
            return Decision(
                events=[BarrierOpened(step=step)],
                effects=[Wait(key=_deadline_key(step), seconds=BARRIER_DEADLINE_S)],
            )
        return self._open(state, following)

    def _lost(self, state: PublisherState) -> list[AnyEvent]:
        """What reclaimed replicas were sampling."""
        lost = [trial for trial, name in state.sampled_by.items() if name in state.reclaimed]
        detail = f"given up: {', '.join(sorted(state.reclaimed))}"
        return [TrialFailed(trial=trial, cause=ReplicaReclaimed.__name__, detail=detail) for trial in lost]

    def _overdue(self, state: PublisherState, barrier: Barrier, key: str) -> Decision:
        """A deadline of the barrier's, if ``key`` is one, passed before all replicas were quiet."""
        if key == _deadline_key(barrier.step):
            return Decision(effects=[Wait(key=_last_call_key(barrier.step), seconds=LAST_CALL_S)])
        missing = sorted(self._replicas - state.reclaimed - barrier.quiesced)
        if key == _last_call_key(barrier.step):
            if not all(state.replica(name).ready for name in missing):
                return Decision(effects=[Wait(key=_start_key(barrier.step), seconds=START_DEADLINE_S)])
            return self._unanswered(state, barrier, missing, BARRIER_DEADLINE_S + LAST_CALL_S)
        if key == _start_key(barrier.step):
            return self._unanswered(state, barrier, missing, BARRIER_DEADLINE_S + LAST_CALL_S + START_DEADLINE_S)
        return NOTHING

    def _unanswered(self, state: PublisherState, barrier: Barrier, missing: Sequence[str], seconds: float) -> Decision:
        known = "; ".join(f"{name} {state.replica(name)}" for name in missing)
        logs = ", ".join(f"logs/{name}.log" for name in missing)
        reason = f"barrier after step {barrier.step}: no answer within {seconds:.0f} s: {known}; see {logs}"
        return _failed(barrier.next_step, reason)

    def _finish(self, state: PublisherState) -> Decision:
        last = self._schedule.last("train")
        final = state.initial if last is None else state.updated[last]
        assert final is not None
        return Decision(events=[RunFinished(steps=len(self._schedule), version=final.digest)])

    def _nothing_graded(self, state: PublisherState, event: BatchSealed) -> Decision:
        reason = f"step {event.step}: not one of {event.launched} trials was graded; `t1 log cat` shows each cause"
        if state.quarantined or state.not_made:
            reason += f"; no sandbox can be made for {named(state.quarantined) or f'the last one, {state.not_made}'}"
        return _failed(event.step, reason)

    def _open(self, state: PublisherState, step: int) -> Decision:
        """The next step, or that it has no trials."""
        if self._schedule.planned(step, state.quarantined).trials:
            return Decision(events=self._opening(state, step))
        why = f"no task is left to draw, no sandbox can be made for any: {named(state.quarantined)}"
        return _failed(step, f"step {step}: {why}; make the tasks run and start a new run")

    def _opening(self, state: PublisherState, step: int) -> list[AnyEvent]:
        """StepOpened(step), and StepOpened(step + 1) when the two begin a segment."""
        version = self._version_for(state, step)
        steps = [step]
        begins = step == 0 or self._schedule.purpose(step - 1) == "evaluate"
        pair = step + 1
        if (
            begins
            and pair < len(self._schedule)
            and "evaluate" not in (self._schedule.purpose(step), self._schedule.purpose(pair))
            and self._version_for(state, pair).digest == version.digest
            and self._schedule.planned(pair, state.quarantined).trials
        ):
            steps.append(pair)
        opened: list[AnyEvent] = []
        for number in steps:
            planned = self._schedule.planned(number, state.quarantined)
            opened.append(
                StepOpened(
                    step=number,
                    purpose=planned.purpose,
                    version=version.digest,
                    version_index=version.index,
                    batch_size=planned.batch_size,
                    temperature=planned.temperature,
                    trials=planned.trials,
                    reclaimed=tuple(sorted(state.reclaimed)),
                )
            )
        return opened

    def _in_barrier(self, state: PublisherState, barrier: Barrier) -> Decision:
        answering = self._replicas - state.reclaimed
        if barrier.loaded.keys() >= answering:
            return self._publish(state, barrier)
        if barrier.offered or not barrier.quiesced >= answering:
            return NOTHING
        return Decision(
            events=[WeightsOffered(step=barrier.step, digest=barrier.version.digest, weights=barrier.version.weights)],
            cancels=[_deadline_key(barrier.step), _last_call_key(barrier.step), _start_key(barrier.step)],
        )

    def _publish(self, state: PublisherState, barrier: Barrier) -> Decision:
        version = barrier.version
        published = WeightsPublished(
            version=version.digest,
            version_index=version.index,
            size_bytes=version.weights.size_bytes,
            seconds=max(barrier.loaded.values()),
        )
        opening = self._open(state, barrier.next_step)
        return replace(opening, events=[published, *opening.events])


def _deadline_key(step: int) -> str:
    return f"barrier/{step}/deadline"


def _last_call_key(step: int) -> str:
    return f"barrier/{step}/last-call"


def _start_key(step: int) -> str:
    return f"barrier/{step}/start"


def _failed(step: int, reason: str) -> Decision:
    return Decision(events=[RunFailed(step=step, reason=reason)])
