"""When a snapshot of an actor is taken, and what becomes of it.

Guarantees: it is taken at the end of a frame and written after that frame is durable, so it is never ahead of the journal;
one at a time; a failure to write it is told and harms nothing else.
"""

from __future__ import annotations

from functools import partial

import structlog

from t1actors.log.interface import JournalWriter, Snapshot
from t1actors.runtime.appending import Appending
from t1actors.runtime.ledger import Batch
from t1actors.runtime.snapshots import Taken

_logger = structlog.get_logger()


class Keeper:
    """See the module."""

    def __init__(self, writer: JournalWriter, code: str, form: str, every: int, *, appending: Appending) -> None:
        self._writer = writer
        self._code = code
        self._form = form
        self._every = every
        """Applied events; 0: never."""
        self._appending = appending
        self._count = 0
        self._pending = False
        self._ready: Snapshot | None = None
        self._last = (0, 0, b"", dict[str, int]())
        """Of the last durable frame of this incarnation: its sequences, its digest and its vector."""

    def applied(self, events: int) -> None:
        """So many more were applied."""
        self._count += events

    @property
    def due(self) -> bool:
        """Whether one is to be taken."""
        return 0 < self._every <= self._count and not self._pending

    @property
    def waiting(self) -> bool:
        """Whether one can be written."""
        return self._ready is not None

    def take(self, batch: Batch, taken: Taken) -> None:
        """``taken`` is what ``batch`` leaves."""
        batch.taken = taken
        self._pending, self._count = True, 0

    def durable(self, batch: Batch) -> None:
        """``batch`` was appended just now."""
        self._last = (
            batch.base_sequence,
            batch.base_sequence + len(batch.events),
            self._writer.last_frame,
            dict(batch.vector),
        )
        if batch.taken is not None:
            self._ready = self._snapshot(batch.taken)

    async def write(self) -> None:
        """Write the one that waits, unless another task does."""
        snapshot, self._ready = self._ready, None
        if snapshot is None:
            return
        await self._appending(partial(self._keep, snapshot))
        self._pending = False

    def at_the_end(self, taken: Taken) -> None:
        """Nothing is applied any more and everything is durable."""
        if self._every and self._count and self._last[2]:
            self._keep(self._snapshot(taken))

    def _snapshot(self, taken: Taken) -> Snapshot:
        base, following, digest, vector = self._last
        return Snapshot(
            base_sequence=base,
            next_sequence=following,
            last_frame=digest,
            code=self._code,
            shape=self._form,
            positions=taken.positions,
            vector=vector,
            content=taken.content(epoch=self._writer.epoch),
        )

    def _keep(self, snapshot: Snapshot) -> None:
        try:
            self._writer.keep(snapshot)
        except OSError as error:
            _logger.warning(f"no snapshot at event {snapshot.next_sequence}: {error}")
