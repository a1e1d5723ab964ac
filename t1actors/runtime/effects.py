"""Performs effects: one task each, with its deadline, its cancelling and its measured seconds.

Guarantees: exactly one outcome for each effect begun: the result events and then ``EffectFinished`` (or
``TimerFired`` for a ``Wait``), handed over together; nothing at all when the host stops in between, so that the
intent stays open for the next incarnation. What ``perform`` raises ends the actor.

A deadline is for one attempt: time during which nobody performed the effect does not count. A ``Wait`` is for the
world: what passed since its intent was committed counts, also while the actor was down.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import anyio
import anyio.lowlevel

from t1actors.events import AnyEvent, EffectFinished, EffectStatus, ProgressReported, TimerFired
from t1actors.runtime.actor import Effect, Performing, Wait
from t1actors.runtime.clock import Clock
from t1actors.runtime.intents import Intent
from t1actors.runtime.moments import NOBODY, Moments


class Performer(Protocol):
    """What this file needs of an actor."""

    async def perform(self, effect: Effect, performing: Performing) -> Sequence[AnyEvent]:
        """As ``Actor.perform``."""
        ...


class Effects:
    """Performs durable intents and delivers what became of them."""

    def __init__(
        self,
        performer: Performer,
        *,
        clock: Clock,
        deliver: Callable[[list[AnyEvent]], None],
        moments: Moments = NOBODY,
    ) -> None:
        """``deliver`` takes own events in the order in which they are to be applied."""
        self._performer = performer
        self._moments = moments
        self._clock = clock
        self._deliver = deliver

    async def perform(self, intent: Intent, effect: Effect) -> None:
        """Performs ``intent``, whose event is durable."""
        if intent.cancel_requested:
            self._deliver([self._finished(intent, "cancelled", 0.0, {})])
            return
        deadline_s = intent.event.deadline_s
        performing = Performing(attempt=intent.attempt, report=self._report(intent.event.key))
        results: Sequence[AnyEvent] = ()
        started_s = self._clock.monotonic()
        intent.scope = anyio.CancelScope() if deadline_s is None else anyio.move_on_after(deadline_s)
        with intent.scope:
            if isinstance(effect, Wait):
                passed_s = max(0.0, (self._clock.wall_ns() - intent.intended_wall_ns) / 1e9)
                await anyio.sleep(max(0.0, effect.seconds - passed_s))
            else:
                self._moments.before_act(type(effect).__name__, effect.key)
                results = await self._performer.perform(effect, performing)
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

    def _report(self, key: str) -> Callable[[float, float, str], Awaitable[None]]:
        async def report(done: float, total: float, unit: str) -> None:
            self._deliver([ProgressReported(key=key, done=done, total=total, unit=unit)])
            await anyio.lowlevel.checkpoint()

        return report
