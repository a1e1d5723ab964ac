"""Kernels of a device for callers whose tensors lie in the host's memory: the contract's tests, the probe, the fingerprint.

Guarantees: the same bits as the kernels themselves. What it costs is the way there and back of everything.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from t1kernels.exact import ExactSum
from t1kernels.interface import Dispatch


class OnDevice:
    """Moves what a call is given to the device and what it returns to the host. What it writes into, pages and exact sums,
    is brought back too."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    @property
    def name(self) -> str:
        return self._kernels.name

    def weight(self, tensor: Tensor) -> Any:
        """See ``interface.Kernels.weight``; it stays on the device."""
        return self._kernels.weight(tensor)

    def store(self, keys: Tensor, values: Tensor, *rest: Tensor) -> None:
        """See ``interface.Kernels.store``; the pages of the host are written."""
        moved = [self._there(t) for t in (keys, values, *rest)]
        self._kernels.store(*moved)
        keys.copy_(moved[0])
        values.copy_(moved[1])

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            sums = [x for x in given if isinstance(x, ExactSum)]
            there = {id(x): self._empty(x) for x in sums}
            moved = [there[id(x)] if isinstance(x, ExactSum) else self._there(x) for x in given]
            found = self._here(getattr(self._kernels, name)(*moved, **named))
            for one in sums:
                its = there[id(one)]
                one.sum += its.sum.cpu()
                one.note(its.largest, its.partials)
            return found

        return call

    def _empty(self, one: ExactSum) -> ExactSum:
        return ExactSum(one.name, one.sum.shape, bits=one.bits, device=self._kernels.device)

    def _there(self, x: Any) -> Any:
        return x.to(self._kernels.device) if isinstance(x, Tensor) else x

    def _here(self, x: Any) -> Any:
        match x:
            case Tensor():
                return x.to(torch.device("cpu"))
            case Dispatch():
                return Dispatch(self._here(x.offset), self._here(x.token), self._here(x.place))
            case tuple():
                return tuple(self._here(one) for one in x)
            case _:
                return x
