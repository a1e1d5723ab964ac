"""The shape of a sub-goal: what is asked, what stands there before, how it is done right, how it goes plausibly wrong,
and what holds afterwards. Families return these values; everything else (tasks, demonstrations, graders) reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from t1actors.tasks.draws import Draws

AssertionKind = Literal[
    "is_dir", "is_file", "absent", "content", "contains", "lacks", "number", "first_line", "last_line", "line_count",
    "mode_digit", "gzip", "tar_has", "entries",
]  # fmt: skip


@dataclass(frozen=True)
class Assertion:
    """``kind`` holds for ``path`` (relative to the working directory) with ``arguments``; ``tasks/check.py`` decides
    it."""

    kind: AssertionKind
    path: str
    arguments: tuple[str | int, ...] = ()


@dataclass(frozen=True)
class WrongWay:
    """A plausible mistake, drawn with ``weight`` among its sub-goal's mistakes. It must miss at least one assertion."""

    weight: int
    commands: tuple[str, ...]


@dataclass(frozen=True)
class SubGoal:
    """One thing a task asks for; ``text`` is the instruction's sentence."""

    text: str
    files: tuple[tuple[str, str], ...]
    """(path, content) of what is there before."""
    right: tuple[str, ...]
    wrong: tuple[WrongWay, ...]
    assertions: tuple[Assertion, ...]
    """All hold after ``right``; none holds before."""


NewName = Callable[[], str]
"""A word that this task has not used yet."""
Family = Callable[[Draws, NewName], SubGoal]


def wrong(weight: int, *commands: str) -> WrongWay:
    """A mistake of these commands."""
    return WrongWay(weight, commands)


def holds(kind: AssertionKind, path: str, *arguments: str | int) -> Assertion:
    """An assertion of these arguments."""
    return Assertion(kind, path, arguments)
