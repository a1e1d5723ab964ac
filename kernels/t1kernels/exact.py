"""Sums whose bits do not depend on order: the exact accumulator of gradients.

A value is put on the grid of 2^-bits by ``(x + C) - C`` with C = 1.5 * 2^(52 - bits) in float64. Multiples of 2^-bits
below 2^(53 - bits) are exact in float64 and so are their sums: in whatever order, micro-batch or process they are
added, and an ordinary float64 all-reduce adds them exactly too.

Guarantees: ``check`` refuses a sum that could have left the exact range (largest partial, and number of partials times
the largest), naming it; both bounds are independent of the order. What the grid costs is one rounding of each partial
to 2^-bits, reported by ``quantum_over_rms``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class ExactRangeError(ArithmeticError):
    """A sum left the range in which it is exact. Says which and how far. ``finite``: it is a number still."""

    def __init__(self, message: str, *, finite: bool) -> None:
        super().__init__(message)
        self.finite = finite


class ExactSum:
    """Float64 sums of the shape of one tensor. ``partials``: how many were added."""

    def __init__(
        self, name: str, shape: torch.Size | tuple[int, ...], *, bits: int, device: torch.device | None = None
    ) -> None:
        self.name = name
        self.bits = bits
        self.sum = torch.zeros(shape, dtype=torch.float64, device=device)
        self.partials = 0
        self._largest = 0.0
        self._on_device: list[Tensor] = []

    @property
    def big(self) -> float:
        """C of the module's formula."""
        return 1.5 * 2.0 ** (52 - self.bits)

    @property
    def limits(self) -> tuple[float, float]:
        """What each partial, and the number of partials times the largest, must stay below."""
        return 2.0 ** (51 - self.bits), 2.0 ** (53 - self.bits)

    @property
    def largest(self) -> float:
        """The largest magnitude of a partial; infinity when one is not a number."""
        for value in torch.stack(self._on_device).tolist() if self._on_device else ():
            self._raise_to(value)
        self._on_device.clear()
        return self._largest

    def _raise_to(self, value: float) -> None:
        self._largest = max(self._largest, value) if value == value else math.inf

    def note(self, largest: float | Tensor, partials: int) -> None:
        """What an implementation added directly to ``sum``. A tensor is read when somebody asks, so that nobody waits for
        a device before."""
        if isinstance(largest, Tensor):
            self._on_device.append(largest)
        else:
            self._raise_to(largest)
        self.partials += partials

    def add(self, partial: Tensor) -> None:
        """Add one partial of the sum's shape."""
        value = partial.detach().double()
        self.sum += (value + self.big) - self.big
        self.note(float(value.abs().max()) if value.numel() else 0.0, 1)

    def merge(self, other: ExactSum) -> None:
        """Add another sum of the same tensor."""
        assert (other.name, other.bits) == (self.name, self.bits)
        self.sum += other.sum
        self.note(other.largest, other.partials)

    @property
    def exact(self) -> bool:
        """Whether the sum is finite and surely exact."""
        try:
            self.check()
        except ExactRangeError:
            return False
        return True

    def check(self) -> None:
        """Raises ``ExactRangeError`` when the sum may be inexact."""
        one, all_of_them = self.limits
        # NaN stays in a sum, while a maximum may pass over it; finite sums are too small to overflow here.
        finite = math.isfinite(self.largest) and math.isfinite(float(self.sum.sum()))
        if not (finite and self.largest < one and self.partials * self.largest < all_of_them):
            if not finite:
                raise ExactRangeError(f"the gradient of {self.name} is not finite", finite=False)
            raise ExactRangeError(
                f"the gradient of {self.name} is too large to be summed exactly: {self.partials} partials up to "
                f"{self.largest:.3g}, on a grid of 2^-{self.bits} each must stay below {one:g} and all together below "
                f"{all_of_them:g}",
                finite=True,
            )

    def quantum_over_rms(self) -> float:
        """The grid's step over the root mean square of the sum: how much the grid can be seen. 0 where nothing but zeros
        was added, inf where the grid swallowed all of it."""
        if self.largest == 0.0:
            return 0.0
        rms = float(torch.linalg.vector_norm(self.sum)) / math.sqrt(self.sum.numel())
        return 2.0**-self.bits / rms if rms else math.inf


def refuse_inexact(
    grid: ExactSum, largest_S: Tensor, tiles_S: Tensor, start_S: Tensor, length_S: Tensor, sums: Sequence[Tensor]
) -> None:
    """Makes NaN, in ``sums`` (N, ...), the rows of sequences whose tiles may not have been summed exactly on ``grid``:
    whoever sums what comes of them refuses the update. A sequence's own tiles decide, never its neighbours'.

    ``largest_S``: the largest magnitude of a sequence's partials; ``tiles_S``: how many tiles it has.
    """
    one, all_of_them = grid.limits
    refused_S = ~((largest_S < one) & (tiles_S * largest_S < all_of_them))  # NaN is not smaller than anything
    for sequence in refused_S.nonzero().flatten().tolist():
        first = int(start_S[sequence])
        for total in sums:
            total[first : first + int(length_S[sequence])] = math.nan
