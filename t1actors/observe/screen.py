"""One screen of a live run: a pure function of the view, the time and the size of the terminal.

Guarantees: no line is wider than ``width``, no screen higher than ``height``; what matters most (step, trials, trouble,
reward) goes last; nothing is cut in the middle of a number; a bar is drawn only where the total is known; silence is
shown as silence, with what is waited for and the deadline that ends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from t1actors.observe.crew import crew, crew_in_one_row, work
from t1actors.observe.lines import BAR_CELLS, UNICODE, Part, Script, ranked, row, sparkline
from t1actors.observe.progress import (
    elapsed_s,
    sampled_step,
    silence,
    stopping,
    time_left,
    trials_graded,
)
from t1actors.observe.quantities import duration, duration_range, figure, one_line, percent, seconds
from t1actors.observe.stop import AGAIN, longest_words, phase_words
from t1actors.observe.view import RunView, StepView

Tone = Literal["plain", "dim", "good", "bad", "title"]
SILENT_S = 5.0
"""Silence shorter than this is how a run breathes."""


@dataclass(frozen=True)
class Line:
    """``rank``: of too many lines those of the lowest are kept."""

    text: str
    tone: Tone = "plain"
    rank: int = 0


def screen(view: RunView, now_ns: int, width: int, height: int | None = None, script: Script = UNICODE) -> list[Line]:
    """The lines to show, from top to bottom."""
    head = [_title(view, now_ns, width, script), _steps(view, width, script)]
    if not view.complete and (step := sampled_step(view)) is not None:
        head.append(_trials(view, step, width, script))
    head += _sandboxes(view, width, script)
    head += _learning(view, width, script)
    tail = _trouble(view, now_ns, width, script)
    actors = _actors(view, width, script)
    lines = [*head, *actors, *tail]
    if height is None or len(lines) <= height:
        return lines
    if actors and (one := crew_in_one_row(view, width, script)) is not None:
        lines = [*head, Line(one.text, "bad" if one.bad else "plain", 5), *tail]
    kept = sorted(range(len(lines)), key=lambda n: lines[n].rank)[: max(0, height)]
    return [lines[n] for n in sorted(kept)]


def _title(view: RunView, now_ns: int, width: int, script: Script) -> Line:
    left = time_left(view, now_ns)
    parts = [
        Part(view.run or "starting", 3),
        Part("stopping", 0) if stopping(view) else Part(""),
        Part(duration(elapsed_s(view, now_ns)), 1),
        Part(f"{duration_range(left.low_s, left.high_s)} left", 2) if left is not None else Part(""),
    ]
    return Line(row("t1actors", [p for p in parts if p.text], width, script), "title", 0)


def _steps(view: RunView, width: int, script: Script) -> Line:
    total = view.planned_steps
    done = sum(s.done_ns is not None for s in view.steps.values())
    step = view.current
    parts = [Part(f"{done}/{total} done" if total else f"{done} done", 0)]
    if step is None:
        parts.append(Part("no step yet", 1))
    elif not view.complete:
        parts.append(Part(f"step {step.step} {step.purpose}", 1))
        parts += [Part("greedy", 2)] if step.temperature == 0 else []
        parts.append(Part(f"version {step.version_index}", 3))
    return Line(row("steps", parts, width, script, meter=(done, total) if total else None), rank=0)


def _trials(view: RunView, step: StepView, width: int, script: Script) -> Line:
    graded, wanted = trials_graded(step)
    phases = [t.phase for t in step.trials.values()]
    parts = [Part(f"{graded}/{wanted} graded", 0)]
    if step is not view.current:
        parts.append(Part(f"of step {step.step}", 4))
    for rank, (phase, words) in enumerate([("failed", "failed"), ("working", "working"), ("waiting", "waiting")], 1):
        if count := phases.count(phase):
            parts.append(Part(f"{count} {words}", rank))
    return Line(row("trials", parts, width, script, meter=(graded, wanted) if wanted else None), rank=1)


def _sandboxes(view: RunView, width: int, script: Script) -> list[Line]:
    found = view.sandboxes
    if view.complete or not found.created:
        return []
    parts = [f"{len(found.live)} live", f"{found.created:,} made", f"{found.reclaimed:,} reclaimed"]
    parts.insert(1, f"{len(found.waiting)} waiting")
    parts += [f"{found.retries.total():,} retries"] if found.retries else []
    parts += [f"{found.leaked.total():,} leaked"] if found.leaked else []
    return [Line(row("sandboxes", ranked(*parts), width, script), rank=10)]


def _learning(view: RunView, width: int, script: Script) -> list[Line]:
    lines: list[Line] = []
    rewards = [s.reward_mean for s in view.of_purpose("train") if s.reward_mean is not None]
    if rewards:
        fraction = view.of_purpose("train")[-1].fraction_mean
        first = f"first {figure(rewards[0])}" if len(rewards) > 1 else ""
        sparks = next((c for c in BAR_CELLS if c <= width - 50), 0)
        texts = [figure(rewards[-1]), first, f"passed {percent(fraction)}", sparkline(rewards, sparks, script)]
        lines.append(Line(row("reward", ranked(*texts), width, script), rank=3))
    if held := _held_out(view):
        lines.append(Line(row("held out", ranked(*held), width, script), rank=6))
    trained = view.trained
    if trained and (update := trained[-1].actor) is not None:
        values = trained[-1].values
        variance = f"{values.explained_variance:.2f}" if values is not None else "-"
        learning = ranked(
            f"KL {figure(update.kl)}",
            f"clip {percent(update.clip_share)}",
            f"EV {variance}",
            f"entropy {figure(update.entropy, 2)}",
            f"stale {update.staleness}",
        )
        gap = ranked(
            f"engine {figure(update.engine_gap_mean)}",
            f"largest {figure(update.engine_gap_max)}",
            f"movement {figure(update.policy_movement_mean)}",
        )
        lines += [Line(row("update", learning, width, script), rank=7), Line(row("gap", gap, width, script), rank=8)]
    return lines


def _held_out(view: RunView) -> list[str]:
    """Share passed by evaluations: the first, and the last when it is another; sampled, then greedy."""
    found: list[str] = []
    for name, greedy in (("", False), ("greedy ", True)):
        shares = [s.fraction_mean for s in view.of_purpose("evaluate") if (s.temperature == 0) == greedy]
        if shares:
            last = f" -> {percent(shares[-1])}" if len(shares) > 1 else ""
            found.append(f"{name}{percent(shares[0])}{last}")
    return found


def _actors(view: RunView, width: int, script: Script) -> list[Line]:
    rows = crew(view, width, script)
    if view.complete:
        rows = [r for r in rows if r.bad]
    return [Line(r.text, "bad" if r.bad else "plain" if r.busy else "dim", 5 if r.bad else 9) for r in rows]


def _trouble(view: RunView, now_ns: int, width: int, script: Script) -> list[Line]:
    lines: list[Line] = []
    quiet = silence(view, now_ns)
    if quiet is not None and quiet.seconds >= SILENT_S and not view.complete:
        text = f"no event for {seconds(quiet.seconds)}"
        waits: list[str] = []
        if quiet.waiting_for is not None:
            waits.append(work(quiet.waiting_for))
            if quiet.left_s is not None:
                text += f", deadline {seconds(quiet.waiting_for.deadline_s or 0.0)}"
                late = quiet.left_s < 0
                waits.append(f"overdue by {seconds(-quiet.left_s)}" if late else f"{seconds(quiet.left_s)} left")
            else:
                waits.append("no deadline")
        if quiet.missing:
            waits = [f"{', '.join(quiet.missing)} to {'stop' if stopping(view) else 'start'}", *waits]
        lines.append(Line(row("silence", [Part(text)], width, script), "bad", 2))
        if waits:
            lines.append(Line(row("waits for", ranked(*waits), width, script), "bad", 4))
    if view.stop_requested and not view.complete:
        parts = ranked(f"after {phase_words(view) or 'what is under way'}", AGAIN, longest_words(view))
        lines.append(Line(row("stopping", parts, width, script), "title", 1))
    if quarantined := view.sandboxes.quarantined:
        task, why = next(iter(quarantined.items()))
        count = f"{len(quarantined)} task{'s' if len(quarantined) > 1 else ''}"
        lines.append(Line(row("quarantine", ranked(count, task, one_line(why)), width, script), "bad", 3))
    if view.failures:
        causes = [f"{count} x {cause}" for cause, count in view.failures.most_common(3)]
        lines.append(Line(row("uncounted", ranked(*causes), width, script), "bad", 3))
    if view.failed_reason:
        lines.append(Line(row("failed", [Part(view.failed_reason)], width, script), "bad", 1))
    elif view.stopped_reason is not None:
        tone = "good" if view.finished else "bad"
        lines.append(Line(row("ended", [Part(view.stopped_reason)], width, script), tone, 1))
    return lines
