"""Pictures of the evidence, as PNG. Only the Agg backend; the same figures give the same file."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.learning.part import Picture

PICTURES = Path(__file__).parent.parent.parent / "docs" / "pictures"
INK = ("#1f4e79", "#c0504d", "#6a8f3c", "#8064a2", "#e08a1e")


def draw(picture: Picture, folder: Path) -> Path:
    """Writes ``folder/NAME.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(7.2, 3.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.grid(alpha=0.25)
    picture.draw(axes)
    axes.set_title(picture.title, loc="left", fontsize=10)
    path = folder / f"{picture.name}.png"
    figure.savefig(path, metadata={"Software": None})
    return path
