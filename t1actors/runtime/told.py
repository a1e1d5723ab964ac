"""What an effect tells while it is performed, and who waits until that is durable.

Guarantees: every ``Told`` ends, kept or dropped: kept when the frame that holds its events is durable; dropped when the
cancelling of its effect was decided before, and when the host stops or fails. Who waits never hangs on a host that is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio

from t1actors.events import AnyEvent
from t1actors.runtime.intents import Intent


@dataclass(eq=False)
class Told:
    """Events of an effect under way."""

    intent: Intent
    events: Sequence[AnyEvent]
    kept: bool = False
    over: anyio.Event = field(default_factory=anyio.Event)


class Tellings:
    """Those that are not over."""

    def __init__(self) -> None:
        self._open: set[Told] = set()
        self._closed = False

    def add(self, intent: Intent, events: Sequence[AnyEvent]) -> Told | None:
        """None: nothing is taken any more."""
        if self._closed:
            return None
        told = Told(intent, events)
        self._open.add(told)
        return told

    def end(self, told: Told, *, kept: bool) -> None:
        """It is durable, or will never be."""
        told.kept = kept
        told.over.set()
        self._open.discard(told)

    def close(self) -> None:
        """Nothing is applied any more: take nothing."""
        self._closed = True

    def drop_all(self) -> None:
        """Nothing is written any more."""
        self.close()
        for told in list(self._open):
            self.end(told, kept=False)
