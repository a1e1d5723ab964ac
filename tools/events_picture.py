"""Draws who states each event and who acts on it, from the code itself, as SVG.

    python tools/events_picture.py                # writes docs/pictures/events.svg
    python tools/events_picture.py --out FILE

An actor states the events that its file builds (or one that begins with its name, as `pool_state.py` does), and acts on
those that its `fold` or `decide` matches and an actor in its `reads` states. Found by reading the source (nothing is
imported), so the picture cannot say what the code does not; a test compares the committed one. Only the order of the rows is
written here: it tells the story of a step, and an event that is not in it stops the script.
"""

from __future__ import annotations

import argparse
import ast
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "events.svg"
ACTORS = ("publisher", "pool", "sampler", "verifier", "assembler", "critic", "actor")
STORY = {
    "the run begins": ("CriticInitialised", "ActorInitialised", "SandboxesReaped"),
    "a step opens": ("StepOpened", "SandboxRequested", "SandboxReady"),
    "a trial, turn by turn": (
        "TurnSampled",
        "CommandRequested",
        "TurnExecuted",
        "SandboxRestored",
        "ObservationDiverged",
        "EpisodeEnded",
    ),
    "it is graded": ("SandboxSealed", "SandboxReclaimed", "Graded", "TrajectoryAssembled"),
    "what goes wrong": ("SandboxRetried", "TrialFailed", "TaskQuarantined", "TrialReplaced", "BatchShort"),
    "the batch is full": ("BatchSealed", "TrialCancelled"),
    "training": ("ValuesEstimated", "CriticUpdated", "ActorUpdated"),
    "the barrier": ("BarrierOpened", "GenerationQuiesced", "WeightsOffered", "WeightsLoaded", "WeightsPublished"),
    "the run ends": ("ModelExported", "RunPaused", "RunFinished", "RunFailed"),
}
"""The rows, in the order in which things happen."""


@dataclass(frozen=True)
class Part:
    """What one actor's source says."""

    reads: frozenset[str]
    states: frozenset[str]
    matches: frozenset[str]


@dataclass(frozen=True)
class Row:
    """An event, the actors that state it, and those that act on it."""

    event: str
    states: tuple[str, ...]
    acts: tuple[str, ...]


@cache
def event_names() -> frozenset[str]:
    """The classes of events.py that are events, the runtime's and the supervisor's included."""
    tree = ast.parse((ROOT / "t1actors" / "events.py").read_text())
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == "Event" for b in node.bases)
    )


@cache
def part(name: str) -> Part:
    """The actor ``name``, from t1actors/actors/NAME.py and NAME_*.py."""
    folder = ROOT / "t1actors" / "actors"
    files = [folder / f"{name}.py", *sorted(folder.glob(f"{name}_*.py"))]
    events = event_names()
    reads: set[str] = set()
    states: set[str] = set()
    matches: set[str] = set()
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            states.add(node.func.id)
        elif isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name):
            matches.add(node.cls.id)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "reads":
            reads = {constant.value for constant in ast.walk(node.value) if isinstance(constant, ast.Constant)}
    return Part(frozenset(reads), frozenset(states & events), frozenset(matches & events))


def rows() -> dict[str, list[Row]]:
    """Section -> its rows. Raises ``SystemExit`` for an event that an actor states and the story lacks."""
    parts = {name: part(name) for name in ACTORS}
    told = [event for events in STORY.values() for event in events]
    stated = {event for p in parts.values() for event in p.states}
    if stated != set(told) or len(told) != len(set(told)):
        raise SystemExit(f"tools/events_picture.py: put these events where they belong in STORY: {stated ^ set(told)}")

    def row(event: str) -> Row:
        states = tuple(name for name in ACTORS if event in parts[name].states)
        acts = tuple(n for n in ACTORS if event in parts[n].matches and parts[n].reads & (set(states) - {n}))
        return Row(event, states, acts)

    return {section: [row(event) for event in events] for section, events in STORY.items()}


# --- drawing ------------------------------------------------------------------------------------------------------------

NAME_END, FIRST_X, LANE, ROW, TOP = 214, 268, 92, 23, 52
INK, PALE, STATES, ACTS, BAND = "#1f2328", "#6e7781", "#0969da", "#bc4c00", "#f6f8fa"


def svg() -> str:
    """The whole picture, as wide as a page on GitHub: it is read without zooming."""
    width = FIRST_X + LANE * (len(ACTORS) - 1) + 60
    lane = {name: FIRST_X + LANE * n for n, name in enumerate(ACTORS)}
    bands: list[str] = []
    marks: list[str] = []
    y = TOP
    for number, (section, found) in enumerate(rows().items()):
        if number % 2 == 0:
            height = ROW * (len(found) + 1)
            bands.append(f'<rect x="0" y="{y - 16}" width="{width}" height="{height}" fill="{BAND}"/>')
        marks.append(f'<text x="12" y="{y}" fill="{PALE}" font-style="italic">{escape(section)}</text>')
        for row in found:
            y += ROW
            marks += drawn(row, lane, y - 4)
        y += ROW
    lanes = [
        f'<line x1="{x}" y1="34" x2="{x}" y2="{y - 16}" stroke="#d0d7de"/>'
        f'<text x="{x}" y="24" text-anchor="middle" font-weight="bold" fill="{INK}">{name}</text>'
        for name, x in lane.items()
    ]
    legend = [
        f'<circle cx="20" cy="{y}" r="5" fill="{STATES}"/><text x="32" y="{y + 4}" fill="{INK}">states the event</text>',
        f'<circle cx="164" cy="{y}" r="4.5" fill="white" stroke="{ACTS}" stroke-width="2"/>',
        f'<text x="176" y="{y + 4}" fill="{INK}">acts on it (the supervisor, displays and reports aside)</text>',
    ]
    height = y + 16
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="-apple-system, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif" font-size="13">',
            "<title>Which actor states each event, and which act on it</title>",
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *bands,
            *lanes,
            *marks,
            *legend,
            "</svg>\n",
        ]
    )


def drawn(row: Row, lane: dict[str, int], y: int) -> list[str]:
    """One row: a line from the leftmost to the rightmost actor concerned, and a mark on each."""
    xs = [lane[name] for name in (*row.states, *row.acts)]
    marks = [f'<text x="{NAME_END}" y="{y + 4}" text-anchor="end" fill="{INK}">{row.event}</text>']
    if len(xs) > 1:
        marks.append(f'<line x1="{min(xs)}" y1="{y}" x2="{max(xs)}" y2="{y}" stroke="{PALE}" stroke-width="1.2"/>')
    marks += [
        f'<circle cx="{lane[name]}" cy="{y}" r="4.5" fill="white" stroke="{ACTS}" stroke-width="2"/>'
        for name in row.acts
        if name not in row.states
    ]
    marks += [f'<circle cx="{lane[name]}" cy="{y}" r="5" fill="{STATES}"/>' for name in row.states]
    return marks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PICTURE, metavar="FILE")
    out: Path = parser.parse_args().out
    out.write_text(svg())
    print(out)


if __name__ == "__main__":
    main()
