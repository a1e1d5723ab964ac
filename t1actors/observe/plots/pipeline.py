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
NAMED_SHARE = 0.05
"""A bar narrower than this share of the step has no room for its name."""


def draw_pipeline(lanes: Lanes) -> Drawn | None:
    if lanes.end_ns <= lanes.start_ns or not lanes.trials:
        return None
    every = -(-len(lanes.trials) // MOST_LANES)
    shown = lanes.trials[::every]
    title = f"Step {lanes.step} ({lanes.purpose}) on the wall clock"
    seconds = (lanes.end_ns - lanes.start_ns) / 1e9
    sealed = f"batch sealed after {duration((lanes.sealed_ns - lanes.start_ns) / 1e9)}, " if lanes.sealed_ns else ""
    finding = f"{len(lanes.trials)} trials, {sealed}step over after {duration(seconds)}"
    beside = [lane for lane in lanes.actors if lane.bars]
    heights = [max(0.8, min(3.6, 0.12 * len(shown))), *([0.24 * len(beside)] if beside else [])]
    picture, panels = canvas(title, finding, heights, left_in=0.95, right_in=1.55)
    _trials(panels[0], lanes, every)
    if beside:
        _beside(panels[1], lanes)
    for axes in panels:
        axes.set_xlim(0, seconds)
        if lanes.sealed_ns:
            axes.axvline((lanes.sealed_ns - lanes.start_ns) / 1e9, color=INK, linewidth=1, linestyle="--")
        for pause in lanes.pauses:
            axes.axvspan(_at(lanes, pause.start_ns), _at(lanes, pause.end_ns), color=PALE, hatch="//", zorder=3)
    panels[-1].set_xlabel("seconds since the step opened", fontsize=8)
    thinned = f" Every {every}th trial is shown." if every > 1 else ""
    paused = " Hatched: the run stood still." if lanes.pauses else ""
    return Drawn(
        title,
        "Each line is a trial, from its sandbox to its grade; white between two bars is a hand-over from actor to "
        "actor. The dashed line is where the batch was sealed; below it, blue is training on this step, grey what "
        f"was done for its neighbours at the same time.{thinned}{paused}",
        picture,
    )


def _at(lanes: Lanes, ns: int) -> float:
    return (ns - lanes.start_ns) / 1e9


def _trials(axes: Axes, lanes: Lanes, every: int) -> None:
    by_doing: defaultdict[str, list[tuple[float, float, float, float]]] = defaultdict(list)
    for place in range(0, len(lanes.trials), every):
        for bar in lanes.trials[place].bars:
            width = (bar.end_ns - bar.start_ns) / 1e9
            by_doing[bar.what].append((_at(lanes, bar.start_ns), place - 0.43 * every, width, 0.86 * every))
    for what, color in COLORS.items():
        if what in by_doing:
            boxes(axes, by_doing[what], color, what)
    axes.set_ylim(len(lanes.trials) - 0.4, -0.6 * every)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.grid(visible=False, axis="y")
    name_axis(axes, "trials, in order of index")
    legend_beside(axes)


def _beside(axes: Axes, lanes: Lanes) -> None:
    rows = [lane for lane in lanes.actors if lane.bars]
    seconds = (lanes.end_ns - lanes.start_ns) / 1e9
    for row, lane in enumerate(rows):
        for bar in lane.bars:
            mine = bar.step == lanes.step
            start, width = _at(lanes, bar.start_ns), (bar.end_ns - bar.start_ns) / 1e9
            color = (SKY if bar.what in ("values", "rollout") else BLUE) if mine else OTHER_STEP
            boxes(axes, [(start, row - 0.39, width, 0.78)], color)
            if width > NAMED_SHARE * seconds:
                name = f"{bar.what} {bar.step}"
                ink = "white" if color == BLUE else INK
                axes.text(start + width / 2, row, name, ha="center", va="center", fontsize=7, color=ink, clip_on=True)
    axes.set_yticks(range(len(rows)), [lane.name for lane in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
