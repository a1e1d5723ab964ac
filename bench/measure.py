"""Measuring on a shared machine: CPU seconds beside wall seconds, things compared in turns, medians with their spread.

Guarantees: ``interleaved`` runs what is compared in rounds, every second round in reverse order, so that a machine that
slows down or warms up does so for all of them; ``ratios`` divides within a round, so that its spread is that of the
comparison and not that of the machine.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """One run of one thing. ``cpu_s`` is user and system time of this process, and of the children it waited for."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Spread:
    """The median of ``count`` values, and the smallest and the largest of them."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        if not values:
            raise ValueError("no values: nothing was measured")
        return Spread(statistics.median(values), min(values), max(values), len(values))


def cpu_seconds() -> float:
    """Of this process (all threads) and of every child that it waited for."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def timed(run: Callable[[], object]) -> Sample:
    """One run of ``run``."""
    wall_s, cpu_s = time.perf_counter(), cpu_seconds()
    run()
    return Sample(time.perf_counter() - wall_s, cpu_seconds() - cpu_s)


def interleaved(cases: Mapping[str, Callable[[], object]], *, rounds: int, warmups: int = 1) -> dict[str, list[Sample]]:
    """Every case once a round. Warm-ups are rounds that are not counted."""
    samples: dict[str, list[Sample]] = {name: [] for name in cases}
    for number in range(warmups + rounds):
        order = list(cases) if number % 2 == 0 else list(reversed(cases))
        for name in order:
            sample = timed(cases[name])
            if number >= warmups:
                samples[name].append(sample)
    return samples


def wall(samples: Sequence[Sample]) -> Spread:
    return Spread.of([sample.wall_s for sample in samples])


def cpu(samples: Sequence[Sample]) -> Spread:
    return Spread.of([sample.cpu_s for sample in samples])


def rate(amount: float, samples: Sequence[Sample]) -> Spread:
    """``amount`` a wall second."""
    return Spread.of([amount / sample.wall_s for sample in samples])


def ratios(over: Sequence[Sample], under: Sequence[Sample], *, of_cpu: bool = False) -> Spread:
    """Seconds of ``over`` divided by seconds of ``under``, round by round."""
    pairs = zip(over, under, strict=True)
    return Spread.of([a.cpu_s / b.cpu_s if of_cpu else a.wall_s / b.wall_s for a, b in pairs])
