"""What a view says about now and later: how long it has been silent, and how much time is left. Pure functions of the
view and a given "now".
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass

from t1actors.actors.schedule import purposes
from t1actors.observe.view import TIMER, Intent, RunView

RECENT = 6
"""Steps whose durations say how long the next ones may take."""


@dataclass(frozen=True)
class Silence:
    """``seconds`` since the last event; ``waiting_for`` is the open effect whose deadline comes first, ``left_s`` what
    is left of it (negative: overdue, the runtime is about to act)."""

    seconds: float
    waiting_for: Intent | None = None
    left_s: float | None = None


@dataclass(frozen=True)
class TimeLeft:
    """The fastest and slowest of the recent steps, times the steps that are left."""

    low_s: float
    high_s: float


def silence(view: RunView, now_ns: int) -> Silence | None:
    """How long nothing was recorded, or None before the first event."""
    if view.last_ns is None:
        return None
    open_effects = [
        i
        for actor in view.actors.values()
        for i in actor.intents.values()
        if i.effect_kind != TIMER and i.deadline_s is not None
    ]
    seconds = max(0.0, (now_ns - view.last_ns) / 1e9)
    if not open_effects:
        return Silence(seconds)
    first = min(open_effects, key=_due_ns)
    return Silence(seconds, first, (_due_ns(first) - now_ns) / 1e9)


def time_left(view: RunView) -> TimeLeft | None:
    """A range for the rest of the run; None for the first two training steps, and when the plan is not known.

    Steps that train take as long as the recent ones; evaluations, which stand alone, as long as those before."""
    if view.config is None or view.finished or view.complete:
        return None
    done = sorted((s for s in view.steps.values() if s.done_ns is not None), key=lambda s: s.step)
    learned = [s for s in done if s.purpose != "evaluate"]
    evaluated = [s for s in done if s.purpose == "evaluate"]
    if len(learned) < 2:
        return None
    ends = [s.done_ns or 0 for s in learned]
    durations = [(b - a) / 1e9 for a, b in itertools.pairwise(ends)][-RECENT:]
    planned = [purpose for purpose, _ in purposes(view.config)]
    evaluations = planned.count("evaluate")
    steps = max(0, len(planned) - evaluations - len(learned))
    mean_s = statistics.fmean(s.seconds("rollout") for s in evaluated) if evaluated else 0.0
    extra_s = max(0, evaluations - len(evaluated)) * mean_s
    return TimeLeft(steps * min(durations) + extra_s, steps * max(durations) + extra_s)


def _due_ns(intent: Intent) -> int:
    return intent.since_ns + round((intent.deadline_s or 0.0) * 1e9)
