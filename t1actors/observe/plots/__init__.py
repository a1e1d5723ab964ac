"""The pictures of a report, as PNG. A run without the data for one gets none of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from t1actors.observe.figures import Figures
from t1actors.observe.lanes import Lanes
from t1actors.observe.plots.fidelity import draw_boundaries, draw_gap, draw_policy
from t1actors.observe.plots.learning import draw_critic, draw_families, draw_reward
from t1actors.observe.plots.pipeline import draw_pipeline
from t1actors.observe.plots.style import Drawn, Picture, save
from t1actors.observe.plots.work import draw_episodes, draw_seconds

PICTURES: tuple[tuple[str, Callable[[Figures], Drawn | None]], ...] = (
    ("reward", draw_reward),
    ("families", draw_families),
    ("gap", draw_gap),
    ("policy", draw_policy),
    ("critic", draw_critic),
    ("episodes", draw_episodes),
    ("boundaries", draw_boundaries),
    ("seconds", draw_seconds),
)
"""File name and function, in the order in which a report shows them."""


def draw_all(
    f: Figures, lanes: Lanes | None, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Picture]:
    """Write every picture that the run has data for into ``folder``, and remove those of an earlier report. ``progress``
    hears of pictures: done, total."""
    folder.mkdir(parents=True, exist_ok=True)
    drawers: dict[str, Callable[[], Drawn | None]] = {name: partial(draw, f) for name, draw in PICTURES}
    drawers["pipeline"] = lambda: draw_pipeline(lanes) if lanes is not None else None
    pictures: list[Picture] = []
    for done, (name, draw) in enumerate(drawers.items()):
        progress(done, len(drawers))
        picture = draw()
        path = folder / f"{name}.png"
        if picture is None:
            path.unlink(missing_ok=True)
            continue
        save(picture.figure, path)
        pictures.append(Picture(picture.title, picture.how_to_read, path))
    progress(len(drawers), len(drawers))
    return pictures
