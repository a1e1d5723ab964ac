"""What a benchmark found: tables for people, and the same rows as JSON.

Guarantees: both hold the same figures; in JSON a spread keeps its median, low, high and count, an estimate its mean, error
and count, and a row names its columns.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from bench.learning.statistics import Estimate
from bench.machine import describe
from bench.measure import Spread
from bench.sections import RESULTS, update

Cell: TypeAlias = str | int | float | Spread | Estimate | None


@dataclass(frozen=True)
class Table:
    """``note`` says what the figures mean, and what not."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        odd = [row for row in self.rows if len(row) != len(self.columns)]
        if odd:
            raise ValueError(f"table {self.title!r}: {len(self.columns)} columns, but a row is {odd[0]}")


def number(value: float) -> str:
    """Three figures: 0.0123, 1.23, 12.3, 123, 12,345."""
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 0.001:
        digits = 1 if size >= 10 else 2 if size >= 1 else 3 if size >= 0.1 else 4
        return f"{value:.{digits}f}"
    return f"{value:.1e}"


def text(cell: Cell) -> str:
    match cell:
        case None:
            return "-"
        case Spread() if cell.count == 1:
            return number(cell.median)
        case Spread():
            return f"{number(cell.median)} ({number(cell.low)} .. {number(cell.high)})"
        case Estimate(error=None):
            return f"{cell.mean:.3f}"
        case Estimate(error=float(error)) if 0 < error < 0.002 or abs(cell.mean) >= 10:
            return f"{number(cell.mean)} ± {number(error)}"
        case Estimate():
            return f"{cell.mean:.3f} ± {cell.error:.3f}"
        case float():
            return number(cell)
        case int():
            return f"{cell:,}"
        case _:
            return cell.replace("|", "\\|")


def markdown(table: Table) -> str:
    """A Markdown table that also reads well in a terminal."""
    grid = [list(table.columns), *([text(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[column]) for row in grid) for column in range(len(table.columns))]
    figures = [all(not isinstance(row[column], str) for row in table.rows) for column in range(len(widths))]

    def line(row: Sequence[str]) -> str:
        cells = (c.rjust(w) if f else c.ljust(w) for c, w, f in zip(row, widths, figures, strict=True))
        return f"| {' | '.join(cells)} |"

    rule = "|" + "|".join("-" * (w + 1) + (":" if f else "-") for w, f in zip(widths, figures, strict=True)) + "|"
    parts = [f"### {table.title}", "", line(grid[0]), rule, *(line(row) for row in grid[1:])]
    return "\n".join([*parts, *(["", table.note] if table.note else [])])


def as_json(table: Table) -> dict[str, object]:
    def plain(cell: Cell) -> object:
        return asdict(cell) if isinstance(cell, Spread | Estimate) else cell

    rows = [{name: plain(cell) for name, cell in zip(table.columns, row, strict=True)} for row in table.rows]
    return {"title": table.title, "note": table.note, "rows": rows}


def parser(description: str | None, *, writes: bool = False) -> argparse.ArgumentParser:
    """What every benchmark takes. ``writes``: it is no part of `just bench`, and writes its section when it is told to."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    sizes = made.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="tiny sizes: does it work, not how fast it is")
    if writes:
        sizes.add_argument("--write", action="store_true", help="replace this benchmark's section of the results")
    return made


def conclude(
    name: str, arguments: argparse.Namespace, run: Callable[[], Sequence[Table]], *, results: Path = RESULTS
) -> None:
    """Run a benchmark, print its tables, write its JSON and, if told to, its section of ``results``."""
    began_s = time.perf_counter()
    machine = describe()
    tables = run()
    print("\n\n".join(markdown(table) for table in tables))
    if getattr(arguments, "write", False):
        where = f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}; {machine['busy']}"
        first = f"`python -m bench.{name} --write`, {datetime.now(UTC):%Y-%m-%d} ({where})"
        update(results, {name: "\n\n".join([first, *map(markdown, tables)])})
        print(f"\nwritten to {results}")
    if arguments.json is not None:
        found = {
            "benchmark": name,
            "quick": arguments.quick,
            "seconds": time.perf_counter() - began_s,
            "machine": machine,
            "tables": [as_json(table) for table in tables],
            "markdown": [markdown(table) for table in tables],
        }
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
