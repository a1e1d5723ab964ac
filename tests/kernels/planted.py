"""Kernels with one fault, the smallest there is: one operation is off by one unit in the last place, for some calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from t1kernels.exact import ExactSum
from t1kernels.interface import Grains, Kernels

Call = tuple[Any, ...]


def always(_: Call) -> bool:
    return True


def of_rows(count: int, argument: int = 0) -> Callable[[Call], bool]:
    """Calls whose argument of that number has so many rows."""
    return lambda call: call[argument].shape[0] == count


def of_one_grain(call: Call) -> bool:
    return any(isinstance(given, Grains) and len(given) == 1 for given in call)


class Planted:
    """``kernels``, but ``operation`` is off where ``when`` holds: in its result of that number, or in the sum that it adds to
    when ``result`` is None."""

    def __init__(
        self, kernels: Kernels, operation: str, when: Callable[[Call], bool] = always, *, result: int | None = 0
    ) -> None:
        self._kernels, self._operation, self._when, self._result = kernels, operation, when, result

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._kernels, name)
        return self._off(real) if name == self._operation else real

    def _off(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            results = real(*given, **named)
            if not self._when(given):
                return results
            if self._result is None:
                into = next(g for g in given if isinstance(g, ExactSum))
                into.sum.view(-1)[0] += 2.0**-into.bits
            else:
                cell = (results if isinstance(results, torch.Tensor) else results[self._result]).view(-1)[:1]
                cell.copy_(torch.nextafter(cell, torch.full_like(cell, math.inf)))
            return results

        return call
