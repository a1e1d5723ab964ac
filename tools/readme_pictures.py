"""The two pictures of README.md, from a recorded run.

    python tools/readme_pictures.py RUN [--step N] [--out FOLDER]

`learning.png`: what was learnt, and the difference between sampler and trainer beside it. `screen.svg`: the live screen as it
was when training step N (in the middle, by default) was done. Both are functions of the log; the committed ones are in
docs/pictures/.
"""

from __future__ import annotations

import argparse
import io
import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from t1actors.events import ActorUpdated, decode
from t1actors.log.frame import Frame
from t1actors.observe.display import STYLES
from t1actors.observe.figures import Figures, figures
from t1actors.observe.fold import fold_frame
from t1actors.observe.follow import RunReader, open_run
from t1actors.observe.plots.learning import smoothed
from t1actors.observe.plots.style import BLUE, GREEN, GREY, ORANGE, PALE, RED, save
from t1actors.observe.screen import screen
from t1actors.observe.view import RunView

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
SCREEN_COLUMNS = 86
FONTS = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono"


def frames_of(run: Path) -> list[Frame]:
    """All frames, in causal order."""
    reader, found = RunReader(open_run(run)), list[Frame]()
    while frames := reader.poll():
        found += frames
    return found


def view_at(frames: Sequence[Frame], now_ns: int | None = None) -> RunView:
    """The view of the run at its end, or as it was at a moment of its wall clock."""
    view = RunView()
    for frame in frames:
        if now_ns is None or frame.head.wall_ns <= now_ns:
            fold_frame(view, frame)
    return view


def trained_at_ns(frames: Sequence[Frame], step: int) -> int:
    """When the step's ActorUpdated was written. Raises ``SystemExit``."""
    for frame in frames:
        for event in map(decode, frame.events):
            if isinstance(event, ActorUpdated) and event.step == step:
                return frame.head.wall_ns
    raise SystemExit(f"step {step} of this run was not trained")


def screen_svg(view: RunView, now_ns: int, title: str) -> str:
    """The screen of that moment, as a picture of a terminal. No font is loaded from elsewhere."""
    console = Console(record=True, width=SCREEN_COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in screen(view, now_ns, SCREEN_COLUMNS):
        console.print(Text(line.text, style=STYLES[line.tone], no_wrap=True, overflow="ellipsis"))
    svg = console.export_svg(title=title, theme=MONOKAI, unique_id="t1")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("font-family: Fira Code,", f"font-family: {FONTS},")
    return svg.replace("font-family: arial", "font-family: Arial, sans-serif")


def draw_learning(f: Figures) -> Figure:
    """Share of assertions passed, and held-out tasks before and after; the gap in its parts, largest and mean."""
    picture = Figure(figsize=(8.6, 3.1), dpi=110, layout="constrained")
    FigureCanvasAgg(picture)
    learnt, gap = picture.subplots(1, 2, width_ratios=(3, 2))
    trained = [s for s in f.by_step if s.purpose == "train" and s.frac is not None]
    steps = [s.step for s in trained]
    shares = [100 * (s.frac or 0.0) for s in trained]
    learnt.plot(steps, shares, "o", color=BLUE, markersize=2.5, alpha=0.5)
    learnt.plot(steps, smoothed(shares), color=BLUE, linewidth=1.8, label="training tasks")
    ends = (steps[0] - 2, steps[-1] + 2)
    for name, before, after, colour, mark in (
        ("held out, sampled", f.heldout_before, f.heldout_after, GREEN, "s"),
        ("held out, greedy", f.sft_greedy, f.trained_greedy, ORANGE, "^"),
    ):
        if before is not None and after is not None:
            learnt.plot(ends, (100 * before, 100 * after), mark, color=colour, markersize=6, label=name)
    learnt.set_title("assertions passed, %", fontsize=9, loc="left")
    learnt.legend(fontsize=8, frameon=False, loc="lower right")
    updates = [s for s in trained if s.engine_gap_mean is not None]
    steps = [s.step for s in updates]
    for name, values, colour, dash in (
        ("policy movement, mean", [s.policy_movement_mean for s in updates], GREEN, "-"),
        ("engine gap, largest", [s.engine_gap_max for s in updates], RED, "--"),
        ("engine gap, mean", [s.engine_gap_mean for s in updates], BLUE, "-"),
    ):
        drawn = [(step, value) for step, value in zip(steps, values, strict=True) if value]
        if drawn:
            gap.plot(*zip(*drawn, strict=True), color=colour, linestyle=dash, linewidth=1.5, label=name)
        else:  # no place on a logarithmic axis
            gap.plot([], [], color=colour, linestyle=dash, linewidth=1.5, label=f"{name}: exactly 0 in every step")
    gap.set_yscale("log")
    gap.set_title("sampler against trainer, nats a token", fontsize=9, loc="left")
    gap.legend(fontsize=8, frameon=False, loc="upper right")
    for axes in (learnt, gap):
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8, color=GREY)
        axes.grid(visible=True, color=PALE, linewidth=0.5)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="a finished run's directory")
    parser.add_argument("--step", type=int, metavar="N", help="the training step after which the screen is shown")
    parser.add_argument("--out", type=Path, default=PICTURES, metavar="FOLDER")
    arguments = parser.parse_args()
    frames = frames_of(arguments.run)
    found = figures(view_at(frames))
    save(draw_learning(found), arguments.out / "learning.png")
    trained = [s.step for s in found.by_step if s.purpose == "train"]
    step = arguments.step if arguments.step is not None else trained[len(trained) // 2]
    now_ns = trained_at_ns(frames, step)
    (arguments.out / "screen.svg").write_text(screen_svg(view_at(frames, now_ns), now_ns, "just run-cluster"))
    print(f"{arguments.out}/learning.png, {arguments.out}/screen.svg (after step {step})")


if __name__ == "__main__":
    main()
