"""One screen of a live run: a pure function of the view, the time and the width.

Guarantees: no line is longer than the width; parts that do not fit are left out from the end, never cut in the middle
of a number; a bar is drawn only where the total is known; silence is shown as silence, with the deadline that ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from t1actors.events import ActorUpdated
from t1actors.observe.progress import silence, time_left
from t1actors.observe.quantities import duration, duration_range, figure, one_line, percent
from t1actors.observe.view import ActorView, RunView, StepView

Tone = Literal["plain", "dim", "good", "bad", "title"]
SILENT_S = 5.0
"""Silence shorter than this is how a run breathes."""
LABEL = 10
SPARKS = "▁▂▃▄▅▆▇█"
DOING = {
    "create": "creating",
    "sample": "sampling",
    "run": "running",
    "seal": "sealing",
    "grade": "grading",
    "kill": "reclaiming",
    "load": "loading weights",
    "initial": "loading",
    "assemble": "assembling",
    "export": "exporting",
    "values": "estimating values",
    "critic": "training",
    "actor": "training",
    "deadline": "waiting",
}


@dataclass(frozen=True)
class Line:
    text: str
    tone: Tone = "plain"


def screen(view: RunView, now_ns: int, width: int) -> list[Line]:
    """The lines to show."""
    lines = [_title(view, now_ns, width)]
    lines += _progress(view, width)
    step = view.current
    if step is not None:
        lines.append(_trials(step, width))
    lines += _learning(view, width)
    lines += [_actor(actor, width) for actor in view.actors.values() if actor.starts]
    lines += _trouble(view, now_ns, width)
    return lines


def _row(label: str, parts: Sequence[str], width: int, tone: Tone = "plain") -> Line:
    text = label.ljust(LABEL)
    for n, part in enumerate(one_line(p) for p in parts if p):
        longer = text + (part if n == 0 else f" · {part}")
        if len(longer) > width:
            if n == 0:
                text = longer[: width - 1] + "…"
            break
        text = longer
    return Line(text, tone)


def _title(view: RunView, now_ns: int, width: int) -> Line:
    elapsed = max(0.0, (now_ns - view.first_ns) / 1e9) if view.first_ns is not None else 0.0
    left = time_left(view)
    parts = [view.run or "starting", duration(elapsed)]
    if left is not None:
        parts.append(f"{duration_range(left.low_s, left.high_s)} left")
    return _row("t1actors", parts, width, "title")


def bar(done: int, total: int, cells: int) -> str:
    """``cells`` wide; full only when all is done."""
    full = 0 if total <= 0 else min(cells, done * cells // total)
    return "█" * full + "░" * (cells - full)


def _progress(view: RunView, width: int) -> list[Line]:
    total = view.planned_steps
    done = sum(s.done_ns is not None for s in view.steps.values())
    step = view.current
    now = f"step {step.step} {step.purpose}" if step is not None else "no step yet"
    cells = max(5, min(30, width - LABEL - 36))
    meter = f"{bar(done, total, cells)} {done}/{total}" if total else f"{done} done"
    return [_row("steps", [meter, now, f"version {step.version_index}" if step else ""], width)]


def _trials(step: StepView, width: int) -> Line:
    total = len(step.trials)
    working = sum(t.phase == "working" for t in step.trials.values())
    parts = [f"{total} in, {step.over} out", f"{working} working"]
    if step.failed:
        parts.append(f"{step.failed} failed")
    waiting = sum(t.phase == "waiting" for t in step.trials.values())
    if waiting:
        parts.append(f"{waiting} waiting")
    return _row("trials", parts, width)


def _learning(view: RunView, width: int) -> list[Line]:
    lines: list[Line] = []
    steps = [s for s in view.of_purpose("train") if s.reward_mean is not None]
    if steps:
        last, first = steps[-1], steps[0]
        parts = [
            f"{figure(last.reward_mean)} (first {figure(first.reward_mean)})",
            f"passed {percent(last.fraction_mean)}",
        ]
        room = width - LABEL - 46
        if room >= 5:
            parts.append(sparkline([s.reward_mean or 0.0 for s in steps], room))
        lines.append(_row("reward", parts, width))
    if view.trained:
        update = view.trained[-1].actor
        assert update is not None
        lines += _update(view.trained[-1], update, width)
    return lines


def _update(step: StepView, update: ActorUpdated, width: int) -> list[Line]:
    gap = [f"engine {figure(update.engine_gap_mean)} max {figure(update.engine_gap_max)}"]
    gap.append(f"movement {figure(update.policy_movement_mean)}")
    variance = step.values.explained_variance if step.values is not None else None
    learning = [f"stale {update.staleness}", f"EV {figure(variance, 2)}", f"clip {percent(update.clip_share)}"]
    learning += [f"KL {figure(update.kl)}", f"entropy {figure(update.entropy, 2)}"]
    return [_row("gap", gap, width), _row("update", learning, width)]


def sparkline(values: Sequence[float], cells: int) -> str:
    """The last ``cells`` values, scaled to their own range."""
    shown = values[-cells:]
    low, high = min(shown), max(shown)
    if high == low:
        return SPARKS[0] * len(shown)
    return "".join(SPARKS[round((v - low) / (high - low) * (len(SPARKS) - 1))] for v in shown)


def _actor(actor: ActorView, width: int) -> Line:
    parts: list[str] = []
    tone: Tone = "dim"
    if actor.phase == "stopped":
        parts.append(f"stopped, {actor.exits[-1]}" if actor.exits else "stopped")
        tone = "bad" if actor.exits and not actor.exits[-1].startswith("exit 0") else "dim"
    elif actor.phase == "starting":
        parts.append("starting")
    else:
        doing = [(DOING.get(verb, verb), count) for verb, count in actor.busy.most_common(3) if count > 0]
        busy = [f"{words} {count}" if count > 1 else words for words, count in doing]
        parts.append(", ".join(busy) or "idle")
        tone = "plain" if busy else "dim"
        parts += [
            f"{bar(round(i.done), round(i.total), 8)} {i.done:g}/{i.total:g} {i.unit}"
            for i in list(actor.intents.values())[:1]
            if i.total
        ]
    if actor.restarts:
        parts.append(f"restarted {actor.restarts}x")
    return _row(actor.name, parts, width, tone)


def _trouble(view: RunView, now_ns: int, width: int) -> list[Line]:
    lines: list[Line] = []
    quiet = silence(view, now_ns)
    if quiet is not None and quiet.seconds >= SILENT_S and not view.complete:
        text = f"no event for {quiet.seconds:.0f} s"
        parts = [text]
        if quiet.waiting_for is not None and quiet.left_s is not None:
            parts = [f"{text}, deadline {quiet.waiting_for.deadline_s or 0:.0f} s", f"{quiet.waiting_for.key}"]
        lines.append(_row("silence", parts, width, "bad"))
    if view.failures:
        causes = [f"{count} x {cause}" for cause, count in view.failures.most_common(3)]
        lines.append(_row("uncounted", causes, width, "bad"))
    if view.failed_reason:
        lines.append(_row("failed", [view.failed_reason], width, "bad"))
    elif view.stopped_reason is not None:
        lines.append(_row("stopped", [view.stopped_reason], width, "good" if view.finished else "bad"))
    return lines
