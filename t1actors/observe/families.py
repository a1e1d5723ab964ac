"""What held-out tasks say of each family of sub-goals: assertions passed before training and after it.

Guarantees: shares are over all assertions of a family; standard errors are over trials, whose assertions of one family
stand and fall together; a task of one's own names no families, and a run of such tasks has none here.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from t1actors.events import AssertionResult
from t1actors.observe.view import StepView
from t1actors.tasks.generate import family_of

FELL_ERRORS = 2.0
"""A family fell when it lost more than this many standard errors of the difference."""
FELL_TRIALS = 5
"""Fewer trials with the family than this say nothing."""


class FamilyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """``before`` and ``after``: share of the family's assertions that passed, sampled at temperature 1. ``trials`` are
    those after training whose task has the family."""

    family: str
    before: float | None
    after: float | None
    before_error: float | None
    after_error: float | None
    trials: int

    @property
    def fell(self) -> bool:
        """Whether it passes less than before, by more than chance."""
        if self.before is None or self.after is None or self.before_error is None or self.after_error is None:
            return False
        error = (self.before_error**2 + self.after_error**2) ** 0.5
        return self.trials >= FELL_TRIALS and self.before - self.after > FELL_ERRORS * error


def by_family(assertions: Iterable[AssertionResult]) -> dict[str, tuple[int, int]]:
    """(passed, expected) of each family among the assertions, those of the baseline left out."""
    passed: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    for assertion in assertions:
        family = family_of(assertion.id)
        if family is not None and not assertion.baseline:
            passed[family] += assertion.passed
            expected[family] += 1
    return {family: (passed[family], count) for family, count in expected.items()}


def family_figures(before: StepView | None, after: StepView | None) -> list[FamilyFigures]:
    """Of every family in either evaluation, by name."""
    first, last = _results(before), _results(after)
    return [
        FamilyFigures(
            family=family,
            before=_share(first[family]),
            after=_share(last[family]),
            before_error=_error(first[family]),
            after_error=_error(last[family]),
            trials=len(last[family]),
        )
        for family in sorted({*first, *last})
    ]


def _results(step: StepView | None) -> defaultdict[str, list[tuple[int, int]]]:
    """Family to (passed, expected) of each trial that has it."""
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for trial in step.kept if step is not None else ():
        for family, counts in trial.by_family.items():
            found[family].append(counts)
    return found


def _share(results: list[tuple[int, int]]) -> float | None:
    expected = sum(count for _, count in results)
    return sum(passed for passed, _ in results) / expected if expected else None


def _error(results: list[tuple[int, int]]) -> float | None:
    """Of the mean of the trials' own shares."""
    if len(results) < 2:
        return None
    return statistics.stdev(passed / count for passed, count in results) / len(results) ** 0.5
