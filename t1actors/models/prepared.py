"""A network's weights as the kernels want them, made when they are first used and made again when a weight has changed.

Guarantees: what is given belongs to the present values, as far as torch knows of the change (in-place operations
count; writes through ``.data`` or another library do not).
"""

from __future__ import annotations

from collections.abc import Mapping

from t1kernels.interface import Kernels, Weight
from torch import Tensor


class Prepared:
    """``tensors`` are the network's own parameters by canonical name."""

    def __init__(self, kernels: Kernels, tensors: Mapping[str, Tensor]) -> None:
        self.kernels = kernels
        self._tensors = tensors
        self._weights: dict[str, tuple[int, Weight]] = {}

    def matrix(self, name: str) -> Weight:
        """A matrix, or a group of them."""
        tensor = self._tensors[name]
        version, weight = self._weights.get(name, (-1, None))
        if weight is None or version != tensor._version:
            weight = self.kernels.weight(tensor.detach())
            self._weights[name] = (tensor._version, weight)
        return weight

    def vector(self, name: str) -> Tensor:
        """A vector, or the embedding table."""
        return self._tensors[name].detach()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors
