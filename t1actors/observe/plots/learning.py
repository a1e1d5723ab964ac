"""Pictures of what was learnt: reward with its baselines, held-out families, the critic."""

from __future__ import annotations

from collections.abc import Sequence

from t1actors.observe.figures import AVERAGED, Figures, StepFigures
from t1actors.observe.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PINK,
    RED,
    Drawn,
    Label,
    canvas,
    label_beside,
    name_axis,
    step_axis,
)
from t1actors.observe.quantities import figure

SMOOTHED = 5
CLIPPED_VARIANCE = -1.0
"""Explained variance below this is drawn here: a cold critic begins at -100, and would flatten all that comes after."""


def training(f: Figures) -> list[StepFigures]:
    """The steps that train the policy."""
    return [s for s in f.by_step if s.purpose == "train"]


def smoothed(values: Sequence[float]) -> list[float]:
    """Mean of each value with up to two neighbours on either side."""
    half = SMOOTHED // 2
    windows = [values[max(0, n - half) : n + half + 1] for n in range(len(values))]
    return [sum(w) / len(w) for w in windows]


def draw_reward(f: Figures) -> Drawn | None:
    """Reward of training steps and of evaluations."""
    points = [
        (s.step, s.reward, s.reward_quartiles or (s.reward, s.reward)) for s in training(f) if s.reward is not None
    ]
    if not points:
        return None
    steps, rewards, quartiles = zip(*points, strict=True)
    title = "Reward per training step"
    if f.comparable and f.reward_gain is not None:
        finding = (
            f"first {AVERAGED} steps {figure(f.reward_first5)}, last {AVERAGED} {figure(f.reward_last5)}: "
            f"{f.reward_gain:.2f} times"
        )
    else:
        finding = (
            f"{len(points)} training step{'s' if len(points) > 1 else ''}, mean {figure(sum(rewards) / len(rewards))}"
        )
    picture, (axes,) = canvas(title, finding, [3.0])
    low, high = zip(*quartiles, strict=True)
    axes.fill_between(steps, low, high, color=BLUE, alpha=0.13, linewidth=0)
    if len(points) == 1:
        axes.vlines(steps, low, high, color=BLUE, alpha=0.3, linewidth=5)
    axes.plot(steps, rewards, ".", color=BLUE, markersize=5)
    line = smoothed(rewards)
    axes.plot(steps, line, "-", color=BLUE, linewidth=1.6)
    labels = [Label(line[-1], f"last {AVERAGED} steps {f.reward_last5:.3f}" if f.comparable else "training", BLUE)]
    for value, name, color, dash in (
        (f.reward_first5, f"first {AVERAGED} steps", INK, "--")
        if f.comparable
        else (rewards[0], "first batch", INK, "--"),
        (f.heldout_before_reward, "held out before", ORANGE, ":"),
        (f.heldout_after_reward, "held out after", GREEN, "-."),
        (f.sft_greedy_reward, "warm start, greedy", PINK, (0, (6, 2))),
    ):
        if value is not None:
            axes.axhline(value, color=color, linestyle=dash, linewidth=1.2)
            labels.append(Label(value, f"{name} {value:.3f}", color))
    axes.set_ylim(bottom=0)
    step_axis(f, [axes], steps)
    name_axis(axes, "reward (passed / scale)")
    label_beside(axes, labels)
    return Drawn(
        title,
        f"Dots are batch means, the line is the mean of {SMOOTHED}, the band holds the middle half of the trials. "
        "Dashed lines are what to compare with: held-out tasks, sampled, before and after training, and the warm "
        "start decoded greedily, which is what sharpening alone may reach.",
        picture,
    )


def draw_families(f: Figures) -> Drawn | None:
    """What each family of tasks earns."""
    families = [x for x in f.families if x.after is not None or x.before is not None]
    if not families:
        return None
    families.sort(key=lambda x: (x.after if x.after is not None else x.before or 0.0, x.family))
    title = "Assertions passed by task family, held out"
    both = [(x.before, x.after) for x in families if x.before is not None and x.after is not None]
    rose = sum(after > before for before, after in both)
    finding = f"{rose} of {len(both)} families pass more than before training" if both else "before training"
    picture, (axes,) = canvas(title, finding, [max(1.0, 0.22 * len(families) + 0.2)], right_in=1.2, left_in=0.9)
    fallen = False
    for row, x in enumerate(families):
        color = RED if x.fell else BLUE
        fallen = fallen or x.fell
        if x.before is not None and x.after is not None:
            axes.plot([100 * x.before, 100 * x.after], [row, row], "-", color=color, alpha=0.45, linewidth=2)
            gain = f"{100 * (x.after - x.before):+.0f}"
            axes.annotate(
                f"{gain}  (n={x.trials})",
                (1.02, row),
                xycoords=("axes fraction", "data"),
                fontsize=8,
                color=color,
                va="center",
            )
        if x.before is not None:
            axes.plot(100 * x.before, row, "o", color="white", markeredgecolor=GREY, markersize=6)
        if x.after is not None:
            axes.plot(100 * x.after, row, "s" if x.fell else "o", color=color, markersize=6)
    axes.set_yticks(range(len(families)), [x.family for x in families])
    axes.set_ylim(-0.7, len(families) - 0.3)
    axes.set_xlim(-2, 102)
    axes.set_xlabel("assertions passed, %", fontsize=8)
    squares = " A red square: fell by more than two standard errors." if fallen else ""
    return Drawn(
        title,
        "Hollow: before training. Filled: after. Both sampled at temperature 1; at the right the change in "
        f"percentage points and the number of held-out trials with that family.{squares}",
        picture,
    )


def draw_critic(f: Figures) -> Drawn | None:
    """How well the critic explains returns."""
    steps = [s for s in f.by_step if s.explained_variance is not None]
    if not steps:
        return None
    title = "Explained variance of the critic"
    values = [s.explained_variance or 0.0 for s in steps]
    negative = sum(value < 0 for value in values)
    finding = (
        f"first {figure(values[0], 2)}, last {figure(values[-1], 2)}; negative in {negative} of {len(values)} updates"
    )
    picture, (axes,) = canvas(title, finding, [2.4])
    numbers = [s.step for s in steps]
    shown = [max(CLIPPED_VARIANCE, value) for value in values]
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.plot(numbers, shown, ".-", color=BLUE, linewidth=1.4)
    below = [(n, CLIPPED_VARIANCE) for n, value in zip(numbers, values, strict=True) if value < CLIPPED_VARIANCE]
    bad = [(n, value) for n, value in zip(numbers, shown, strict=True) if CLIPPED_VARIANCE <= value < 0]
    if bad:
        axes.plot(*zip(*bad, strict=True), "s", color=RED, markersize=4)
    if below:
        axes.plot(*zip(*below, strict=True), "v", color=RED, markersize=6, clip_on=False)
    axes.set_ylim(CLIPPED_VARIANCE if below else min(-0.1, min(shown) - 0.05), 1.0)
    axes.axhspan(axes.get_ylim()[0], 0, color=PALE, alpha=0.4, linewidth=0, zorder=0)
    step_axis(f, [axes], numbers)
    name_axis(axes, "explained variance (1 = all)")
    label_beside(axes, [Label(shown[-1], f"last {values[-1]:.2f}", BLUE)])
    cut_off = f" Triangles: below {CLIPPED_VARIANCE:g}, off the picture." if below else ""
    return Drawn(
        title,
        "What the values explain of the returns, on episodes that the critic had not learned from yet. In the grey, "
        f"below 0 (red squares), it is worse than a constant.{cut_off}",
        picture,
    )
