"""The moments between which an actor can die, for whoever wants to be there: tests that kill it at each of them.

Guarantees: the runtime calls these and does nothing else for them; without any it does the same.
"""

from __future__ import annotations

from collections.abc import Sequence


class Moments:
    """Does nothing, at every moment. Override what you want to see; what it raises ends the actor."""

    def opened(self) -> None:
        """The journal is held; nothing is recovered yet."""

    def recovered(self) -> None:
        """The state is recovered and what the actor holds open is running; no effect has begun."""

    def before_commit(self, events: Sequence[bytes]) -> None:
        """These encoded events are about to be appended as one frame. May be called in a worker thread."""

    def after_commit(self, events: Sequence[bytes]) -> None:
        """They are durable and visible to others; nothing has come of them yet. May be called in a worker thread."""

    def before_act(self, kind: str, key: str) -> None:
        """The effect's intent is durable; it is about to be performed. ``kind`` is its class's name."""

    def after_act(self, kind: str, key: str) -> None:
        """It was performed; its results are not even applied yet."""


NOBODY = Moments()
