"""The standard error of any statistic of G groups: compute it again without each of them.

    error^2 = (G - 1) / G  sum_g (s_-g - mean s_-)^2        s_-g: the statistic of all groups but g

For a mean this is the usual standard error, exactly. A statistic that compares two estimators on the same groups is
paired by itself: what both saw of a group leaves with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bench.learning.statistics import Estimate, mean


def jackknife(statistic: Callable[[Sequence[int]], float], groups: int) -> Estimate:
    """``statistic`` of all ``groups`` (it gets their numbers) and its error, ``None`` where two groups are too few for one.

    Raises:
        ValueError: fewer than two groups.
    """
    if groups < 2:
        raise ValueError(f"{groups} groups: an error needs at least two")
    everyone = range(groups)
    value = statistic(everyone)
    if groups == 2:  # leaving one out would leave nothing to compare
        return Estimate(value, None, groups)
    without = [statistic([g for g in everyone if g != left_out]) for left_out in everyone]
    center = mean(without)
    error = math.sqrt((groups - 1) / groups * math.fsum((s - center) ** 2 for s in without))
    return Estimate(value, error, groups)
