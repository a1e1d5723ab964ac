"""Gradients of causal attention over whole sequences, in tiles of 64 positions.

Two kernels: one has a tile of queries and goes over the tiles of keys before it; the other has a tile of keys and goes over
the tiles of queries after it, in each of them over the query heads that share the key head. Both fold in that order, in
float32: a function of the sequence alone. (A sequence cut over several devices would need dK and dV on the grid of an exact
sum, tile by tile, as the kernels in C have them: here float64 atomics would cost more registers than there are.)

Bound: FLOPs, 14 D for each query head, query and key that it sees.

Shapes: see ``interface``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from t1kernels.interface import PAGE
from t1kernels.triton_kernels.arithmetic import FLOAT32, UNFUSED
from t1kernels.triton_kernels.attention import compiled_for
from t1kernels.triton_kernels.products import Tiles


@triton.jit(do_not_specialize=["pairs"])
def mean_kernel(dout, out, mean, pairs, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The sum of dout times out of each pair of row and head."""
    pair = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    at, here = pair[:, None] * width + d[None, :], (pair < pairs)[:, None] & (d < width)[None, :]
    a, b = tl.load(dout + at, mask=here, other=0.0), tl.load(out + at, mask=here, other=0.0)
    tl.store(mean + pair, tl.sum(a.to(tl.float32) * b.to(tl.float32), 1), mask=pair < pairs)


@triton.jit
def softmax_of(softmax, mean, pair, here):
    """(highest score, sum of exponentials, mean) of queries; those that are not there give weights of 0."""
    m = tl.load(softmax + 2 * pair, mask=here, other=float("inf"))
    total = tl.load(softmax + 2 * pair + 1, mask=here, other=1.0)
    return m, total, tl.load(mean + pair, mask=here, other=0.0)


