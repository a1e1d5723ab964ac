"""Keys and values of many sequences in preallocated slots, and the attention of a slab over them.

A slot is one row of fixed length; a sequence keeps its slot between turns. A slab mixes decode rows (one per
sequence) and prefill chunks; its sequences are grouped by the size of their chunk, so that each group is one padded
attention call.

Guarantees: a row sees exactly the positions up to its own in its own slot; what lies beyond a sequence's length never
reaches a result (it is finite and masked). Nothing here knows which sequence is in which slot (``core`` does).

Shapes: S slots, T positions of a slot, N slab rows, B sequences of a group, C largest chunk of the group, G
key/value heads, Q query heads, P = Q / G query heads per key head, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from t1actors.models.shape import NetworkShape

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Chunk:
    """``count`` tokens of the sequence in ``slot``, from position ``start``: what one sequence adds to a slab."""

    slot: int
    start: int
    count: int


class KeyValueCache:
    """The memory: for each layer keys and values (S * T, G * D)."""

    def __init__(self, shape: NetworkShape, *, slots: int, positions: int, dtype: torch.dtype) -> None:
        self.slots = slots
        self.positions = positions
        self.key_heads = shape.key_heads
        self.head_width = shape.head_width
        self.dtype = dtype
        size = (shape.layers, slots * positions, shape.key_heads * shape.head_width)
        # Zeros, not empty: masked positions are multiplied by 0, and garbage could be NaN. Untouched pages cost nothing.
        self._keys = torch.zeros(size, dtype=dtype)
        self._values = torch.zeros(size, dtype=dtype)
        # Where a layer's gathered keys and values go: reused, because fresh megabytes cost a page fault each 4 KiB.
        self._gathered_keys = torch.zeros(size[1:], dtype=dtype)
        self._gathered_values = torch.zeros(size[1:], dtype=dtype)

    def write(self, layer: int, rows_N: Tensor, key_NGD: Tensor, value_NGD: Tensor) -> None:
        """Store at ``slot * positions + position``, given for each slab row in ``rows_N``."""
        self._keys[layer].index_copy_(0, rows_N, key_NGD.reshape(rows_N.shape[0], -1))
        self._values[layer].index_copy_(0, rows_N, value_NGD.reshape(rows_N.shape[0], -1))

    def read(self, layer: int, slots_B: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Keys and values (B, G, longest, D) of the slots' first ``longest`` positions, until the next read."""
        return (
            self._gather(self._keys[layer], slots_B, longest, self._gathered_keys),
            self._gather(self._values[layer], slots_B, longest, self._gathered_values),
        )

    def _gather(self, store: Tensor, slots_B: Tensor, longest: int, into: Tensor) -> Tensor:
        batch = slots_B.shape[0]
        by_slot = store.view(self.slots, self.positions, -1)[:, :longest]
        gathered = into[: batch * longest].view(batch, longest, -1)
        torch.index_select(by_slot, 0, slots_B, out=gathered)
        return gathered.view(batch, longest, self.key_heads, self.head_width).transpose(1, 2)


@dataclass(frozen=True)
class _Group:
    """Sequences of similar chunk size: slab rows [first, first + rows), laid out on a padded grid (B, C) unless C is
    1."""

    first: int
    rows: int
    slots_B: Tensor
    width: int
    longest: int
    mask_B1CT: Tensor
    cells: Tensor | None


LENGTH_STEP = 128


def _group_key(chunk: Chunk) -> tuple[int, int]:
    """Which chunks share an attention call. Queries are padded to the group's widest chunk (by powers of two: less
    than half is padding), keys to its longest sequence (by ``LENGTH_STEP``)."""
    return chunk.count.bit_length(), (chunk.start + chunk.count - 1) // LENGTH_STEP


