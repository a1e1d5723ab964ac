"""Where the gradients of a network's weights go: an exact sum a tensor (``t1kernels.exact``).

Guarantees: sums of micro-batches, in any cut, order or number of processes, are the same bits; ``mean`` raises
``ExactRangeError`` rather than give a sum that may be inexact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from t1kernels.exact import ExactSum
from torch import Tensor

from t1actors.models.cut import Cut

GRADIENT_BITS = 44
"""Grid of the sums: multiples of 2^-44, exact while the magnitudes of a tensor's partials sum to less than 512. Part
of what a step's bytes mean."""


@dataclass(frozen=True)
class Coarsest:
    """The gradient that the grid rounds most: the grid's step over the root mean square of ``tensor``'s sum. 0 and no
    tensor: nothing was added."""

    ratio: float = 0.0
    tensor: str = ""

    @staticmethod
    def of(several: Iterable[Coarsest]) -> Coarsest:
        """The coarsest of them, the first where several are."""
        return max(several, key=lambda one: one.ratio, default=Coarsest())


class Gradients:
    """The sums of one update. ``cut`` is that of the slab whose forward is being built."""

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self.sums = {name: ExactSum(name, shape, bits=GRADIENT_BITS) for name, shape in shapes.items()}
        self.cut = Cut.of(())

    def merge(self, other: Gradients) -> None:
        """Add another process's or micro-batch's sums."""
        for name, total in self.sums.items():
            total.merge(other.sums[name])

    def coarsest(self) -> Coarsest:
        """How much the grid can be seen, at most."""
        found = Coarsest.of(Coarsest(total.quantum_over_rms(), name) for name, total in self.sums.items())
        return found if found.ratio > 0 else Coarsest()

    def scaled(self, factor: float, *, checked: bool = True) -> dict[str, Tensor]:
        """Each sum times ``factor`` in float64, rounded once to float32. Raises ``ExactRangeError``; not ``checked``,
        to be looked at and never to be applied."""
        for total in self.sums.values() if checked else ():
            total.check()
        return {name: (total.sum * factor).to(torch.float32) for name, total in self.sums.items()}