@triton.jit
def query_gradient_kernel(
    dout, query, key, value, softmax, mean, dquery, tile_first, tile_end, tile_start, scale, heads, groups, width,
    PAGE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``tile_start``: where the tile's sequence begins."""
    first, end = tl.load(tile_first + tl.program_id(0)), tl.load(tile_end + tl.program_id(0))
    if first >= end:
        return
    start = tl.load(tile_start + tl.program_id(0))
    head = tl.program_id(1)
    group = head // (heads // groups)
    row, d = first + tl.arange(0, PAGE), tl.arange(0, WIDTH)
    row_here, d_here = row < end, d < width
    here = row_here[:, None] & d_here[None, :]
    at = (row * heads + head)[:, None] * width + d[None, :]
    q = tl.load(query + at, mask=here, other=0.0)
    slope = tl.load(dout + at, mask=here, other=0.0)
    m, total, inner = softmax_of(softmax, mean, row * heads + head, row_here)
    sums = tl.zeros((PAGE, WIDTH), tl.float32)
    for block in range(start, first + 1, PAGE):
        other = block + tl.arange(0, PAGE)
        other_at = (other * groups + group)[:, None] * width + d[None, :]
        other_here = (other < end)[:, None] & d_here[None, :]
        k = tl.load(key + other_at, mask=other_here, other=0.0)
        v = tl.load(value + other_at, mask=other_here, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=FLOAT32) * scale
        weights = tl.exp(scores - m[:, None]) / total[:, None]
        weights = tl.where(other[None, :] <= row[:, None], weights, 0.0)
        inward = tl.dot(slope, tl.trans(v), input_precision=FLOAT32)
        to_scores = weights * (inward - inner[:, None]) * scale
        sums = tl.dot(to_scores.to(q.dtype), k, sums, input_precision=FLOAT32)
    tl.store(dquery + at, sums.to(dquery.dtype.element_ty), mask=here)


@triton.jit
def key_gradient_kernel(
    dout, query, key, value, softmax, mean, dkey, dvalue, tile_first, tile_end, tile_stop, scale, heads, groups, width,
    PAGE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``tile_stop``: where the tile's sequence ends."""
    first, end = tl.load(tile_first + tl.program_id(0)), tl.load(tile_end + tl.program_id(0))
    if first >= end:
        return
    stop = tl.load(tile_stop + tl.program_id(0))
    group = tl.program_id(1)
    share = heads // groups
    row, d = first + tl.arange(0, PAGE), tl.arange(0, WIDTH)
    d_here = d < width
    here = (row < end)[:, None] & d_here[None, :]
    at = (row * groups + group)[:, None] * width + d[None, :]
    k = tl.load(key + at, mask=here, other=0.0)
    v = tl.load(value + at, mask=here, other=0.0)
    to_key = tl.zeros((PAGE, WIDTH), tl.float32)
    to_value = tl.zeros((PAGE, WIDTH), tl.float32)
    for turn in range(0, tl.cdiv(stop - first, PAGE) * share):
        other = first + turn // share * PAGE + tl.arange(0, PAGE)
        other_here = other < stop
        pair = other * heads + group * share + turn % share
        other_at, both = pair[:, None] * width + d[None, :], other_here[:, None] & d_here[None, :]
        q = tl.load(query + other_at, mask=both, other=0.0)
        slope = tl.load(dout + other_at, mask=both, other=0.0)
        m, total, inner = softmax_of(softmax, mean, pair, other_here)
        scores = tl.dot(k, tl.trans(q), input_precision=FLOAT32) * scale
        weights = tl.exp(scores - m[None, :]) / total[None, :]
        weights = tl.where(row[:, None] <= other[None, :], weights, 0.0)
        to_value = tl.dot(weights.to(k.dtype), slope, to_value, input_precision=FLOAT32)
        inward = tl.dot(v, tl.trans(slope), input_precision=FLOAT32)
        to_scores = weights * (inward - inner[None, :]) * scale
        to_key = tl.dot(to_scores.to(k.dtype), q, to_key, input_precision=FLOAT32)
    tl.store(dkey + at, to_key.to(dkey.dtype.element_ty), mask=here)
    tl.store(dvalue + at, to_value.to(dvalue.dtype.element_ty), mask=here)


def attention_gradient(
    dout_NQD: Tensor,
    query_NQD: Tensor,
    key_NGD: Tensor,
    value_NGD: Tensor,
    out_NQD: Tensor,
    softmax_NQ2: Tensor,
    start_S: Tensor,
    length_S: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``interface.Kernels.attention_gradient``."""
    (rows, heads, width), groups = query_NQD.shape, key_NGD.shape[1]
    padded = max(16, triton.next_power_of_2(width))
    stop_S = start_S + length_S
    tiles = Tiles.of(start_S, stop_S, size=PAGE, rows=rows)
    mean_NQ = query_NQD.new_empty(rows, heads, dtype=torch.float32)
    size = 32
    mean_kernel[(triton.cdiv(rows * heads, size),)](
        dout_NQD, out_NQD, mean_NQ, rows * heads, width, ROWS=size, WIDTH=padded, num_warps=4, **UNFUSED
    )
    given = (dout_NQD, query_NQD, key_NGD, value_NGD, softmax_NQ2, mean_NQ)
    options = {"PAGE": PAGE, "WIDTH": padded, **compiled_for(padded, query_NQD.dtype)}
    dquery_NQD = query_NQD.new_empty(query_NQD.shape)
    query_gradient_kernel[(len(tiles), heads)](
        *given, dquery_NQD, tiles.first, tiles.end, start_S[tiles.group], scale, heads, groups, width, **options
    )
    dkey_NGD, dvalue_NGD = key_NGD.new_empty(key_NGD.shape), key_NGD.new_empty(key_NGD.shape)
    key_gradient_kernel[(len(tiles), groups)](
        *given,
        dkey_NGD,
        dvalue_NGD,
        tiles.first,
        tiles.end,
        stop_S[tiles.group],
        scale,
        heads,
        groups,
        width,
        **options,
    )
    return dquery_NQD, dkey_NGD, dvalue_NGD
