"""The router's choice, its gate, and the sum over a row's experts. Bound: bytes.

Shapes: see ``interface``; E experts filled up to a power of two, CHOSEN = K.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from t1kernels.interface import Dispatch
from t1kernels.triton_kernels.arithmetic import UNFUSED
from t1kernels.triton_kernels.rows import whole_rows

COLUMNS = 512


@triton.jit
def probabilities(logits, row, row_here, experts, EXPERTS: tl.constexpr):
    """The softmax of rows over all experts, float32; 0 for those that fill up."""
    expert = tl.arange(0, EXPERTS)
    at = row[:, None] * experts + expert[None, :]
    here = (expert < experts)[None, :]
    value = tl.load(logits + at, mask=row_here[:, None] & here, other=0.0).to(tl.float32)
    value = tl.where(here, value, float("-inf"))
    p = tl.exp(value - tl.max(value, 1)[:, None])
    return p / tl.sum(p, 1)[:, None]


@triton.jit(do_not_specialize=["rows"])
def select_kernel(logits, chosen, rows, experts, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, ROWS: tl.constexpr):
    """The most probable experts of some rows, equals by ascending id; the chosen ids ascend."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_here = row < rows
    p = probabilities(logits, row, row_here, experts, EXPERTS)
    p = tl.where(p == p, p, 0.0)  # of rows that are not numbers the first experts: their log-probs will show it
    expert = tl.broadcast_to(tl.arange(0, EXPERTS)[None, :], (ROWS, EXPERTS))
    p = tl.where(expert < experts, p, -1.0)
    taken = tl.zeros((ROWS, EXPERTS), tl.int32)
    for _ in tl.static_range(CHOSEN):
        best = tl.min(tl.where(p == tl.max(p, 1)[:, None], expert, EXPERTS), 1)
        mine = expert == best[:, None]
        taken += mine.to(tl.int32)
        p = tl.where(mine, -1.0, p)
    place = tl.cumsum(taken, 1) - 1
    tl.store(chosen + row[:, None] * CHOSEN + place, expert.to(tl.int64), mask=row_here[:, None] & (taken != 0))


