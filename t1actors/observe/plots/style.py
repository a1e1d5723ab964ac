"""How all pictures look: sizes, colours, axes, and the few drawing helpers that they share.

Guarantees: colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart, and lines that
cross differ in dash or marker too; an exact zero keeps its place on a logarithmic axis; labels beside lines never overlap.
Only this package loads matplotlib, and only its Agg backend: no screen is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from t1actors.observe.figures import Figures

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PINK, YELLOW = "#56B4E9", "#CC79A7", "#F0E442"
INK, GREY, PALE = "#222222", "#777777", "#D9D9D9"
WIDTH_IN = 8.0
DPI = 110
TITLE_IN, FOOT_IN, LEFT_IN, GAP_IN = 0.62, 0.48, 0.86, 0.16
NAME_IN = 0.2
"""Where the name of a vertical axis is, from the left edge."""
LABEL_PT = 8
LABEL_SPACING_PT = 10.5
LOWEST_DECADE = 1e-9
"""Where the axis of a series of zeros begins."""
DECADES_SHOWN = 6
SMALL_SHARE = 1e-2
"""An axis of shares reaches down to this, so that 100 % is not next to 0."""


@dataclass(frozen=True)
class Drawn:
    """A picture, not saved yet; ``how_to_read`` is its caption."""

    title: str
    how_to_read: str
    figure: Figure


@dataclass(frozen=True)
class Picture:
    """A picture in its file."""

    title: str
    how_to_read: str
    path: Path


def canvas(
    title: str, finding: str, heights_in: Sequence[float], *, right_in: float = 1.75, left_in: float = LEFT_IN
) -> tuple[Figure, list[Axes]]:
    """A picture with panels of these heights below one another; ``right_in`` is room for labels. Sizes are fixed rather
    than found by a layout engine: that takes half as long again as the drawing."""
    height_in = TITLE_IN + sum(heights_in) + GAP_IN * (len(heights_in) - 1) + FOOT_IN
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI)
    FigureCanvasAgg(figure)
    left_edge = 0.12 / WIDTH_IN
    figure.text(left_edge, 1 - 0.22 / height_in, title, fontsize=11, fontweight="bold", color=INK, va="center")
    figure.text(left_edge, 1 - 0.44 / height_in, finding, fontsize=8.5, color=GREY, va="center")
    panels: list[Axes] = []
    top_in = height_in - TITLE_IN
    for panel_in in heights_in:
        box = (
            left_in / WIDTH_IN,
            (top_in - panel_in) / height_in,
            (WIDTH_IN - left_in - right_in) / WIDTH_IN,
            panel_in / height_in,
        )
        axes = figure.add_axes(box)
        axes.grid(visible=True, color=PALE, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8, color=GREY)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        panels.append(axes)
        top_in -= panel_in + GAP_IN
    for axes in panels[:-1]:
        axes.tick_params(labelbottom=False)
    return figure, panels


def save(figure: Figure, path: Path) -> None:
    """As PNG without a date or the name of a program: the same picture is the same file."""
    figure.savefig(path, metadata={"Software": None})


# --- axes -------------------------------------------------------------------------------------------------------------


def step_axis(f: Figures, panels: Sequence[Axes], steps: Sequence[int], *, margin: float = 0.6) -> None:
    """The steps below all of ``panels``, and the places where the run was resumed."""
    first, last = min(steps), max(steps)
    for axes in panels:
        axes.set_xlim(first - margin, last + margin)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
        for resume in f.resumes:
            if resume.step is not None and first <= resume.step <= last:
                axes.axvline(resume.step, color=GREY, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
    panels[-1].set_xlabel("step", fontsize=8)
    for resume in f.resumes:
        if resume.step is not None and first <= resume.step <= last:
            panels[0].annotate(
                "resumed",
                (resume.step, 1),
                (2, -1),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                fontsize=7,
                color=GREY,
                va="top",
            )


def name_axis(axes: Axes, text: str) -> None:
    """Name the vertical axis, at the same distance from the picture's edge in every panel."""
    axes.annotate(
        text,
        (72 * NAME_IN, 0.5),
        xycoords=("figure points", "axes fraction"),
        annotation_clip=False,
        rotation=90,
        fontsize=8,
        ha="center",
        va="center",
        multialignment="center",
    )


def zero_floor(values: Iterable[float]) -> float:
    """Where zeros stand on a logarithmic axis: at least a decade below the smallest value that is none."""
    positive = [value for value in values if value > 0]
    return 10.0 ** (math.floor(math.log10(min(positive))) - 1) if positive else LOWEST_DECADE


