"""An endpoint's journal that is a run's own log: what one trial's session commits, its sampler tells.

Guarantees: those of ``endpoint.journal``. Only turns are taken: a program reports no reward and closes no session, the run
does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from anyio import to_thread

from t1actors.events import AnyEvent, TurnSampled, UnknownEvent
from t1actors.harness.endpoint.desk import closed
from t1actors.harness.endpoint.journal import Events
from t1actors.payloads import Blobs


class ToldJournal:
    """A ``Journal``. ``events``: what the log has of the trial; ``tell``: ``runtime.actor.Performing.tell``."""

    def __init__(
        self, blobs: Blobs, events: Sequence[AnyEvent], tell: Callable[[Sequence[AnyEvent]], Awaitable[bool]]
    ) -> None:
        self._blobs = blobs
        self._events = tuple(events)
        self._tell = tell

    @property
    def blobs(self) -> Blobs:
        return self._blobs

    @property
    def failed(self) -> str:
        return ""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        yield

    def events(self) -> Iterator[AnyEvent | UnknownEvent]:
        yield from self._events

    async def commit(self, prepare: Callable[[Blobs], Events]) -> Events:
        events = await to_thread.run_sync(prepare, self._blobs)
        assert all(isinstance(event, TurnSampled) for event in events), f"a trial's session takes turns alone: {events}"
        if not await self._tell(events):
            raise closed(events[0].trial if isinstance(events[0], TurnSampled) else "")
        return events
