"""What a view says about now and later: how far a step is, how long it has been silent and what for, and how much time
is left. Pure functions of the view and a given "now".
"""

from __future__ import annotations

from dataclasses import dataclass

from t1actors.actors.schedule import purposes
from t1actors.observe.pace import LEAST, RECENT, TimeLeft
from t1actors.observe.view import TIMER, Intent, RunView, StepView


@dataclass(frozen=True)
class Silence:
    """``seconds`` since the last event; ``waiting_for`` is the open effect whose deadline comes first (or, when none has
    a deadline, the oldest), ``left_s`` what is left of its deadline (negative: overdue, the runtime is about to act).
    ``missing`` are the actors that are not up."""

    seconds: float
    waiting_for: Intent | None = None
    left_s: float | None = None
    missing: tuple[str, ...] = ()


def silence(view: RunView, now_ns: int) -> Silence | None:
    """How long nothing was recorded, or None before the first event."""
    if view.last_ns is None:
        return None
    seconds = max(0.0, (now_ns - view.last_ns) / 1e9)
    actors = [a for a in view.actors.values() if a.starts]
    missing = tuple(a.name for a in actors if a.phase != "ready")
    effects = [i for a in view.actors.values() for i in a.intents.values() if i.effect_kind != TIMER]
    if not effects:
        return Silence(seconds, missing=missing)
    due_ns = {id(i): _due_ns(view, i) for i in effects}
    first = min(effects, key=lambda i: (due_ns[id(i)] is None, due_ns[id(i)] or i.since_ns))
    due = due_ns[id(first)]
    return Silence(seconds, first, (due - now_ns) / 1e9 if due is not None else None, missing)


def _due_ns(view: RunView, intent: Intent) -> int | None:
    """A deadline is for one attempt: it starts again with the actor."""
    if intent.deadline_s is None:
        return None
    actor = view.actors.get(intent.actor)
    since_ns = max(intent.since_ns, actor.ready_ns if actor is not None else 0)
    return since_ns + round(intent.deadline_s * 1e9)


def stopping(view: RunView) -> bool:
    """Whether the actors are being stopped: one that ends well does so because it was told to."""
    if view.complete:
        return False
    return any(a.phase == "stopped" and a.exits and a.exits[-1].startswith("exit 0") for a in view.actors.values())


def elapsed_s(view: RunView, now_ns: int) -> float:
    """Wall time of the run without its pauses; stands still when the run has ended."""
    if view.first_ns is None:
        return 0.0
    end_ns = view.last_ns if view.complete and view.last_ns is not None else now_ns
    return max(0.0, view.worked_s(view.first_ns, max(view.first_ns, end_ns)))


def sampled_step(view: RunView) -> StepView | None:
    """The step whose trials are being run: the oldest without a batch, else the current one."""
    unsealed = [s for s in view.steps.values() if s.sealed_ns is None]
    return min(unsealed, key=lambda s: s.step) if unsealed else view.current


def trials_graded(step: StepView) -> tuple[int, int]:
    """(graded, wanted) trials of a step: with a sealed batch both are its size."""
    if step.sealed_ns is not None:
        return len(step.kept), len(step.kept)
    wanted = max(0, step.batch_size - step.short_of)
    graded = sum(t.phase in ("graded", "assembled") and t.outcome == "graded" for t in step.trials.values())
    return min(graded, wanted), wanted


def step_name(step: StepView) -> str:
    """step 3 train; step 1 evaluate, greedy."""
    return f"step {step.step} {step.purpose}" + (", greedy" if step.temperature == 0 else "")


def step_seconds(view: RunView) -> dict[int, float]:
    """What each done step took the run, in the order in which they ended: from the end of the one before (the first:
    from its opening) to its own end, without pauses."""
    took: dict[int, float] = {}
    before_ns: int | None = None
    for step in sorted((s for s in view.steps.values() if s.done_ns is not None), key=lambda s: s.done_ns or 0):
        assert step.done_ns is not None
        start_ns = step.opened_ns if before_ns is None else before_ns
        took[step.step] = view.worked_s(start_ns, step.done_ns)
        before_ns = step.done_ns
    return took


def time_left(view: RunView, now_ns: int | None = None) -> TimeLeft | None:
    """A range for the rest of the run at ``now_ns`` (the last event); None until two steps that train are done, when
    all are, and when the plan is not known.

    A step still to come takes as long as the recent ones of its purpose, or of any that train; evaluations, which stand
    alone, as long as those before."""
    if view.config is None or view.finished or view.complete or view.last_ns is None:
        return None
    took = step_seconds(view)
    evaluated = [s for n, s in took.items() if view.steps[n].purpose == "evaluate"]
    learned = [s for n, s in took.items() if view.steps[n].purpose != "evaluate"]
    if len(learned) < LEAST:
        return None
    ended_ns = max(s.done_ns for s in view.steps.values() if s.done_ns is not None)
    since_s = max(0.0, view.worked_s(ended_ns, max(ended_ns, now_ns or view.last_ns)))
    low_s = high_s = 0.0
    remaining = [p for n, (p, _) in enumerate(purposes(view.config)) if n not in took]
    if not remaining:
        return None
    for place, purpose in enumerate(remaining):
        alike = [s for n, s in took.items() if view.steps[n].purpose == purpose]
        recent = (evaluated if purpose == "evaluate" else alike if len(alike) >= LEAST else learned)[-RECENT:]
        if not recent:
            return None
        fastest, slowest = min(recent), max(recent)
        if place == 0:  # under way; when it takes longer than any before, so may the others
            fastest, slowest = max(0.0, fastest - since_s), max(slowest, since_s) - since_s
        elif purpose == remaining[0]:
            slowest = max(slowest, since_s)
        low_s, high_s = low_s + fastest, high_s + slowest
    return TimeLeft(low_s, high_s)
