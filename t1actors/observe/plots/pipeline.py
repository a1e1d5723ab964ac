"""The picture of one step on the wall clock: a lane for each trial, and below them what went on beside."""

from __future__ import annotations

from collections import defaultdict

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from t1actors.observe.lanes import Lanes
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
    boxes,
    canvas,
    legend_beside,
    name_axis,
)
from t1actors.observe.quantities import duration

COLORS = {
    "wait for a sandbox": PALE,
    "create sandbox": YELLOW,
    "wait for the engine": GREY,
    "sample": BLUE,
    "run command": GREEN,
    "seal": PINK,
    "wait for a grader": "#EBD9B0",
    "grade": ORANGE,
}
OTHER_STEP = "#C9D6DF"
MOST_LANES = 128
"""More would be thinner than a dot; then every second, third, ... is drawn."""
GAPS_UP_TO = 48
NAMED_SHARE = 0.05
"""A bar narrower than this share of the step has no room for its name."""


def draw_pipeline(lanes: Lanes) -> Drawn | None:
    """One step on the wall clock: trials and actors."""
    if lanes.end_ns <= lanes.start_ns or not lanes.trials:
        return None
    every = -(-len(lanes.trials) // MOST_LANES)
    shown = lanes.trials[::every]
    title = f"Step {lanes.step} ({lanes.purpose}) on the wall clock"
    seconds = _at(lanes, lanes.end_ns)
    sealed = f"batch sealed after {duration(_at(lanes, lanes.sealed_ns))}, " if lanes.sealed_ns else ""
    finding = f"{len(lanes.trials)} trials, {sealed}step over after {duration(seconds)}"
    beside = [lane for lane in lanes.actors if lane.bars]
    heights = [max(1.1, min(3.6, 0.12 * len(shown))), *([0.24 * len(beside)] if beside else [])]
    picture, panels = canvas(title, finding, heights, left_in=0.95, right_in=1.55)
    _trials(panels[0], lanes, every)
    if beside:
        _beside(panels[1], lanes)
    for axes in panels:
        axes.set_xlim(0, seconds)
        if lanes.sealed_ns:
            axes.axvline(_at(lanes, lanes.sealed_ns), color=INK, linewidth=1, linestyle="--")
        for pause in lanes.pauses:
            axes.axvline(_at(lanes, pause.start_ns), color=RED, linewidth=1.5, linestyle=":")
    panels[-1].set_xlabel("seconds since the step opened", fontsize=8)
    thinned = f" Every {every}th trial is shown." if every > 1 else ""
    still = ", ".join(duration(pause.seconds) for pause in lanes.pauses)
    paused = f" Red, dotted: here the run stood still for {still}, which is left out." if lanes.pauses else ""
    return Drawn(
        title,
        "Each line is a trial, from its sandbox to its grade; white between two bars is a hand-over from actor to "
        "actor. The dashed line is where the batch was sealed; below it, blue is training on this step, grey what "
        f"was done for its neighbours at the same time.{thinned}{paused}",
        picture,
    )


def _at(lanes: Lanes, ns: int) -> float:
    """Seconds since the step opened, without pauses."""
    still_ns = sum(max(0, min(ns, pause.end_ns) - pause.start_ns) for pause in lanes.pauses)
    return (ns - lanes.start_ns - still_ns) / 1e9


def _trials(axes: Axes, lanes: Lanes, every: int) -> None:
    # Lanes of a few dots with gaps between them would look uneven.
    height = every * (0.86 if len(lanes.trials) <= GAPS_UP_TO else 1.0)
    by_doing: defaultdict[str, list[tuple[float, float, float, float]]] = defaultdict(list)
    for place in range(0, len(lanes.trials), every):
        for bar in lanes.trials[place].bars:
            start = _at(lanes, bar.start_ns)
            by_doing[bar.what].append((start, place - height / 2, _at(lanes, bar.end_ns) - start, height))
    for what, color in COLORS.items():
        if what in by_doing:
            boxes(axes, by_doing[what], color, what)
    axes.set_ylim(len(lanes.trials) - 0.4, -0.6 * every)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.grid(visible=False, axis="y")
    name_axis(axes, "trials, by index")
    legend_beside(axes)


def _beside(axes: Axes, lanes: Lanes) -> None:
    rows = [lane for lane in lanes.actors if lane.bars]
    seconds = _at(lanes, lanes.end_ns)
    for row, lane in enumerate(rows):
        for bar in lane.bars:
            mine = bar.step == lanes.step
            start = _at(lanes, bar.start_ns)
            width = _at(lanes, bar.end_ns) - start
            color = (SKY if bar.what in ("values", "rollout") else BLUE) if mine else OTHER_STEP
            boxes(axes, [(start, row - 0.39, width, 0.78)], color)
            if width > NAMED_SHARE * seconds:
                name = f"{bar.what} {bar.step}"
                ink = "white" if color == BLUE else INK
                axes.text(start + width / 2, row, name, ha="center", va="center", fontsize=7, color=ink, clip_on=True)
    axes.set_yticks(range(len(rows)), [lane.name for lane in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
