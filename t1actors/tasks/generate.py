"""Procedural tasks: ``make_task(seed, level)`` is a pure function; its values are plain data.

A task of level L (1 to 5) has L + 1 sub-goals of different families and 5 to 20 assertions. Its name is its seed and
level (``l2-100000017``): whoever has a name can make the task again, anywhere. Writing it to disk is ``tasks.write``;
running a demonstration of it is ``tasks.demos``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from t1actors.tasks.draws import Draws
from t1actors.tasks.families import FAMILIES
from t1actors.tasks.families.shape import Assertion, SubGoal
from t1actors.tasks.task import TaskError
from t1actors.tasks.words import WORDS

LEVELS = range(1, 6)
WORKDIR = "/app"
SUBMIT = "submit"
"""The command that ends an episode."""
_ASSERTIONS_MIN, _ASSERTIONS_MAX = 5, 20
_NAMES_PER_TASK = 60
_NAME = re.compile(r"l([1-5])-(0|[1-9][0-9]{0,17})")
_ASSERTION = re.compile(r"[0-9]+\.[0-9]+-([a-z]+)-.+")


@dataclass(frozen=True)
class GeneratedTask:
    """A built-in task before it is written."""

    seed: int
    level: int
    families: tuple[str, ...]
    sub_goals: tuple[SubGoal, ...]

    @property
    def name(self) -> str:
        return task_name(self.seed, self.level)

    @property
    def instruction(self) -> str:
        """One numbered line a sub-goal."""
        return "\n".join(f"{number} {goal.text}" for number, goal in enumerate(self.sub_goals, 1))

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        return tuple(file for goal in self.sub_goals for file in goal.files)

    @property
    def assertions(self) -> tuple[tuple[str, Assertion], ...]:
        """(id, assertion): ids are unique in the task and say which sub-goal, which of its assertions, and what it
        is."""
        return tuple(
            (f"{number}.{place}-{family}-{assertion.kind}", assertion)
            for number, (family, goal) in enumerate(zip(self.families, self.sub_goals, strict=True), 1)
            for place, assertion in enumerate(goal.assertions, 1)
        )

    @property
    def solution(self) -> tuple[str, ...]:
        return tuple(command for goal in self.sub_goals for command in goal.right)


def make_task(seed: int, level: int) -> GeneratedTask:
    """The task of ``seed`` and ``level``: always the same one."""
    if level not in LEVELS:
        raise TaskError(f"built-in tasks have levels {LEVELS.start} to {LEVELS.stop - 1}, not {level}")
    draws = Draws(f"task-{seed}-{level}")
    while True:
        names = iter(draws.sample(WORDS, _NAMES_PER_TASK))
        families = draws.sample(tuple(FAMILIES), sub_goals_of_level(level))
        goals = tuple(FAMILIES[family](draws, lambda names=names: next(names)) for family in families)
        if _ASSERTIONS_MIN <= sum(len(goal.assertions) for goal in goals) <= _ASSERTIONS_MAX:
            return GeneratedTask(seed, level, tuple(families), goals)


def sub_goals_of_level(level: int) -> int:
    """How many sub-goals a task of ``level`` has."""
    return level + 1


def task_name(seed: int, level: int) -> str:
    """The name of the built-in task of ``seed`` and ``level``."""
    return f"l{level}-{seed}"


def parse_name(name: str) -> tuple[int, int] | None:
    """(seed, level) of a built-in task's name; None for any other name."""
    match = _NAME.fullmatch(name)
    return (int(match[2]), int(match[1])) if match else None


@cache
def family_of(assertion_id: str) -> str | None:
    """The family of a built-in task's assertion; None for the assertion of any other task."""
    match = _ASSERTION.fullmatch(assertion_id)
    return match[1] if match and match[1] in FAMILIES else None


def make_named_task(name: str) -> GeneratedTask:
    """The built-in task called ``name``. Raises ``TaskError`` for any other name."""
    parsed = parse_name(name)
    if parsed is None:
        raise TaskError(
            f"{name!r} names no built-in task; their names are lLEVEL-SEED, as in {task_name(100_000_017, 2)}"
        )
    return make_task(*parsed)


def demonstration(
    task: GeneratedTask, draws: Draws, *, wrong_share: float = 0.0, stop_share: float = 0.0
) -> tuple[str, ...]:
    """Commands that work through ``task``: each sub-goal is done wrong with probability ``wrong_share``; before every
    sub-goal but the first the demonstration stops early with probability ``stop_share``. The last command submits."""
    commands: list[str] = []
    for number, goal in enumerate(task.sub_goals):
        if number > 0 and draws.chance(stop_share):
            break
        if draws.chance(wrong_share):
            commands += draws.pick_weighted(goal.wrong, [way.weight for way in goal.wrong]).commands
        else:
            commands += goal.right
    return (*commands, SUBMIT)
