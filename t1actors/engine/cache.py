"""Keys and values of many sequences in preallocated slots, and the attention of a slab over them.

A slot is a row of pages of 64 positions; a sequence keeps its slot between turns. A slab mixes decode rows (one per
sequence) and prefill chunks in any way: each row carries its slot's first page and its position, and the kernel does
the rest in one call.

Guarantees: a row sees exactly the positions up to its own in its own slot; what lies behind it is never read, so
nothing of another sequence or of an earlier one in the same slot can matter. Nothing here knows which sequence is in
which slot (``core`` does).

Shapes: S slots, T positions of a slot, N slab rows, P pages, G key/value heads, Q query heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from t1kernels.interface import PAGE, Kernels
from torch import Tensor

from t1actors.models.shape import NetworkShape


@dataclass(frozen=True)
class Chunk:
    """``count`` tokens of the sequence in ``slot``, from position ``start``: what one sequence adds to a slab."""

    slot: int
    start: int
    count: int


class KeyValueCache:
    """The memory: for each layer keys (P, G, D, 64) and values (P, G, 64, D), float32 whatever the model's dtype (the
    numbers are the model's, so nothing is gained or lost). Pages that were never written cost no memory."""

    def __init__(self, shape: NetworkShape, *, slots: int, positions: int) -> None:
        self.slots = slots
        self.positions = positions
        self.pages_a_slot = -(-positions // PAGE)
        size = (shape.layers, slots * self.pages_a_slot, shape.key_heads)
        self._keys = torch.empty(*size, shape.head_width, PAGE)
        self._values = torch.empty(*size, PAGE, shape.head_width)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer."""
        return self._keys[layer], self._values[layer]


class Slab:
    """Chunks packed into one forward, and its attention (a ``models.trunk.Attention``).

    ``slots_N`` and ``positions_N`` name each row; ``last_rows`` is the row of each chunk's last token.
    """

    def __init__(self, cache: KeyValueCache, chunks: Sequence[Chunk]) -> None:
        self._cache = cache
        self.chunks = tuple(chunks)
        counts = np.array([chunk.count for chunk in chunks], dtype=np.int64)
        ends = np.cumsum(counts)
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
        self.slots_N = np.repeat(np.array([chunk.slot for chunk in chunks], dtype=np.int64), counts)
        self.positions_N = np.arange(ends[-1]) + np.repeat(starts - (ends - counts), counts)
        self.flat_N = self.slots_N * cache.positions + self.positions_N
        self.last_rows = ends - 1
        self._first_page_N = torch.from_numpy(self.slots_N * cache.pages_a_slot)
        self._position_N = torch.from_numpy(self.positions_N)

    def __call__(
        self, kernels: Kernels, layer: int, query_NQD: Tensor, key_NGD: Tensor, value_NGD: Tensor, scale: float
    ) -> Tensor:
        keys, values = self._cache.layer(layer)
        kernels.store(keys, values, key_NGD, value_NGD, self._first_page_N, self._position_N)
        return kernels.attend(query_NQD, keys, values, self._first_page_N, self._position_N, scale)[0]
