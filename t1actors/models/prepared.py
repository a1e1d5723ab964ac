"""A network's weights as the kernels want them, made when they are first used and dropped when the weights change."""

from __future__ import annotations

from collections.abc import Mapping

from t1kernels.interface import Kernels, Weight
from torch import Tensor


class Prepared:
    """``tensors`` are the network's own parameters by canonical name; call ``changed`` after writing to them."""

    def __init__(self, kernels: Kernels, tensors: Mapping[str, Tensor]) -> None:
        self.kernels = kernels
        self._tensors = tensors
        self._weights: dict[str, Weight] = {}

    def matrix(self, name: str) -> Weight:
        """A matrix, or a group of them."""
        found = self._weights.get(name)
        if found is None:
            found = self._weights[name] = self.kernels.weight(self._tensors[name].detach())
        return found

    def vector(self, name: str) -> Tensor:
        return self._tensors[name].detach()

    def changed(self) -> None:
        self._weights.clear()
