"""Rows of text that fit, for the live display and for the progress of commands.

Guarantees: a row takes at most ``width`` cells (wide characters take two); parts that do not fit are left out whole, the
least important first; what must be cut ends in an ellipsis and never in half a number; a bar is full only when all is
done; a row of the ``ASCII`` script is ASCII, whatever text went into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from rich.cells import cell_len, set_cell_size

from t1actors.observe.quantities import one_line

LABEL = 10
"""Cells of a row's name, so that what follows stands in a column."""
COLUMNS_FROM = 40
"""Below this width names take only what they need."""
BAR_CELLS = (30, 20, 12, 8, 5)
"""A bar is as long as the largest of these that there is room for: it does not jump with every digit beside it."""


@dataclass(frozen=True)
class Script:
    """The signs that a terminal can show. ``sparks`` from low to high."""

    full: str
    empty: str
    sparks: str
    between: str
    ellipsis: str


UNICODE = Script("█", "░", "▁▂▃▄▅▆▇█", " · ", "…")
ASCII = Script("#", ".", "_.-:=+*#", " | ", "...")


def script_of(stream: IO[str]) -> Script:
    """``UNICODE`` when the stream's encoding has its signs, or it needs none."""
    try:
        "█░▁·…".encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


@dataclass(frozen=True)
class Part:
    """Of a row's parts those of the lowest ``rank`` are kept longest."""

    text: str
    rank: int = 0


def ranked(*texts: str) -> list[Part]:
    """Parts in order of importance; empty ones are none."""
    return [Part(text, rank) for rank, text in enumerate(texts) if text]


def row(
    label: str,
    parts: Sequence[Part],
    width: int,
    script: Script = UNICODE,
    *,
    meter: tuple[float, float] | None = None,
) -> str:
    """``label`` and the most important parts that fit, in the order given; before them a bar of ``meter`` (done, total)
    when there is room left. The label goes before the first part is cut."""
    head = written(label, script)
    head = f"{head.ljust(LABEL - 1) if width >= COLUMNS_FROM else head} "
    room = width - cell_len(head)
    texts = [written(part.text, script) for part in parts]
    kept: set[int] = set()
    used = 0
    for n in sorted(range(len(parts)), key=lambda n: parts[n].rank):
        needed = cell_len(texts[n]) + (len(script.between) if kept else 0)
        if used + needed <= room:
            kept.add(n)
            used += needed
        elif not kept:
            return cut(texts[n], width, script)
    body = script.between.join(texts[n] for n in sorted(kept))
    if meter is not None and (cells := next((c for c in BAR_CELLS if c + 1 <= room - used), 0)):
        body = f"{bar(*meter, cells, script)} {body}"
    return cut(head + body, width, script).rstrip()


def written(text: str, script: Script) -> str:
    """``text`` on one line, and in signs that the script has."""
    text = one_line(text)
    return text if script is UNICODE else text.encode("ascii", "backslashreplace").decode()


def cut(text: str, width: int, script: Script = UNICODE) -> str:
    """At most ``width`` cells of ``text``, cut between words where there are any."""
    if cell_len(text) <= width:
        return text
    room = width - len(script.ellipsis)
    if room <= 0:
        return script.ellipsis[:width]
    kept = set_cell_size(text, room)
    words = kept.rpartition(" ")[0].rstrip()
    # A number, or the start of one, would be read as another one.
    short = (words or kept).rstrip("0123456789.,:;+-/ ")
    return short + script.ellipsis


def bar(done: float, total: float, cells: int, script: Script = UNICODE) -> str:
    """``cells`` wide; full only when all is done."""
    full = 0 if total <= 0 else min(cells, int(done * cells / total))
    if done < total:
        full = min(full, cells - 1)
    return script.full * full + script.empty * (cells - full)


def sparkline(values: Sequence[float], cells: int, script: Script = UNICODE) -> str:
    """The last ``cells`` values, scaled to their own range."""
    shown = values[-cells:] if cells > 0 else []
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if high == low:
        return script.sparks[0] * len(shown)
    return "".join(script.sparks[round((v - low) / (high - low) * (len(script.sparks) - 1))] for v in shown)
