"""Seeded draws that every Python version repeats.

Only ``random.Random.random()`` is promised to give the same sequence for ever; ``choice``, ``sample`` and ``shuffle``
are not. Task bytes, pools and demonstrations are named by their seeds, so everything here is built on ``random()``
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """A stream of draws decided by ``seed`` alone. Equal seeds and equal calls give equal results, on any platform."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed).random

    def below(self, count: int) -> int:
        """An integer of [0, count)."""
        return int(self._random() * count)

    def between(self, low: int, high: int) -> int:
        """An integer of [low, high]."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability

    def pick(self, items: Sequence[T]) -> T:
        """One of ``items``."""
        return items[self.below(len(items))]

    def pick_weighted(self, items: Sequence[T], weights: Sequence[int]) -> T:
        """One of ``items``, in proportion to its weight."""
        left = self.below(sum(weights))
        for item, weight in zip(items, weights, strict=True):
            if left < weight:
                return item
            left -= weight
        raise AssertionError("weights sum to more than was drawn")

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """``count`` different items, in drawn order."""
        if count > len(items):
            raise ValueError(f"cannot draw {count} different items of {len(items)}")
        left = list(items)
        for i in range(count):
            j = i + self.below(len(left) - i)
            left[i], left[j] = left[j], left[i]
        return left[:count]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """All of ``items``, in drawn order."""
        return self.sample(items, len(items))
