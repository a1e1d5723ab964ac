"""Pictures of the work: turns and lengths of episodes, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from t1actors.observe.figures import Figures, StepFigures
from t1actors.observe.plots.learning import training
from t1actors.observe.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PINK,
    RED,
    SKY,
    YELLOW,
    Drawn,
    Label,
    boxes,
    canvas,
    label_beside,
    legend_beside,
    name_axis,
    step_axis,
)
from t1actors.observe.quantities import duration, figure

BAR = 0.85
"""Of the width of a step."""
ENDS = (
    ("submitted", GREEN),
    ("turn_limit", RED),
    ("token_limit", ORANGE),
    ("turn_truncated", YELLOW),
    ("deadline", PINK),
    ("sandbox_limit", GREY),
    ("malformed_turns", SKY),
)
PHASES = (("rollout", SKY), ("values", YELLOW), ("critic", ORANGE), ("actor", BLUE), ("barrier", INK))
TRIAL_PHASES = (
    ("wait for a sandbox", PALE),
    ("create sandbox", YELLOW),
    ("wait for the engine", GREY),
    ("prefill", SKY),
    ("decode", BLUE),
    ("run command", GREEN),
    ("seal", PINK),
    ("grade", ORANGE),
)


def draw_episodes(f: Figures) -> Drawn | None:
    """Length and end of episodes."""
    steps = [s for s in training(f) if s.turns is not None and s.ids is not None]
    if not steps:
        return None
    title = "Turns, lengths and ends of training episodes"
    first, last = steps[0], steps[-1]
    turns = f"turns {figure(first.turns, 1)} to {figure(last.turns, 1)}"
    finding = f"{turns}, ids {figure(first.ids, 0)} to {figure(last.ids, 0)}"
    picture, panels = canvas(title, finding, [1.3, 1.3, 1.3])
    numbers = [s.step for s in steps]
    step_axis(f, panels, numbers)
    _with_band(panels[0], numbers, [(s.turns or 0.0, s.turns_quartiles) for s in steps], BLUE, "turns")
    _with_band(panels[1], numbers, [(s.ids or 0.0, s.ids_quartiles) for s in steps], GREEN, "ids")
    name_axis(panels[0], "turns an\nepisode")
    name_axis(panels[1], "ids an\nepisode")
    shares = {end: [100 * s.ends.get(end, 0) / max(1, s.trials) for s in steps] for end, _ in ENDS}
    _stacked(
        panels[2], numbers, [(name.replace("_", " "), shares[name], color) for name, color in ENDS if any(shares[name])]
    )
    panels[2].set_ylim(0, 100)
    name_axis(panels[2], "episodes by\ntheir end, %")
    legend_beside(panels[2], reverse=True)
    return Drawn(
        title,
        "Lines are means, bands hold the middle half of the trials. Turns that rise while reward does not are "
        "stalling; a growing share that ends at the turn limit says the same.",
        picture,
    )


def _with_band(
    axes: Axes,
    numbers: Sequence[int],
    values: Sequence[tuple[float, tuple[float, float] | None]],
    color: str,
    name: str,
) -> None:
    means = [mean for mean, _ in values]
    low = [quartiles[0] if quartiles else mean for mean, quartiles in values]
    high = [quartiles[1] if quartiles else mean for mean, quartiles in values]
    axes.fill_between(numbers, low, high, color=color, alpha=0.15, linewidth=0)
    axes.plot(numbers, means, ".-", color=color, linewidth=1.4)
    axes.set_ylim(0, 1.15 * max(1.0, *high, *means))
    label_beside(axes, [Label(means[-1], f"{name} {means[-1]:.1f}", color)])


def _stacked(axes: Axes, numbers: Sequence[int], parts: Sequence[tuple[str, Sequence[float], str]]) -> None:
    base = [0.0] * len(numbers)
    for name, heights, color in parts:
        bars = [(n - BAR / 2, b, BAR, h) for n, b, h in zip(numbers, base, heights, strict=True)]
        boxes(axes, bars, color, name)
        base = [b + h for b, h in zip(base, heights, strict=True)]
    axes.set_ylim(0, 1.05 * max([*base, 1e-9]))


def draw_seconds(f: Figures) -> Drawn | None:
    """Where a step's seconds go."""
    steps = [s for s in f.by_step if s.seconds]
    if not steps:
        return None
    title = "Where the time of each step went"
    finding = f"wall time of the run {duration(f.seconds)}: " + ", ".join(
        f"{name} {duration(f.seconds_by_phase[name])}" for name, _ in PHASES if name in f.seconds_by_phase
    )
    picture, panels = canvas(title, finding, [1.9, 1.9])
    numbers = [s.step for s in steps]
    step_axis(f, panels, numbers)
    _stacked(panels[0], numbers, _parts(PHASES, [s.seconds for s in steps]))
    periods = [(s.step, s.period_s) for s in steps if s.period_s is not None]
    if periods:
        axes_points = tuple(zip(*periods, strict=True))
        panels[0].plot(*axes_points, "D", color="white", markeredgecolor=INK, markersize=4, label="cost to the run")
    _stacked(panels[1], numbers, _parts(TRIAL_PHASES, [_per_trial(s) for s in steps]))
    name_axis(panels[0], "phases, s of\nwall time")
    name_axis(panels[1], "a trial's time, s\n(mean of those launched)")
    for axes in panels:
        legend_beside(axes, reverse=True)
    return Drawn(
        title,
        "Above: the phases of each step; rollout of a step overlaps training of the one before, so a bar is higher "
        "than what the step cost the run (diamonds: from the end of the step before to its own). Below: what an "
        "average trial of the step spent its time on.",
        picture,
    )


def _parts(
    phases: Sequence[tuple[str, str]], seconds: Sequence[dict[str, float]]
) -> list[tuple[str, list[float], str]]:
    found = [(name, [s.get(name, 0.0) for s in seconds], color) for name, color in phases]
    return [part for part in found if any(part[1])]


def _per_trial(step: StepFigures) -> dict[str, float]:
    return {name: seconds / max(1, step.launched) for name, seconds in step.trial_seconds.items()}
