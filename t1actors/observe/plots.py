"""Pictures of a run's figures, as PNG. Each function draws one; a run without the data for it gets no picture.

Only this module and its callers load matplotlib, and only the Agg backend: no screen is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from t1actors.observe.figures import Figures, StepFigures

SMOOTHED = 5
INK = ("#1f4e79", "#c0504d", "#6a8f3c", "#8064a2", "#e08a1e")


def draw_all(f: Figures, folder: Path) -> list[tuple[str, Path]]:
    """Write every picture that the run has data for; (title, file) of each."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[tuple[str, Path]] = []
    for name, title, draw in (
        ("reward", "Reward per training step", _reward),
        ("gap", "The gap in its two parts", _gap),
        ("critic", "Explained variance of the critic", _critic),
        ("policy", "Clip share, KL and entropy", _policy),
        ("episodes", "Turns and length of episodes", _episodes),
        ("seconds", "Seconds per phase", _seconds),
    ):
        picture = Figure(figsize=(7.2, 3.6), dpi=110, layout="constrained")
        FigureCanvasAgg(picture)
        axes = picture.add_subplot()
        axes.grid(alpha=0.25)
        if draw(f, axes):
            axes.set_title(title, loc="left", fontsize=10)
            path = folder / f"{name}.png"
            # No software or date stamp: the same log gives the same file.
            picture.savefig(path, metadata={"Software": None})
            drawn.append((title, path))
    return drawn


def smoothed(values: Sequence[float]) -> list[float]:
    """Mean of each value with up to two neighbours on either side."""
    half = SMOOTHED // 2
    windows = [values[max(0, n - half) : n + half + 1] for n in range(len(values))]
    return [sum(w) / len(w) for w in windows]


def _train(f: Figures) -> list[StepFigures]:
    return [s for s in f.by_step if s.purpose == "train"]


def _reward(f: Figures, axes: Axes) -> bool:
    points = [(s.step, s.reward) for s in _train(f) if s.reward is not None]
    if not points:
        return False
    steps, rewards = zip(*points, strict=True)
    axes.plot(steps, rewards, ".", color=INK[0], alpha=0.45, label="batch mean")
    axes.plot(steps, smoothed(rewards), "-", color=INK[0], label=f"mean of {SMOOTHED}")
    for value, label, color, style in (
        (f.sft_greedy_reward, "warm start, greedy, held out", INK[1], "--"),
        (f.heldout_before_reward, "held out before", INK[2], ":"),
        (f.heldout_after_reward, "held out after", INK[2], "-."),
    ):
        if value is not None:
            axes.axhline(value, color=color, linestyle=style, linewidth=1.2, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("reward P / S")
    axes.legend(fontsize=8)
    return True


def _gap(f: Figures, axes: Axes) -> bool:
    drawn = False
    for name, color in (("engine_gap", INK[1]), ("policy_movement", INK[0])):
        for part, style in (("mean", "-"), ("max", ":")):
            points = [(s.step, getattr(s, f"{name}_{part}")) for s in _train(f)]
            points = [(step, value) for step, value in points if value is not None and value > 0]
            if points:
                axes.plot(*zip(*points, strict=True), style, color=color, label=f"{name.replace('_', ' ')}, {part}")
                drawn = True
    if drawn:
        axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.set_ylabel("|d log p|, nats")
        axes.legend(fontsize=8)
    return drawn


def _critic(f: Figures, axes: Axes) -> bool:
    points = [(s.step, s.explained_variance) for s in f.by_step if s.explained_variance is not None]
    if not points:
        return False
    axes.plot(*zip(*points, strict=True), ".-", color=INK[3])
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel("explained variance, before the update")
    return True


def _policy(f: Figures, axes: Axes) -> bool:
    drawn = False
    for name, label, color in (
        ("clip_share", "clip share", INK[1]),
        ("kl", "KL to the behaviour version", INK[0]),
        ("entropy", "entropy, nats", INK[2]),
    ):
        points = [(s.step, getattr(s, name)) for s in _train(f)]
        points = [(step, value) for step, value in points if value is not None and value > 0]
        if points:
            axes.plot(*zip(*points, strict=True), ".-", color=color, label=label)
            drawn = True
    if drawn:
        axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.legend(fontsize=8)
    return drawn


def _episodes(f: Figures, axes: Axes) -> bool:
    points = [(s.step, s.turns, s.ids) for s in _train(f) if s.turns is not None and s.ids is not None]
    if not points:
        return False
    steps, turns, ids = zip(*points, strict=True)
    (first,) = axes.plot(steps, turns, ".-", color=INK[0], label="turns")
    axes.set_xlabel("step")
    axes.set_ylabel("turns per episode")
    right = axes.twinx()
    (second,) = right.plot(steps, ids, ".-", color=INK[4], label="ids")
    right.set_ylabel("ids per episode")
    axes.legend(handles=[first, second], fontsize=8)
    return True


def _seconds(f: Figures, axes: Axes) -> bool:
    steps = [s for s in f.by_step if s.seconds]
    if not steps:
        return False
    base = [0.0] * len(steps)
    for phase, color in zip(("rollout", "values", "critic", "actor"), INK, strict=False):
        heights = [s.seconds.get(phase, 0.0) for s in steps]
        axes.bar([s.step for s in steps], heights, bottom=base, color=color, label=phase, width=0.8)
        base = [b + h for b, h in zip(base, heights, strict=True)]
    axes.set_xlabel("step")
    axes.set_ylabel("s (rollout overlaps the training before it)", fontsize=8)
    axes.legend(fontsize=8)
    return True