@triton.jit(do_not_specialize=["rows"])
def gate_kernel(
    logits, chosen, weights, rows, experts,
    NORMALISE: tl.constexpr, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Weights of the chosen experts of some rows, whoever chose them."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_here = row < rows
    p = probabilities(logits, row, row_here, experts, EXPERTS)
    expert = tl.arange(0, EXPERTS)[None, :]
    total = tl.zeros((ROWS,), tl.float32)
    if NORMALISE:
        for k in tl.static_range(CHOSEN):
            mine = expert == tl.load(chosen + row * CHOSEN + k, mask=row_here, other=0)[:, None]
            total += tl.sum(tl.where(mine, p, 0.0), 1)
    for k in tl.static_range(CHOSEN):
        mine = expert == tl.load(chosen + row * CHOSEN + k, mask=row_here, other=0)[:, None]
        weight = tl.sum(tl.where(mine, p, 0.0), 1)
        if NORMALISE:
            weight = weight / total
        tl.store(weights + row * CHOSEN + k, weight.to(weights.dtype.element_ty), mask=row_here)


@triton.jit(do_not_specialize=["rows"])
def gate_gradient_kernel(
    dweights, logits, chosen, dlogits, rows, experts,
    NORMALISE: tl.constexpr, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradient of the gate's weights to the router's logits."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_here = row < rows
    p = probabilities(logits, row, row_here, experts, EXPERTS)
    expert = tl.broadcast_to(tl.arange(0, EXPERTS)[None, :], (ROWS, EXPERTS))
    total = tl.zeros((ROWS,), tl.float32)
    inner = tl.zeros((ROWS,), tl.float32)
    slopes = tl.zeros((ROWS, EXPERTS), tl.float32)
    for k in tl.static_range(CHOSEN):
        mine = expert == tl.load(chosen + row * CHOSEN + k, mask=row_here, other=0)[:, None]
        slope = tl.load(dweights + row * CHOSEN + k, mask=row_here, other=0.0).to(tl.float32)
        weight = tl.sum(tl.where(mine, p, 0.0), 1)
        total += weight
        inner += slope * weight
        slopes = tl.where(mine, slope[:, None], slopes)
    if NORMALISE:
        picked = slopes * 0.0
        for k in tl.static_range(CHOSEN):
            mine = expert == tl.load(chosen + row * CHOSEN + k, mask=row_here, other=0)[:, None]
            picked = tl.where(mine, (slopes - (inner / total)[:, None]) / total[:, None], picked)
        slopes = picked
    to_logits = p * (slopes - tl.sum(p * slopes, 1)[:, None])
    at = dlogits + row[:, None] * experts + expert
    tl.store(at, to_logits.to(dlogits.dtype.element_ty), mask=row_here[:, None] & (expert < experts))


@triton.jit
def combine_kernel(
    rows_RH, place, weights, out, width, WEIGHTED: tl.constexpr, CHOSEN: tl.constexpr, COLUMNS: tl.constexpr
):
    """A token's sum over its experts' rows, folded in the order of its slots."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    here = column < width
    sums = tl.zeros((COLUMNS,), tl.float32)
    for k in tl.static_range(CHOSEN):
        source = tl.load(place + row * CHOSEN + k)
        value = tl.load(rows_RH + source * width + column, mask=here, other=0.0).to(tl.float32)
        if WEIGHTED:
            value *= tl.load(weights + row * CHOSEN + k).to(tl.float32)
        sums += value
    tl.store(out + row * width + column, sums.to(out.dtype.element_ty), mask=here)


@triton.jit
def combine_gradient_kernel(dout, rows_RH, place, weights, drows, dweights, chosen, width, COLUMNS: tl.constexpr):
    """A program for each pair of row and slot."""
    pair = tl.program_id(0).to(tl.int64)
    source = tl.load(place + pair) * width
    up_at = pair // chosen * width
    weight = tl.load(weights + pair).to(tl.float32)
    dots = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, width, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        here = column < width
        up = tl.load(dout + up_at + column, mask=here, other=0.0).to(tl.float32)
        dots += up * tl.load(rows_RH + source + column, mask=here, other=0.0).to(tl.float32)
        tl.store(drows + source + column, (up * weight).to(drows.dtype.element_ty), mask=here)
    tl.store(dweights + pair, tl.sum(dots, 0).to(dweights.dtype.element_ty))


def select_experts(logits_NE: Tensor, k: int) -> Tensor:
    """See ``interface.Kernels.select_experts``."""
    rows, experts = logits_NE.shape
    size, padded = whole_rows(experts)
    chosen_NK = torch.empty(rows, k, dtype=torch.int64, device=logits_NE.device)
    select_kernel[(triton.cdiv(rows, size),)](
        logits_NE, chosen_NK, rows, experts, EXPERTS=padded, CHOSEN=k, ROWS=size, num_warps=4, **UNFUSED
    )
    return chosen_NK


def gate(logits_NE: Tensor, experts_NK: Tensor, *, normalise: bool) -> Tensor:
    """See ``interface.Kernels.gate``."""
    (rows, experts), k = logits_NE.shape, experts_NK.shape[1]
    size, padded = whole_rows(experts)
    weights_NK = logits_NE.new_empty(rows, k)
    gate_kernel[(triton.cdiv(rows, size),)](
        logits_NE, experts_NK, weights_NK, rows, experts,
        NORMALISE=normalise, EXPERTS=padded, CHOSEN=k, ROWS=size, num_warps=4, **UNFUSED,
    )  # fmt: skip
    return weights_NK


def gate_gradient(dweights_NK: Tensor, logits_NE: Tensor, experts_NK: Tensor, *, normalise: bool) -> Tensor:
    """See ``interface.Kernels.gate_gradient``."""
    (rows, experts), k = logits_NE.shape, experts_NK.shape[1]
    size, padded = whole_rows(experts)
    dlogits_NE = logits_NE.new_empty(rows, experts)
    gate_gradient_kernel[(triton.cdiv(rows, size),)](
        dweights_NK, logits_NE, experts_NK, dlogits_NE, rows, experts,
        NORMALISE=normalise, EXPERTS=padded, CHOSEN=k, ROWS=size, num_warps=4, **UNFUSED,
    )  # fmt: skip
    return dlogits_NE


def dispatch(experts_NK: Tensor, experts: int) -> Dispatch:
    """See ``interface.Kernels.dispatch``. In torch: integers, a stable sort, and nobody waits for the device."""
    expert_R = experts_NK.reshape(-1)
    sorted_R, order_R = expert_R.sort(stable=True)
    place_R = torch.empty_like(order_R)
    place_R[order_R] = torch.arange(order_R.shape[0], device=order_R.device)
    offset_E = torch.searchsorted(sorted_R, torch.arange(experts + 1, device=sorted_R.device))
    return Dispatch(offset_E, order_R // experts_NK.shape[1], place_R.view(experts_NK.shape))


def combine(rows_RH: Tensor, place_NK: Tensor, weights_NK: Tensor | None) -> Tensor:
    """See ``interface.Kernels.combine``."""
    (rows, k), width = place_NK.shape, rows_RH.shape[1]
    out_NH = rows_RH.new_empty(rows, width)
    combine_kernel[(rows, triton.cdiv(width, COLUMNS))](
        rows_RH, place_NK, rows_RH if weights_NK is None else weights_NK, out_NH, width,
        WEIGHTED=weights_NK is not None, CHOSEN=k, COLUMNS=COLUMNS, num_warps=4, **UNFUSED,
    )  # fmt: skip
    return out_NH


def combine_gradient(dout_NH: Tensor, rows_RH: Tensor, place_NK: Tensor, weights_NK: Tensor) -> tuple[Tensor, Tensor]:
    """See ``interface.Kernels.combine_gradient``."""
    drows_RH, dweights_NK = rows_RH.new_empty(rows_RH.shape), weights_NK.new_empty(weights_NK.shape)
    combine_gradient_kernel[(place_NK.numel(),)](
        dout_NH, rows_RH, place_NK, weights_NK, drows_RH, dweights_NK, place_NK.shape[1], rows_RH.shape[1],
        COLUMNS=COLUMNS, num_warps=4, **UNFUSED,
    )  # fmt: skip
    return drows_RH, dweights_NK
