"""What a person is told who asked a run to stop: what it still does, how long that may take. Pure functions of the view."""

from __future__ import annotations

from t1actors.observe.pace import RECENT
from t1actors.observe.progress import step_seconds
from t1actors.observe.quantities import duration
from t1actors.observe.view import RunView

AGAIN = "Ctrl-C again stops at once, nothing recorded is lost"


def phase_words(view: RunView) -> str:
    """What of the phase is not done: "step 12's rollout and step 11's training"; empty when nothing is."""
    newest = max(view.steps, default=-1)
    parts: list[str] = []
    for number in (newest, newest - 1):
        step = view.steps.get(number)
        if step is None or step.done_ns is not None:
            continue
        work: list[str] = []
        if step.sealed_ns is None:
            work.append("evaluation" if step.purpose == "evaluate" else "rollout")
        if number < newest and step.purpose != "evaluate":
            work.append("training")
        if work:
            parts.append(f"step {number}'s {' and '.join(work)}")
    return (", " if any(" and " in part for part in parts) else " and ").join(parts)


def longest_words(view: RunView) -> str:
    """How long that may take: as the slowest of the recent steps, or, when none was done yet, the deadline of its trials."""
    recent = list(step_seconds(view).values())[-RECENT:]
    if recent:
        return f"up to about {duration(max(recent))}"
    if view.config is not None:
        return f"no step was done yet; at the longest {duration(view.config.rollout.trial_deadline_s)}"
    return "no step was done yet"


def stop_words(view: RunView) -> str:
    """The whole answer to Ctrl-C."""
    phase = phase_words(view)
    if not phase:
        return f"stopping: nothing is under way; {AGAIN}"
    return f"stopping after this phase ({phase}; {longest_words(view)}); {AGAIN}"
