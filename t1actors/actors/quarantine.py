"""Tasks for which no sandbox can be made: which, how often it was tried, and when that is enough. Pure.

A try is a trial whose sandbox could not be made, after all retries; a sandbox that is made takes all earlier tries of its
task back. A quarantine is for the rest of the run.

Whose fault a try was decides what it counts. What is wrong with a task's own files, image or build counts each time. Any
other fault may be the host's, and a sick host fails every task: of a task such faults count once between two sandboxes
that were made, whoever they were for. So a task is in quarantine for them only when others go on being made where it
fails, and a host that makes none at all puts no task into quarantine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from t1actors.events import TaskQuarantined, TrialFailed

NAMED = 3
QUARANTINED = "quarantined"
"""The cause of a trial that is not begun, as its task is in quarantine."""


@dataclass
class Tries:
    """``count``: those that count, in a row; the last one's cause; ``made``: how many sandboxes the run had then."""

    count: int = 0
    cause: str = ""
    detail: str = ""
    made: int = 0


@dataclass
class Quarantine:
    """By task. ``made``: sandboxes so far, of all tasks."""

    tries: dict[str, Tries] = field(default_factory=dict[str, Tries])
    tasks: dict[str, str] = field(default_factory=dict[str, str])
    """Those in quarantine, and why."""
    made: int = 0

    def succeeded(self, task: str) -> None:
        """A sandbox was made for it."""
        self.made += 1
        self.tries.pop(task, None)

    def failed(self, task: str, event: TrialFailed) -> None:
        """None could be made."""
        if not event.creating or task in self.tasks:
            return
        tries = self.tries.setdefault(task, Tries())
        if event.own_fault or self.made > tries.made:
            tries.count += 1
            tries.cause, tries.detail, tries.made = event.cause, event.detail, self.made

    def fold(self, event: TaskQuarantined) -> None:
        """It is enough."""
        self.tries.pop(event.task, None)
        self.tasks[event.task] = f"{event.cause}: {event.detail}"

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
