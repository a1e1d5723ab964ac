"""Means with their standard errors, and differences of what was measured in pairs. Pure functions on numbers.

Guarantees: an error is the sample deviation (n - 1) over the root of n, and ``None`` for a single value: one value says
nothing about its spread. A paired difference has the error of the differences, not of the two means: what both sides share
(the task, the seed) is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """The mean of ``count`` values and its standard error."""

    mean: float
    error: float | None
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Estimate:
        """Raises ``ValueError`` when there are none."""
        center = mean(values)
        if len(values) == 1:
            return Estimate(center, None, 1)
        if min(values) == max(values):  # their mean may be off by a rounding
            return Estimate(values[0], 0.0, len(values))
        spread = math.sqrt(sum((value - center) ** 2 for value in values) / (len(values) - 1))
        return Estimate(center, spread / math.sqrt(len(values)), len(values))


def mean(values: Sequence[float]) -> float:
    """Raises ``ValueError`` when there are none."""
    if not values:
        raise ValueError("no values: nothing was measured")
    return math.fsum(values) / len(values)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """``ours`` minus ``theirs``, pair by pair. Raises ``ValueError`` when they do not pair up."""
    return Estimate.of([a - b for a, b in zip(ours, theirs, strict=True)])
