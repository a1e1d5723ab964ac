"""Group commit: one task appends the ledger's frames, one after the other, while inputs keep being applied.

Guarantees: what is appended is what the ledger holds, in order; ``durable`` is called for a frame after its append
returned and never otherwise; a cancellation does not stop it (an append may land anyway): it ends after ``close``,
when nothing is left, so it ends last. A failed append ends it, and with it the actor: nothing is tried again on that
writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import anyio

from t1actors.log.interface import CommitHead, JournalWriter
from t1actors.runtime.appending import Appending
from t1actors.runtime.clock import Clock
from t1actors.runtime.ledger import Batch, Ledger
from t1actors.runtime.moments import NOBODY, Moments
from t1actors.runtime.wake import Wake

COMMIT_INTERVAL_S = 0.005
"""Commits begin at least this far apart. An actor that is quiet commits at once; a busy one gathers: a flush costs
as much CPU (half a millisecond, with its two thread hand-overs) for one event as for a hundred."""


class Committer:
    """See the module."""

    def __init__(
        self,
        writer: JournalWriter,
        ledger: Ledger,
        *,
        clock: Clock,
        code: str,
        appending: Appending,
        durable: Callable[[Batch, int], None],
        moments: Moments = NOBODY,
    ) -> None:
        self._writer = writer
        self._ledger = ledger
        self._clock = clock
        self._code = code
        self._appending = appending
        self._durable = durable
        self._moments = moments
        self._wake = Wake()
        self._closing = False
        self.ended = False
        """Whether ``run`` came to its end: all that the ledger held is durable."""

    def notify(self) -> None:
        """The ledger may have something to write."""
        self._wake.set()

    def close(self) -> None:
        """Write all that is left, then end."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Append until closed and nothing is left. Raises ``JournalFailed``, ``FrameRefused``."""
        with anyio.CancelScope(shield=True):
            next_s = anyio.current_time()
            while True:
                if self._ledger.due and not self._ledger.backlog and not self._closing:
                    await anyio.sleep_until(next_s)
                batch = self._ledger.take(all_of_it=self._closing)
                if batch is None:
                    if self._closing:
                        self.ended = True
                        return
                    await self._wake.wait()
                    continue
                next_s = anyio.current_time() + COMMIT_INTERVAL_S
                wall_ns = self._clock.wall_ns()
                head = CommitHead(
                    inputs=batch.inputs(),
                    vector=dict(batch.vector),
                    code=self._code,
                    wall_ns=wall_ns,
                    mono_ns=self._clock.mono_ns(),
                    boot_id=self._clock.boot_id,
                )
                first = await self._appending(partial(self._append, head, batch.events))
                expected = batch.base_sequence
                assert first == expected, f"{self._writer.name}: frame at {first}, expected {expected}"
                self._durable(batch, wall_ns)

    def _append(self, head: CommitHead, events: Sequence[bytes]) -> int:
        self._moments.before_commit(events)
        first = self._writer.append(head, events)
        self._moments.after_commit(events)
        return first
