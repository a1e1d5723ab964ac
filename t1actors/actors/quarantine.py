"""Tasks for which no sandbox can be made: which, how often it was tried, and when that is enough. Pure.

A try is a trial whose sandbox could not be made, after all retries; a sandbox that is made takes all earlier tries back.
A quarantine is for the rest of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from t1actors.events import TaskQuarantined, TrialFailed

NAMED = 3


@dataclass
class Tries:
    """So many in a row, and the last one's cause."""

    count: int = 0
    cause: str = ""
    detail: str = ""


@dataclass
class Quarantine:
    """By task."""

    tries: dict[str, Tries] = field(default_factory=dict[str, Tries])
    tasks: dict[str, str] = field(default_factory=dict[str, str])
    """Those in quarantine, and why."""

    def made(self, task: str) -> None:
        """A sandbox was made for it."""
        self.tries.pop(task, None)

    def failed(self, task: str, event: TrialFailed) -> None:
        """None could be made."""
        if event.creating and task not in self.tasks:
            tries = self.tries.setdefault(task, Tries())
            tries.count += 1
            tries.cause, tries.detail = event.cause, event.detail

    def fold(self, event: TaskQuarantined) -> None:
        """It is enough."""
        self.tries.pop(event.task, None)
        self.tasks[event.task] = f"{event.cause}: {event.detail}"

    def is_last(self, task: str, after: int) -> bool:
        """Whether one more try that fails is enough."""
        tries = self.tries.get(task)
        return task not in self.tasks and (tries.count if tries is not None else 0) + 1 >= after

    def due(self, after: int) -> list[tuple[str, Tries]]:
        """Tasks of which ``after`` tries have failed."""
        return [(task, tries) for task, tries in self.tries.items() if tries.count >= after]


def named(tasks: Mapping[str, str], among: Iterable[str] | None = None) -> str:
    """The tasks and why, as many as a sentence holds; empty where there are none."""
    found = sorted(set(tasks) if among is None else set(tasks) & set(among))
    if not found:
        return ""
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return "; ".join(f"{task} ({tasks[task]})" for task in found[:NAMED]) + more
