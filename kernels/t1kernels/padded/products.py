"""Products in tiles of one shape, so that a row's bits cannot depend on how many rows there are, or on where it lies.

A tile is 16 rows by at most 256 columns, every dimension filled up with zeros to a multiple of 16. Torch hands all tiles to
the same routine with the same sizes: how many there are changes nothing in any of them. That the rows of a tile are alike
holds of the routines of today's libraries for such sizes, and not for fewer than 12 columns (``t1kernels.probe`` looks).

A weight's gradient is a product per grain, its rows filled up with zeros to a power of two of at least 16: a function of
the grain alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from t1kernels.interface import Grains, Weight
from t1kernels.padded.arithmetic import on_grid

ROWS = 16
COLUMNS = 256
ALIGNMENT_BYTES = 64
"""Where tiles begin, as torch's own memory does."""
AT_ONCE = 1 << 22
"""Elements of partial gradients held at a time."""


class PaddedWeight:
    """A weight (O, K) or a group (W, O, K), and the same as matrices for tiles. The tensor must not change afterwards."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()
        self._filled: Tensor | None = None

    @property
    def filled(self) -> Tensor:
        """In float32, filled up, in memory of its own where the tensor's will not do."""
        if self._filled is None:
            self._filled = filled(self.tensor)
        return self._filled


def matrices(weight: Weight) -> Tensor:
    """``weight`` in float32 with both dimensions filled up."""
    assert isinstance(weight, PaddedWeight), f"{type(weight).__name__} was made by other kernels"
    return weight.filled


def filled(x: Tensor) -> Tensor:
    """As float32 without gaps at an aligned address, the last two dimensions filled up with zeros to multiples of 16."""
    x = x.detach().float()
    below, right = (-size % ROWS for size in x.shape[-2:])
    x = functional.pad(x, (0, right, 0, below)) if below or right else x.contiguous()
    return x.clone() if x.data_ptr() % ALIGNMENT_BYTES else x


def tiles(x_NK: Tensor) -> Tensor:
    """Rows as tiles (T, 16, K)."""
    x = filled(x_NK)
    return x.view(-1, ROWS, x.shape[1])


def product(x_TMK: Tensor, matrix_KO: Tensor) -> Tensor:
    """Tiles times a matrix (T, 16, O)."""
    count, _, depth = x_TMK.shape
    parts = [torch.bmm(x_TMK, m.expand(count, depth, m.shape[1])) for m in matrix_KO.split(COLUMNS, dim=1)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def rows_of(y_TMO: Tensor, rows: int, columns: int) -> Tensor:
    """Tiles as rows, without what filled them up."""
    return y_TMO.flatten(0, 1)[:rows, :columns]


def rows_product(x_NK: Tensor, matrix_KO: Tensor, columns: int) -> Tensor:
    """Rows times a matrix of which so many columns are meant, in the rows' dtype."""
    return rows_of(product(tiles(x_NK), matrix_KO), x_NK.shape[0], columns).to(x_NK.dtype).contiguous()


def grouped_product(x_RK: Tensor, matrices_WKO: Tensor, offset: Tensor, columns: int) -> Tensor:
    """Rows ``offset[w] .. offset[w + 1]`` times matrix w."""
    y = x_RK.new_empty(x_RK.shape[0], columns)
    for number, (start, end) in enumerate(itertools.pairwise(offset.tolist())):
        if end > start:
            y[start:end] = rows_product(x_RK[start:end], matrices_WKO[number], columns)
    return y


@dataclass(frozen=True)
class GrainsOfOneSize:
    """``row`` (G, S) the rows of each grain, ``absent`` (G, S) which of them only fill it up, ``weight`` (G)."""

    row: Tensor
    absent: Tensor
    weight: Tensor

    def of(self, x_NK: Tensor) -> Tensor:
        """The grains' rows in float32 (G, S, K), zeros where there is none."""
        return x_NK.detach()[self.row].float().masked_fill_(self.absent[..., None], 0.0)


def by_size(grains: Grains, elements: int) -> Iterator[GrainsOfOneSize]:
    """Grains of the same padded size together, as many as keep partials of ``elements`` each within ``AT_ONCE``."""
    length = grains.end - grains.start
    longest = int(length.max()) if len(grains) else 0
    below, size = 0, ROWS
    while below < longest:
        members = ((length > below) & (length <= size)).nonzero()[:, 0]
        for chosen in members.split(max(1, AT_ONCE // max(1, elements))):
            first = grains.start[chosen][:, None]
            row = first + torch.arange(size)
            absent = row >= grains.end[chosen][:, None]
            yield GrainsOfOneSize(torch.where(absent, first, row), absent, grains.weight[chosen])
        below, size = size, 2 * size


def weight_partials(dy_NO: Tensor, x_NK: Tensor, grains: Grains, sum_WOK: Tensor, big: float) -> float:
    """Add each grain's dy^T x to its weight, on the grid; the largest magnitude of a partial."""
    largest = 0.0
    for some in by_size(grains, dy_NO.shape[1] * x_NK.shape[1]):
        partial_GOK = torch.bmm(some.of(dy_NO).transpose(1, 2), some.of(x_NK))
        largest = greater(largest, magnitude(partial_GOK))
        sum_WOK.index_add_(0, some.weight, on_grid(partial_GOK, big))
    return largest


def vector_partials(dy_NH: Tensor, grains: Grains, sum_H: Tensor, big: float) -> float:
    """Add the sum of each grain's rows, on the grid; the largest magnitude of a partial."""
    largest = 0.0
    for some in by_size(grains, dy_NH.shape[1]):
        partial_GH = _rows_folded(some.of(dy_NH))
        largest = greater(largest, magnitude(partial_GH))
        sum_H += on_grid(partial_GH, big).sum(0)
    return largest


def _rows_folded(x_GSH: Tensor) -> Tensor:
    """``folded`` over the rows of grains, of which there is a power of two, without turning them over."""
    while x_GSH.shape[1] > 1:
        first_GSH, second_GSH = x_GSH.chunk(2, dim=1)
        x_GSH = first_GSH + second_GSH
    return x_GSH[:, 0]


def magnitude(partial: Tensor) -> float:
    """The largest magnitude; NaN where there is one."""
    if not partial.numel():
        return 0.0
    low, high = partial.aminmax()
    return greater(-float(low), float(high))


def greater(one: float, other: float) -> float:
    """The larger of two magnitudes; NaN if one is."""
    return one if one != one or one > other else other
