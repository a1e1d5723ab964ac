"""What became of a run's sandboxes: how many wait, live, were made and reclaimed, and what went wrong with making them.

A fold of the pool's events, as the rest of the view is. Of a trimmed run it is of the trials that are still there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from t1actors.events import (
    AnyEvent,
    SandboxesReaped,
    SandboxReady,
    SandboxReclaimed,
    SandboxRequested,
    SandboxRetried,
    TaskQuarantined,
    TrialCancelled,
    TrialFailed,
    UnknownEvent,
)


@dataclass
class SandboxesView:
    """``waiting``: trials that asked for one; ``live``: trials that have one. ``leaked``: what nobody owned, found and
    removed, by kind. ``retries``: tries to make one that failed and were followed by another, by cause. ``quarantined``:
    tasks for which none can be made, and why."""

    waiting: set[str] = field(default_factory=set[str])
    live: set[str] = field(default_factory=set[str])
    created: int = 0
    reclaimed: int = 0
    leaked: Counter[str] = field(default_factory=Counter[str])
    retries: Counter[str] = field(default_factory=Counter[str])
    quarantined: dict[str, str] = field(default_factory=dict[str, str])

    def fold(self, event: AnyEvent | UnknownEvent) -> None:
        """Note what ``event`` says of sandboxes."""
        match event:
            case SandboxRequested():
                self.waiting.add(event.trial)
            case SandboxReady():
                self.waiting.discard(event.trial)
                self.live.add(event.trial)
                self.created += 1
            case SandboxReclaimed():
                self.waiting.discard(event.trial)
                self.reclaimed += event.trial in self.live
                self.live.discard(event.trial)
            case TrialFailed() | TrialCancelled():
                self.waiting.discard(event.trial)
            case SandboxRetried():
                self.retries[event.cause] += 1
            case TaskQuarantined():
                self.quarantined[event.task] = f"{event.cause}: {event.detail}"
            case SandboxesReaped():
                self.leaked.update(event.found)
            case _:
                pass