class Slab:
    """Chunks packed into one forward, and its attention (a ``models.trunk.Attention``).

    ``chunks`` is the given chunks in slab order; ``slots_N`` and ``positions_N`` name each row; ``last_rows`` is the
    row of each chunk's last token.
    """

    def __init__(self, cache: KeyValueCache, chunks: Sequence[Chunk]) -> None:
        self._cache = cache
        self.chunks = sorted(chunks, key=_group_key)
        groups: list[_Group] = []
        slots: list[Int64Array] = []
        positions: list[Int64Array] = []
        first = 0
        for _, members in groupby(self.chunks, key=_group_key):
            layout = np.array([(c.slot, c.start, c.count) for c in members], dtype=np.int64)
            slots_B, starts_B, counts_B = layout[:, 0], layout[:, 1], layout[:, 2]
            width = int(counts_B.max())
            steps_C = np.arange(width)
            positions_BC = starts_B[:, None] + steps_C
            real_BC = steps_C < counts_B[:, None]
            positions.append(positions_BC[real_BC])
            slots.append(np.repeat(slots_B, counts_B))
            rows = int(counts_B.sum())
            longest = int((starts_B + counts_B).max())
            groups.append(
                _Group(
                    first=first,
                    rows=rows,
                    slots_B=torch.from_numpy(np.ascontiguousarray(slots_B)),
                    width=width,
                    longest=longest,
                    mask_B1CT=self._mask(positions_BC, longest),
                    cells=None if width == 1 else torch.from_numpy(np.flatnonzero(real_BC)),
                )
            )
            first += rows
        self._groups = groups
        self.slots_N = np.concatenate(slots)
        self.positions_N = np.concatenate(positions)
        self.flat_N = self.slots_N * cache.positions + self.positions_N
        self.last_rows = np.cumsum([chunk.count for chunk in self.chunks]) - 1
        self._rows_N = torch.from_numpy(self.flat_N)

    def _mask(self, positions_BC: Int64Array, longest: int) -> Tensor:
        """0 where a row may look, minus infinity where not. A row past its chunk's end (padding) looks like a later
        row."""
        hidden_BCT = torch.from_numpy(np.arange(longest) > positions_BC[:, :, None])
        mask_BCT = torch.zeros(hidden_BCT.shape, dtype=self._cache.dtype).masked_fill_(hidden_BCT, -torch.inf)
        return mask_BCT[:, None]

    def __call__(self, layer: int, query_NQD: Tensor, key_NGD: Tensor, value_NGD: Tensor, scale: float) -> Tensor:
        self._cache.write(layer, self._rows_N, key_NGD, value_NGD)
        attended = [
            self._attend(layer, group, query_NQD[group.first : group.first + group.rows], scale)
            for group in self._groups
        ]
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def _attend(self, layer: int, group: _Group, query_RQD: Tensor, scale: float) -> Tensor:
        heads, depth = query_RQD.shape[1:]
        batch, key_heads = group.slots_B.shape[0], self._cache.key_heads
        per_key = heads // key_heads
        key_BGTD, value_BGTD = self._cache.read(layer, group.slots_B, group.longest)
        if group.cells is None:
            # One query row: the P heads that share a key head become P rows, and keys need no copy per head.
            rows_BGPD = query_RQD.view(batch, key_heads, per_key, depth)
            mask = group.mask_B1CT.expand(-1, -1, per_key, -1)
            out_BGPD = functional.scaled_dot_product_attention(
                rows_BGPD, key_BGTD, value_BGTD, attn_mask=mask, scale=scale
            )
            return out_BGPD.reshape(batch, heads, depth)
        grid = query_RQD.new_zeros(batch * group.width, heads, depth).index_copy_(0, group.cells, query_RQD)
        grid_BQCD = grid.view(batch, group.width, heads, depth).transpose(1, 2)
        out_BQCD = functional.scaled_dot_product_attention(
            grid_BQCD, key_BGTD, value_BGTD, attn_mask=group.mask_B1CT, scale=scale, enable_gqa=True
        )
        return out_BQCD.transpose(1, 2).reshape(-1, heads, depth).index_select(0, group.cells)
