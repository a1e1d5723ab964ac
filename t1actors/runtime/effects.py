"""Performs effects: one task each, with its deadline, its cancelling and its measured seconds.

Guarantees: exactly one outcome for each effect begun: the result events and then ``EffectFinished`` (or
``TimerFired`` for a ``Wait``), handed over together; nothing at all when the host stops in between, so that the
intent stays open for the next incarnation. What ``perform`` raises ends the actor.

A deadline is for one attempt: time during which nobody performed the effect does not count. A ``Wait`` is for the
world: what passed since its intent was committed counts, also while the actor was down.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import anyio
import anyio.lowlevel

from t1actors.events import AnyEvent, EffectFinished, EffectStatus, ProgressReported, TimerFired
from t1actors.nursery import task_group
from t1actors.runtime.actor import Effect, Performing, Wait
from t1actors.runtime.clock import Clock
from t1actors.runtime.errors import EffectStalled
from t1actors.runtime.intents import Intent
from t1actors.runtime.moments import NOBODY, Moments

Tell: TypeAlias = Callable[[Intent, Sequence[AnyEvent]], Awaitable[bool]]


async def _to_nobody(intent: Intent, events: Sequence[AnyEvent]) -> bool:
    return False


class Performer(Protocol):
    """What this file needs of an actor."""

    async def perform(self, effect: Effect, performing: Performing) -> Sequence[AnyEvent]:
        """As ``Actor.perform``."""
        ...


@dataclass
class _Progress:
    """When an effect last showed some."""

    reported_s: float


class Effects:
    """Performs durable intents and delivers what became of them."""

    def __init__(
        self,
        performer: Performer,
        *,
        clock: Clock,
        deliver: Callable[[list[AnyEvent]], None],
        tell: Tell = _to_nobody,
        stalled: Callable[[str], Awaitable[None]] | None = None,
        moments: Moments = NOBODY,
    ) -> None:
        """``deliver`` takes own events in the order in which they are to be applied; ``tell`` takes those of an effect that
        is under way, and says whether they are durable (``Performing.tell``); ``stalled`` is told of an effect that made no
        progress for too long, before ``EffectStalled`` is raised: what it hangs in may keep that from arriving."""
        self._performer = performer
        self._moments = moments
        self._clock = clock
        self._deliver = deliver
        self._tell = tell
        self._stalled = stalled

    async def perform(self, intent: Intent, effect: Effect) -> None:
        """Performs ``intent``, whose event is durable."""
        if intent.cancel_requested:
            self._deliver([self._finished(intent, "cancelled", 0.0, {})])
            return
        deadline_s = intent.event.deadline_s
        progress = _Progress(self._clock.monotonic())
        performing = Performing(
            attempt=intent.attempt,
            report=self._report(intent.event.key, progress),
            tell=partial(self._tell, intent),
        )
        results: Sequence[AnyEvent] = ()
        started_s = self._clock.monotonic()
        intent.scope = anyio.CancelScope() if deadline_s is None else anyio.move_on_after(deadline_s)
        with intent.scope:
            if isinstance(effect, Wait):
                passed_s = max(0.0, (self._clock.wall_ns() - intent.intended_wall_ns) / 1e9)
                await anyio.sleep(max(0.0, effect.seconds - passed_s))
            else:
                self._moments.before_act(type(effect).__name__, effect.key)
                results = await self._watched(effect, performing, progress)
                self._moments.after_act(type(effect).__name__, effect.key)
        seconds = self._clock.monotonic() - started_s
        if intent.scope.cancelled_caught:
            status: EffectStatus = "cancelled" if intent.cancel_requested else "deadline"
            self._deliver([self._finished(intent, status, seconds, performing.phases)])
        elif isinstance(effect, Wait):
            self._deliver([TimerFired(key=intent.event.key, due_s=effect.seconds)])
        else:
            self._deliver([*results, self._finished(intent, "done", seconds, performing.phases)])

    def cancel(self, intent: Intent) -> None:
        """Stops ``intent`` if it is being performed; one that was not begun sees ``cancel_requested``."""
        if intent.scope is not None:
            intent.scope.cancel()

    def _finished(
        self, intent: Intent, status: EffectStatus, seconds: float, phases: dict[str, float]
    ) -> EffectFinished:
        return EffectFinished(
            key=intent.event.key, status=status, seconds=seconds, attempt=intent.attempt, phases=phases
        )

    async def _watched(self, effect: Effect, performing: Performing, progress: _Progress) -> Sequence[AnyEvent]:
        if effect.stall_s is None:  # nearly all: a task beside each would cost more than some of them
            return await self._performer.perform(effect, performing)
        async with task_group() as tasks:
            tasks.start_soon(self._watch, effect.key, effect.stall_s, progress)
            results = await self._performer.perform(effect, performing)
            tasks.cancel_scope.cancel()
        return results

    async def _watch(self, key: str, stall_s: float, progress: _Progress) -> None:
        while (left_s := progress.reported_s + stall_s - self._clock.monotonic()) > 0:  # noqa: ASYNC110 - time is waited for
            await anyio.sleep(left_s)
        reason = f"{key} has made no progress for {stall_s:,.0f} s"
        if self._stalled is not None:
            await self._stalled(reason)
        raise EffectStalled(reason)

    def _report(self, key: str, progress: _Progress) -> Callable[[float, float, str], Awaitable[None]]:
        async def report(done: float, total: float, unit: str) -> None:
            progress.reported_s = self._clock.monotonic()
            self._deliver([ProgressReported(key=key, done=done, total=total, unit=unit)])
            await anyio.lowlevel.checkpoint()

        return report
