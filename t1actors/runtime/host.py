"""Hosts one actor: applies events one at a time, commits what it consumed and emitted, performs its effects.

Guarantees:
- Exactly once: what was applied and what came of it are one atomic frame. Whatever dies whenever, the next incarnation
  continues from the last durable frame, and nothing is lost or done twice in the log.
- The state is always the fold of the journals in the recorded order; a restart comes to the same state.
- An effect begins only after its intent is durable. Open intents are performed again after a restart, with the same
  key and a higher attempt; so effects happen at least once and their results are recorded exactly once.
- A clean stop (cancellation) commits all that was applied; effects under way are left open for the next incarnation.
- Every ``run.snapshot_events`` applied events, and at a clean stop, what a recovery would rebuild is kept beside the journal:
  always the state that a durable frame left, never one ahead of it. That it could not be written harms nothing.

Left to others: which processes run and when they are restarted (``supervisor``, ``local``); what the events mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from t1actors.config import Config
from t1actors.events import (
    PRIVATE_EVENTS,
    ActorStarted,
    AnyEvent,
    CancelRequested,
    EffectFinished,
    TimerFired,
    decode,
    encode,
)
from t1actors.log.causal import CausalReader
from t1actors.log.interface import Frame, JournalWriter, Log, Watch
from t1actors.payloads import Blobs
from t1actors.runtime.actor import NOTHING, Actor, ActorContext, ActorFactory, Decision
from t1actors.runtime.appending import Appending, in_thread
from t1actors.runtime.clock import Clock, system_clock
from t1actors.runtime.committer import Committer
from t1actors.runtime.effects import Effects
from t1actors.runtime.errors import HostError
from t1actors.runtime.intents import Intent, Intents
from t1actors.runtime.keeper import Keeper
from t1actors.runtime.ledger import Batch, Ledger
from t1actors.runtime.moments import NOBODY, Moments
from t1actors.runtime.numerics import first_start, of_the_run
from t1actors.runtime.recovery import SUPERVISOR, Recovered, follows, recover
from t1actors.runtime.snapshots import Taken, beginning, form_of
from t1actors.runtime.told import Tellings, Told
from t1actors.runtime.wake import Wake

POLL_S = 0.25
"""The slow poll: a journal that grew unnoticed is read after this at the latest."""
MAX_BACKLOG = 8
"""Full frames waiting for the disk before no more inputs are applied."""
FRAMES_A_TURN = 32
"""Frames applied before other tasks get their turn."""


async def host_actor(
    factory: ActorFactory,
    *,
    name: str,
    log: Log,
    blobs: Blobs,
    config: Config,
    run_dir: Path,
    clock: Clock | None = None,
    code: str = "",
    appending: Appending | None = None,
    opened: Callable[[int], Awaitable[None]] | None = None,
    ready: Callable[[], Awaitable[None]] | None = None,
    stalled: Callable[[str], Awaitable[None]] | None = None,
    moments: Moments = NOBODY,
) -> NoReturn:
    """Hosts the actor ``name`` until it is cancelled or fails.

    The actor sees ``config`` with the kernels that the log was begun with (``numerics.of_the_run``).

    ``opened`` is awaited with the epoch as soon as the journal is held (from then on others may follow it);
    ``ready`` once the state is recovered and the actor is running; ``stalled`` with the reason before an effect that hangs
    ends the host, which it may keep from ending. ``appending`` says how a blocking append is called (None: in a worker
    thread). ``moments`` is told where it is between them.

    Raises:
        JournalFenced, JournalDamaged, JournalFailed: see ``log``.
        RecoveryError, HostError, RunDirectoryError: a restart cannot help.
        Exception: whatever the actor raised.
    """
    clock, appending = clock or system_clock(), appending or in_thread()
    writer = log.open_writer(name)
    try:
        if opened is not None:
            await opened(writer.epoch)
        moments.opened()
        context = ActorContext(
            name, run_dir, of_the_run(config, first_start(log)), blobs, writer.epoch, clock.monotonic
        )
        actor = factory(context)
        initial = actor.initial()
        form = form_of(initial)
        recovered = recover(
            log,
            name=name,
            epoch=writer.epoch,
            initial=initial,
            fold=actor.fold,
            reads=actor.reads,
            intents=Intents(name, actor.effect_type),
            snapshot=beginning(log, name, code=code, form=form),
        )
        async with log.watch() as watch, actor.running():
            moments.recovered()
            host = _Host(
                actor, name, log, writer, recovered, watch, clock,
                code=code, appending=appending, stalled=stalled, moments=moments,
                snapshots=Keeper(writer, code, form, config.run.snapshot_events, appending=appending),
                state_type=type(initial),
            )  # fmt: skip
            await host.run(ready)
    finally:
        writer.close()
    raise AssertionError("a host runs until it is cancelled or fails")


class _Host:
    def __init__(
        self,
        actor: Actor[object],
        name: str,
        log: Log,
        writer: JournalWriter,
        recovered: Recovered,
        watch: Watch,
        clock: Clock,
        *,
        code: str,
        appending: Appending,
        stalled: Callable[[str], Awaitable[None]] | None,
        moments: Moments,
        snapshots: Keeper,
        state_type: type,
    ) -> None:
        self._actor = actor
        self._name = name
        self._state = recovered.state
        self._intents = recovered.intents
        self._clock = clock
        self._watch = watch
        self._resume_at = recovered.positions
        self._positions = dict(recovered.positions)
        self._reader = CausalReader(log, positions=recovered.positions)
        self._ledger = Ledger(name, next_sequence=writer.next_sequence, vector=recovered.vector)
        self._committer = Committer(
            writer,
            self._ledger,
            clock=clock,
            code=code,
            appending=appending,
            durable=self._on_durable,
            moments=moments,
        )
        self._effects = Effects(
            actor, clock=clock, deliver=self._on_results, tell=self._tell, stalled=stalled, moments=moments
        )
        self._tellings = Tellings()
        self._wake = Wake()
        self._news = True
        """Journals may hold more than was read: looking costs a system call each, results of effects are no reason to."""
        self._durable: deque[Batch] = deque()
        self._results: deque[list[AnyEvent] | Told] = deque()
        self._applying: tuple[str, int] | None = None
        self._snapshots = snapshots
        self._state_type = state_type
        self._stopped = False
        for journal in recovered.positions:
            watch.add(journal)

    async def run(self, ready: Callable[[], Awaitable[None]] | None) -> None:
        try:
            async with anyio.create_task_group() as outer:
                outer.start_soon(self._commit_all)
                try:
                    async with anyio.create_task_group() as tasks:
                        try:
                            tasks.start_soon(self._watch_journals)
                            for intent in self._intents.all():
                                self._begin(tasks, intent)
                            if ready is not None:
                                await ready()
                            await self._apply_all(tasks)
                        finally:
                            self._drop_unapplied()  # who waits for them may be what this group waits for
                finally:
                    self._reader.close()
                    self._committer.close()
        finally:
            if self._stopped and self._committer.ended:
                self._snapshots.at_the_end(self._taken())

    # --- what wakes the loop ------------------------------------------------------------------------------------------

    async def _watch_journals(self) -> None:
        while True:
            await self._watch.wait(POLL_S)
            self._news = True
            self._wake.set()

    def _on_durable(self, batch: Batch, wall_ns: int) -> None:
        for intent in batch.begins:
            intent.intended_wall_ns = wall_ns
        self._snapshots.durable(batch)
        for told in batch.told:
            self._tellings.end(told, kept=True)
        if batch.begins or batch.cancels:
            self._durable.append(batch)
        self._wake.set()

    def _on_results(self, events: list[AnyEvent]) -> None:
        self._results.append(events)
        self._wake.set()

    async def _tell(self, intent: Intent, events: Sequence[AnyEvent]) -> bool:
        told = self._tellings.add(intent, events)
        if told is None:
            return False
        self._results.append(told)
        self._wake.set()
        await told.over.wait()
        return told.kept

    def _drop_unapplied(self) -> None:
        self._tellings.close()
        for told in self._results:
            if isinstance(told, Told):
                self._tellings.end(told, kept=False)

    async def _commit_all(self) -> None:
        try:
            await self._committer.run()
        finally:
            self._tellings.drop_all()

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def _apply_all(self, tasks: TaskGroup) -> NoReturn:
        try:
            while True:
                await self._apply_available(tasks)
                if self._ledger.due:
                    self._committer.notify()
                await self._wake.wait()
        except anyio.get_cancelled_exc_class():
            self._stopped = True
            raise
        except Exception as error:
            if self._applying is not None:
                error.add_note(
                    f"actor {self._name} was applying event {self._applying[1]} of journal {self._applying[0]}"
                )
            raise

    async def _apply_available(self, tasks: TaskGroup) -> None:
        applied = 0
        while self._ledger.backlog < MAX_BACKLOG:
            while self._durable:
                batch = self._durable.popleft()
                for intent in batch.begins:
                    self._begin(tasks, intent)
                for intent in batch.cancels:
                    self._effects.cancel(intent)
            while self._results:
                results = self._results.popleft()
                if isinstance(results, Told):
                    self._apply_told(results)
                else:
                    self._apply_own(results, decided=isinstance(results[-1], (EffectFinished, TimerFired)))
            self._take_snapshot(tasks)
            if not self._news:
                return
            # One at a time: this frame may make the journal known on which the next one rests.
            frames = self._reader.poll(max_frames=1)
            if not frames:
                self._news = False
                return
            self._apply_foreign(frames[0])
            applied += 1
            if applied % FRAMES_A_TURN == 0:
                self._committer.notify()
                await anyio.lowlevel.checkpoint()

    def _begin(self, tasks: TaskGroup, intent: Intent) -> None:
        tasks.start_soon(self._effects.perform, intent, self._intents.effect(intent))

    # --- applying -----------------------------------------------------------------------------------------------------

    def _apply_foreign(self, frame: Frame) -> None:
        journal, actor, ledger = frame.journal, self._actor, self._ledger
        ledger.rest_on(frame.head.vector)
        # An earlier incarnation may have committed in the middle of this frame.
        skipped = max(0, self._resume_at.get(journal, 0) - frame.base_sequence)
        sequence = frame.base_sequence + skipped
        for raw in frame.events[skipped:] if skipped else frame.events:
            self._applying = (journal, sequence)
            event = decode(raw)
            if isinstance(event, PRIVATE_EVENTS):
                ledger.consumed(journal, sequence)
                sequence += 1
                continue
            if journal == SUPERVISOR and isinstance(event, ActorStarted):
                self._learn(event)
            self._state = actor.fold(self._state, event)
            decision = actor.decide(self._state, event)
            outputs = self._outputs(decision) if decision is not NOTHING else None
            if outputs is None or not outputs.events:
                ledger.consumed(journal, sequence)
            else:
                ledger.room_for(outputs.events_bytes)
                outputs.hand_over(ledger.emitted(journal, sequence, outputs.events))
            sequence += 1
        self._applying = None
        self._positions[journal] = sequence
        self._snapshots.applied(len(frame.events) - skipped)

    def _learn(self, started: ActorStarted) -> None:
        if follows(self._name, self._actor.reads, started) and started.journal not in self._positions:
            self._positions[started.journal] = 0
            self._watch.add(started.journal)
            self._reader.add(started.journal)

    def _apply_told(self, told: Told) -> None:
        """What an effect tells, unless it is over or to be cancelled."""
        key = told.intent.event.key
        if told.intent.cancel_requested or self._intents.get(key) is not told.intent:
            self._tellings.end(told, kept=False)
        else:
            self._apply_own(told.events, decided=True).told.append(told)

    def _apply_own(self, results: Sequence[AnyEvent], *, decided: bool) -> Batch:
        """Folds own results; the last is decided on where it is to be (EffectFinished and TimerFired are, always the last).
        The frame's content that holds them."""
        first = self._ledger.next_sequence
        self._applying = (self._name, first)
        raws = [self._fold_own(event) for event in results]
        last = results[-1]
        decision = self._actor.decide(self._state, last) if decided else NOTHING
        outputs = self._outputs(decision)
        self._ledger.room_for(sum(map(len, raws)) + outputs.events_bytes)
        batch = self._ledger.own(raws, outputs.events)
        outputs.hand_over(batch)
        self._applying = None
        self._snapshots.applied(len(raws))
        return batch

    def _take_snapshot(self, tasks: TaskGroup) -> None:
        if self._snapshots.due:
            batch = self._ledger.end_frame()
            if batch is not None:
                self._snapshots.take(batch, self._taken())
                self._committer.notify()
        if self._snapshots.waiting:
            tasks.start_soon(self._snapshots.write)

    def _taken(self) -> Taken:
        if type(self._state) is not self._state_type:
            raise HostError(
                f"actor {self._name}: its state became a {type(self._state).__name__} and began as a "
                f"{self._state_type.__name__}, by which a snapshot of it would be read"
            )
        return Taken.now(self._state, self._positions, self._intents)

    def _fold_own(self, event: AnyEvent) -> bytes:
        raw = encode(event)
        self._intents.fold(event, attempt=1, wall_ns=0)
        self._state = self._actor.fold(self._state, event)
        return raw

    def _outputs(self, decision: Decision) -> _Outputs:
        """Folds what ``decision`` emits."""
        outputs = _Outputs([self._fold_own(event) for event in decision.events])
        for effect in decision.effects:
            event = self._intents.intended(effect)
            if event is not None:
                outputs.events.append(self._fold_own(event))
                intent = self._intents.open(effect.key)
                intent.effect = effect
                outputs.begins.append(intent)
        for key in decision.cancels:
            intent = self._intents.get(key)
            if intent is not None and not intent.cancel_requested:
                outputs.events.append(self._fold_own(CancelRequested(key=key)))
                outputs.cancels.append(intent)
        return outputs


@dataclass(slots=True)
class _Outputs:
    """What one decision emitted, encoded, and what is to happen once that is durable."""

    events: list[bytes]
    begins: list[Intent] = field(default_factory=list[Intent])
    cancels: list[Intent] = field(default_factory=list[Intent])

    @property
    def events_bytes(self) -> int:
        return sum(map(len, self.events))

    def hand_over(self, batch: Batch) -> None:
        batch.begins.extend(self.begins)
        batch.cancels.extend(self.cancels)
