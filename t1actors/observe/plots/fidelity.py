"""Pictures of how exact training is: the gap in its two parts, the size of updates, the boundaries between turns."""

from __future__ import annotations

from matplotlib.axes import Axes

from t1actors.observe.figures import Figures
from t1actors.observe.plots.learning import training
from t1actors.observe.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    RED,
    Drawn,
    Label,
    canvas,
    label_beside,
    log_axis,
    name_axis,
    step_axis,
)
from t1actors.observe.quantities import figure, percent
from t1actors.observe.warning_signs import WARN_CLIP, WARN_KL

Points = list[tuple[int, float]]
CASES = (
    ("STRICT", BLUE, "-", "o"),
    ("NORMALIZED", GREEN, "--", "^"),
    ("RETOKENIZED", ORANGE, "-.", "s"),
    ("SPLIT", RED, ":", "D"),
)


def _line(axes: Axes, points: Points, floor: float, color: str, dash: str, marker: str = "o") -> None:
    """A line on a logarithmic axis: zeros stand on its floor, hollow."""
    steps = [step for step, _ in points]
    axes.plot(steps, [value or floor for _, value in points], dash, color=color, linewidth=1.3)
    for zero in (False, True):
        marked = [(step, value or floor) for step, value in points if (value == 0) is zero]
        if marked:
            fill = "white" if zero else color
            axes.plot(*zip(*marked, strict=True), marker, color=color, markersize=3.5, markerfacecolor=fill)


def _zeros(points: Points) -> str:
    count = sum(value == 0 for _, value in points)
    return "always" if count == len(points) else f"in {count} of {len(points)} steps" if count else "never"


def draw_gap(f: Figures) -> Drawn | None:
    """Engine gap and policy movement, mean and largest."""
    series: list[tuple[str, Points, str, str, str]] = []
    for name, attribute, color in (("engine gap", "engine_gap", RED), ("policy movement", "policy_movement", BLUE)):
        for part, dash, marker in (("mean", "-", "o"), ("max", ":", "^")):
            values = [(s.step, getattr(s, f"{attribute}_{part}")) for s in training(f)]
            points = [(step, float(value)) for step, value in values if value is not None]
            if points:
                series.append((f"{name}, {part}", points, color, dash, marker))
    if not series:
        return None
    title = "The gap between sampler and trainer, in its two parts"
    engine = (
        "exactly 0" if f.engine_gap_max == 0 else f"{figure(f.engine_gap_mean)}, largest {figure(f.engine_gap_max)}"
    )
    movement = f"{figure(f.policy_movement_mean)}, largest {figure(f.policy_movement_max)}"
    finding = f"engine gap {engine}; policy movement {movement}"
    picture, (axes,) = canvas(title, finding, [3.2])
    floor = log_axis(axes, [value for _, points, *_ in series for _, value in points])
    labels: list[Label] = []
    for name, points, color, dash, marker in series:
        _line(axes, points, floor, color, dash, marker)
        labels.append(Label(points[-1][1] or floor, name, color))
    step_axis(f, [axes], [step for step, _ in series[0][1]])
    zeros = ", ".join(f"{name} {_zeros(points)}" for name, points, *_ in series if name.endswith("max"))
    name_axis(axes, "|difference in log-probability|, nats a token")
    label_beside(axes, labels)
    return Drawn(
        title,
        "Red: the trainer against the sampler on the same weights, which should be rounding and not grow. Blue: "
        "how far the weights moved between sampling a batch and training on it, which is wanted. Hollow marks in "
        f"the grey at the foot are exact zeros: {zeros}. The first training batch is sampled by the very weights "
        "that train on it, so nothing has moved yet.",
        picture,
    )


def draw_policy(f: Figures) -> Drawn | None:
    """Entropy, KL and clip share, with the limits of what is healthy."""
    steps = [s for s in training(f) if s.kl is not None and s.clip_share is not None]
    if not steps:
        return None
    title = "Entropy, KL and clip share of the policy"
    numbers = [s.step for s in steps]
    entropy = [(s.step, s.entropy) for s in steps if s.entropy is not None]
    kl = [(s.step, s.kl or 0.0) for s in steps]
    clipped = [(s.step, s.clip_share or 0.0) for s in steps]
    finding = (
        f"largest KL {figure(max(v for _, v in kl))} nats, largest clip share {percent(max(v for _, v in clipped))}"
    )
    picture, panels = canvas(title, finding, [1.3, 1.3, 1.3])
    if entropy:
        panels[0].plot(*zip(*entropy, strict=True), ".-", color=GREEN, linewidth=1.4)
        panels[0].set_ylim(0, 1.2 * max(0.05, *(value for _, value in entropy)))
        label_beside(panels[0], [Label(entropy[-1][1], f"entropy {entropy[-1][1]:.2f}", GREEN)])
    name_axis(panels[0], "entropy,\nnats a token")
    step_axis(f, panels, numbers)
    for axes, points, limit, name, color, as_percent in (
        (panels[1], kl, WARN_KL, "KL", BLUE, False),
        (panels[2], clipped, WARN_CLIP, "clip share", PINK, True),
    ):
        floor = log_axis(axes, [limit, *(value for _, value in points)], percent=as_percent)
        _line(axes, points, floor, color, "-")
        axes.axhline(limit, color=RED, linewidth=1, linestyle="--")
        limit_named = percent(limit) if as_percent else f"{limit:g}"
        label_beside(axes, [Label(points[-1][1] or floor, name, color), Label(limit, f"worrying: {limit_named}", RED)])
    name_axis(panels[1], "KL to behaviour\nversion, nats")
    name_axis(panels[2], "tokens\nclipped")
    return Drawn(
        title,
        "Falling entropy is sharpening; rising entropy goes before a collapse. KL and clip share say how large "
        f"updates are: healthy is well below the dashed lines. Exact zeros: KL {_zeros(kl)}, clip share "
        f"{_zeros(clipped)}.",
        picture,
    )


def draw_boundaries(f: Figures) -> Drawn | None:
    """How turns were joined."""
    steps = [s for s in f.by_step if s.boundaries]
    if not steps:
        return None
    totals = {case: sum(s.boundaries.get(case, 0) for s in steps) for case, *_ in CASES}
    total = sum(totals.values())
    title = "Boundaries between turns, by case"
    finding = f"{total:,} boundaries: " + ", ".join(
        f"{case.lower()} {percent(n / total)}" for case, n in totals.items()
    )
    if altered := sum(s.altered for s in steps):
        finding += f"; {percent(altered / sum(s.sampled for s in steps))} of tokens sampled after a repaired history"
    picture, (axes,) = canvas(title, finding, [2.6])
    series = {
        case: [(s.step, s.boundaries.get(case, 0) / sum(s.boundaries.values())) for s in steps] for case, *_ in CASES
    }
    floor = log_axis(axes, [value for points in series.values() for _, value in points], percent=True)
    labels: list[Label] = []
    for case, color, dash, marker in CASES:
        _line(axes, series[case], floor, color if totals[case] else GREY, dash, marker)
        labels.append(Label(series[case][-1][1] or floor, f"{case} ({totals[case]:,})", color if totals[case] else INK))
    step_axis(f, [axes], [s.step for s in steps])
    name_axis(axes, "share of boundaries")
    label_beside(axes, labels)
    return Drawn(
        title,
        "How each turn was joined to what came before it. STRICT: the ids are what was sampled. NORMALIZED: they "
        "differ only at the edge. RETOKENIZED: the text came back as other ids, and what was sampled is kept. "
        "SPLIT: the turn begins a chunk. No case changes a sampled id in the loss.",
        picture,
    )
