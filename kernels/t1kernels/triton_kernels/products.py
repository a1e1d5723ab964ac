"""Products of rows with a weight, or with one of a group: fixed blocks, the whole depth in one program (no split-K).

Bound: FLOPs (2 N K O) from some hundred rows on, the bytes of the weight below. A row's outputs are sums over the depth
in blocks from left to right, in the same kernel whether the row is alone or one of thousands, of a dense weight or of a
group; so its bits are its own.

Shapes: see ``interface``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from t1kernels.triton_kernels.arithmetic import FLOAT32, UNFUSED


@dataclass(frozen=True)
class Blocks:
    """What a program of a product computes, and how it is compiled. Part of what the kernels' bits mean."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, object]:
        return {"num_warps": self.warps, "num_stages": self.stages, **UNFUSED}


BLOCKS = {
    torch.bfloat16: Blocks(rows=64, columns=128, depth=64, warps=4, stages=4),
    torch.float32: Blocks(rows=64, columns=64, depth=32, warps=4, stages=3),
}


@triton.jit
def product_tile(
    x, w, row, row_here, column, column_here, depth, w_column, w_depth, sums,
    DEPTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """``sums`` + rows of x (.., depth) times columns of w. WHOLE: the depth is a multiple of DEPTH."""
    step = tl.arange(0, DEPTH)
    x_at = x + row[:, None] * depth + step[None, :]
    w_at = w + column[None, :] * w_column + step[:, None] * w_depth
    for first in range(0, depth, DEPTH):
        if WHOLE:
            a = tl.load(x_at, mask=row_here[:, None], other=0.0)
            b = tl.load(w_at, mask=column_here[None, :], other=0.0)
        else:
            here = first + step < depth
            a = tl.load(x_at, mask=row_here[:, None] & here[None, :], other=0.0)
            b = tl.load(w_at, mask=column_here[None, :] & here[:, None], other=0.0)
        sums = tl.dot(a, b, sums, input_precision=FLOAT32)
        x_at += DEPTH
        w_at += DEPTH * w_depth
    return sums


@triton.jit(do_not_specialize=["rows"])
def product_kernel(
    x, w, y, tile_group, tile_first, tile_end, rows, outputs, depth, w_group, w_column, w_depth,
    GROUPED: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """A tile of a product, or of its group's: the whole depth in one program."""
    tile = tl.program_id(0)
    if GROUPED:
        first = tl.load(tile_first + tile)
        end = tl.load(tile_end + tile)
        w += tl.load(tile_group + tile) * w_group
    else:
        first = (tile * ROWS).to(tl.int64)
        end = rows
    if first >= end:
        return
    row = first + tl.arange(0, ROWS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    row_here, column_here = row < end, column < outputs
    here = row_here[:, None] & column_here[None, :]
    y_at = y + row[:, None] * outputs + column[None, :]
    sums = tl.load(y_at, mask=here, other=0.0) if ADD else tl.zeros((ROWS, COLUMNS), tl.float32)
    sums = product_tile(x, w, row, row_here, column, column_here, depth, w_column, w_depth, sums, DEPTH, WHOLE)
    tl.store(y_at, sums.to(y.dtype.element_ty), mask=here)


@dataclass(frozen=True)
class Tiles:
    """Tiles of rows of groups: tile t has rows ``first_t .. end_t`` (at most its size) of ``group_t``; those that are not
    needed have none. As many as could be needed, so that no one has to ask the device how many there are."""

    group: Tensor
    first: Tensor
    end: Tensor

    def __len__(self) -> int:
        return self.group.shape[0]

    @staticmethod
    def of(start_G: Tensor, end_G: Tensor, *, size: int, rows: int) -> Tiles:
        """Of groups with ``rows`` rows in all."""
        count_G = (end_G - start_G + size - 1) // size
        after_G = count_G.cumsum(0)
        groups = start_G.shape[0]
        tile_T = torch.arange(rows // size + groups, device=start_G.device)
        found_T = torch.searchsorted(after_G, tile_T, right=True)
        group_T = found_T.clamp(max=groups - 1)
        first_T = start_G[group_T] + (tile_T - (after_G - count_G)[group_T]) * size
        end_T = torch.minimum(first_T + size, end_G[group_T])
        return Tiles(group_T, first_T, torch.where(found_T < groups, end_T, first_T))


def product(
    x_NK: Tensor,
    weight: Tensor,
    *,
    transposed: bool,
    offset: Tensor | None = None,
    add_to: Tensor | None = None,
) -> Tensor:
    """x W^T, or x W when ``transposed``, of a weight (O, K) or, by ``offset``, of a group (W, O, K). ``add_to``: float32, is
    added to and returned. All tensors are contiguous and aligned."""
    *_, outputs, inputs = weight.shape
    (columns, depth), strides = ((inputs, outputs), (1, inputs)) if transposed else ((outputs, inputs), (inputs, 1))
    rows = x_NK.shape[0]
    assert x_NK.shape[1] == depth, (x_NK.shape, weight.shape)
    blocks = BLOCKS[x_NK.dtype]
    y = x_NK.new_empty(rows, columns) if add_to is None else add_to
    if offset is None:
        table, tiles = (x_NK,) * 3, triton.cdiv(rows, blocks.rows)
    else:
        cut = Tiles.of(offset[:-1], offset[1:], size=blocks.rows, rows=rows)
        table, tiles = (cut.group, cut.first, cut.end), len(cut)
    product_kernel[(tiles, triton.cdiv(columns, blocks.columns))](
        x_NK, weight, y, *table, rows, columns, depth, outputs * inputs, *strides,
        GROUPED=offset is not None, ADD=add_to is not None, ROWS=blocks.rows, COLUMNS=blocks.columns,
        DEPTH=blocks.depth, WHOLE=depth % blocks.depth == 0, **blocks.options,
    )  # fmt: skip
    return y