def log_axis(axes: Axes, values: Sequence[float], *, percent: bool = False) -> float:
    """Make the vertical axis logarithmic, over ``values``; where exact zeros have to be drawn. Their place is called "0",
    and nothing else is ever drawn there."""
    zeros = any(value == 0 for value in values)
    floor = zero_floor([*values, SMALL_SHARE] if percent else values)
    top = max(values) or floor * 100
    axes.set_yscale("log")
    low = math.floor(math.log10(floor)) + 1
    high = math.ceil(math.log10(top))
    every = max(1, math.ceil((high - low + 1) / DECADES_SHOWN))
    ticks = [10.0**n for n in range(low, high + 1, every)] if any(value > 0 for value in values) else []
    axes.yaxis.set_major_locator(FixedLocator([*([floor] if zeros else []), *ticks]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, floor if zeros else None, percent)))
    axes.set_ylim(floor / 1.8 if zeros else floor * 5, 10.0**high * 1.3)
    if zeros:
        axes.axhspan(floor / 1.8, floor * 2.2, color=PALE, alpha=0.45, linewidth=0, zorder=0)
    return floor


def _tick(value: float, floor: float | None, percent: bool) -> str:
    if floor is not None and math.isclose(value, floor):
        return "0"
    return f"{100 * value:g} %" if percent else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e+")


def boxes(axes: Axes, found: Iterable[tuple[float, float, float, float]], color: str, name: str = "") -> None:
    """Filled boxes (left, bottom, width, height) of one colour, as a single artist: a thousand bars cost as much as ten."""
    corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in found]
    axes.add_collection(PolyCollection(corners, facecolors=color, linewidths=0, label=name or "_"))


# --- lines and their names ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Label:
    """``text`` beside the axes, at the height of ``at``."""

    at: float
    text: str
    color: str


def label_beside(axes: Axes, labels: Sequence[Label]) -> None:
    """Write ``labels`` to the right of the axes, each as near to its height as the others let it be."""
    if not labels:
        return
    points_per_pixel = 72 / DPI
    box = axes.get_window_extent()
    wanted = [axes.transData.transform((0, label.at))[1] * points_per_pixel for label in labels]
    bottom, top = box.y0 * points_per_pixel, box.y1 * points_per_pixel
    order = sorted(range(len(labels)), key=lambda n: wanted[n])
    places = spread([min(top, max(bottom, wanted[n])) for n in order], LABEL_SPACING_PT, top + LABEL_SPACING_PT)
    right = box.x1 * points_per_pixel
    for n, place in zip(order, places, strict=True):
        # From the line's end to its name, in points from the picture's corner.
        start, stop = (right + 2, min(top, max(bottom, wanted[n]))), (right + 11, place)
        axes.annotate(
            "",
            stop,
            start,
            xycoords="figure points",
            textcoords="figure points",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": labels[n].color, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0},
        )
        axes.annotate(
            labels[n].text,
            (right + 13, place),
            xycoords="figure points",
            annotation_clip=False,
            fontsize=LABEL_PT,
            color=labels[n].color,
            va="center",
        )


def spread(places: Sequence[float], spacing: float, top: float) -> list[float]:
    """Ascending ``places``, moved as little as needed to lie ``spacing`` apart and, if there is room, below ``top``."""
    moved: list[list[float]] = []
    for place in places:
        moved.append([place])
        # Labels that touch form a block around their common middle.
        while len(moved) > 1 and _start(moved[-1], spacing) < _end(moved[-2], spacing):
            moved[-2:] = [[*moved[-2], *moved[-1]]]
    found = [_start(block, spacing) + (n + 0.5) * spacing for block in moved for n in range(len(block))]
    limit = top
    for n in reversed(range(len(found))):
        found[n] = min(found[n], limit)
        limit = found[n] - spacing
    return found


def _start(block: Sequence[float], spacing: float) -> float:
    return sum(block) / len(block) - spacing * len(block) / 2


def _end(block: Sequence[float], spacing: float) -> float:
    return _start(block, spacing) + spacing * len(block)


def legend_beside(axes: Axes, *, title: str = "", reverse: bool = False) -> None:
    """A legend to the right of the axes."""
    handles, names = axes.get_legend_handles_labels()
    if reverse:  # as they are stacked
        handles, names = handles[::-1], names[::-1]
    axes.legend(
        handles,
        names,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.02),
        borderaxespad=0,
        frameon=False,
        fontsize=LABEL_PT,
        title=title or None,
        title_fontsize=LABEL_PT,
        alignment="left",
        handlelength=1.2,
    )
