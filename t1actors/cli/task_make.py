"""`t1 task make`: the built-in tasks as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from t1actors.cli.errors import WrongUsage
from t1actors.cli.numbers import Whole, at_least
from t1actors.cli.progress import Progress
from t1actors.tasks.write import make_tasks

LEVELS = range(1, 6)


def make(
    directory: Annotated[Path, Parameter(help="Where to write them, a folder each.")],
    *,
    count: Annotated[Whole, Parameter(help="How many.")] = 10,
    levels: Annotated[str, Parameter(help="Such as 1,2,3 or 1-5; level L has L + 1 sub-goals.")] = "1-3",
    seed: Annotated[Whole, Parameter(help="First seed; a task is its seed and level.")] = 1,
) -> None:
    """Write built-in tasks in the Harbor layout: task.toml, instruction, environment, tests, solution.

    The same seed and level give the same bytes. Tasks that are there already are left alone.

    Example: `t1 task make my-tasks --count 20 --levels 1-5 --seed 7`
    """
    at_least(1, "--count", count)
    at_least(0, "--seed", seed)
    chosen = parse_levels(levels)
    with Progress("tasks") as progress:
        names = make_tasks(directory, levels=chosen, count=count, seed=seed, progress=progress)
    print(f"{len(names)} tasks in {directory}, {names[0]} to {names[-1]}")


def parse_levels(text: str) -> list[int]:
    """1,2,3 or 1-5. Raises ``WrongUsage``."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise WrongUsage(f"--levels {text}: write it as 1,2,3 or 1-5")
        levels = range(int(first), int(last if dash else first) + 1)
        if not levels:
            raise WrongUsage(f"--levels {text}: {part.strip()} goes down; write the lower level first")
        found += levels
    wrong = [level for level in found if level not in LEVELS]
    if wrong or not found:
        raise WrongUsage(f"--levels {text}: levels are {LEVELS.start} to {LEVELS.stop - 1}")
    return found
