"""What a row does alone: norms, rotary positions, the gated unit. Bound: bytes, each element read and written once.

Shapes: see ``interface``; a program has a few whole rows, so a row's sums have one order wherever it lies.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from t1kernels.interface import Grains
from t1kernels.triton_kernels.arithmetic import UNFUSED, magnitude, note_largest, on_grid, rounded
from t1kernels.triton_kernels.weight_gradients import cell

ELEMENTS = 2048
"""Of a program, rows filled up to powers of two."""
GRAIN_ROWS, GRAIN_COLUMNS = 32, 64


def whole_rows(width: int) -> tuple[int, int]:
    """(rows of a program, a row's width as a power of two)."""
    padded = triton.next_power_of_2(width)
    return max(1, ELEMENTS // padded), padded


@triton.jit(do_not_specialize=["rows"])
def rms_norm_kernel(x, weight, y, scale, rows, width, eps, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Norms of some rows, and the factor of each for the gradient."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    here = (row < rows)[:, None] & (column < width)[None, :]
    at = row[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    factor = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(value * value, 1) / width + eps))
    tl.store(scale + row, factor, mask=row < rows)
    gain = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(y + at, (gain[None, :] * rounded(value * factor[:, None], x)).to(y.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["rows"])
def rms_norm_gradient_kernel(dy, x, weight, scale, dx, rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The gradient of a norm to its rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    here = (row < rows)[:, None] & (column < width)[None, :]
    at = row[:, None] * width + column[None, :]
    factor = tl.load(scale + row, mask=row < rows, other=0.0)[:, None]
    gain = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    up = tl.load(dy + at, mask=here, other=0.0).to(tl.float32) * gain[None, :]
    normed = tl.load(x + at, mask=here, other=0.0).to(tl.float32) * factor
    mean = tl.sum(up * normed, 1) / width
    tl.store(dx + at, (factor * (up - normed * mean[:, None])).to(dx.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["grain_first", "grain_end"])
def norm_weight_gradient_kernel(
    dy, x, scale, grain_first, grain_end, total, largest, width,
    BIG: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One grain's partial gradient of a norm's weight, added on the grid."""
    grain = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    column_here = column < width
    end = tl.load(grain_end + grain)
    partial = tl.zeros((COLUMNS,), tl.float32)
    for first in range(tl.load(grain_first + grain), end, ROWS):
        row = first + tl.arange(0, ROWS)
        here = (row < end)[:, None] & column_here[None, :]
        at = row[:, None] * width + column[None, :]
        factor = tl.load(scale + row, mask=row < end, other=0.0)[:, None]
        normed = rounded(tl.load(x + at, mask=here, other=0.0).to(tl.float32) * factor, x)
        partial += tl.sum(tl.load(dy + at, mask=here, other=0.0).to(tl.float32) * normed, 0)
    note_largest(largest, magnitude(partial))
    tl.atomic_add(total + column, on_grid(partial, BIG), mask=column_here, sem="relaxed")


@triton.jit(do_not_specialize=["pairs"])
def rope_kernel(x, cosine, sine, y, pairs, heads, half, BACK: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr):
    """``pairs``: of rows and heads."""
    pair = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, HALF)
    here = (pair < pairs)[:, None] & (column < half)[None, :]
    at = pair[:, None] * 2 * half + column[None, :]
    angle = (pair // heads)[:, None] * 2 * half + column[None, :]
    a, b = tl.load(x + at, mask=here).to(tl.float32), tl.load(x + at + half, mask=here).to(tl.float32)
    cos_a, cos_b = tl.load(cosine + angle, mask=here), tl.load(cosine + angle + half, mask=here)
    sin_a, sin_b = tl.load(sine + angle, mask=here), tl.load(sine + angle + half, mask=here)
    if BACK:
        to_a, to_b = a * cos_a + b * sin_b, b * cos_b - a * sin_a
    else:
        to_a, to_b = a * cos_a - b * sin_a, b * cos_b + a * sin_b
    tl.store(y + at, to_a.to(y.dtype.element_ty), mask=here)
    tl.store(y + at + half, to_b.to(y.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["elements"])
def silu_mul_kernel(gate_up, h, elements, width, BLOCK: tl.constexpr):
    """silu(gate) * up, element by element."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < elements
    source = gate_up + at // width * 2 * width + at % width
    gate, up = (
        tl.load(source, mask=here, other=0.0).to(tl.float32),
        tl.load(source + width, mask=here, other=0.0).to(tl.float32),
    )
    silu = rounded(gate * tl.div_rn(1.0, 1.0 + tl.exp(-gate)), h)
    tl.store(h + at, (silu * up).to(h.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["elements"])
def silu_mul_gradient_kernel(dh, gate_up, dgate_up, elements, width, BLOCK: tl.constexpr):
    """The gradient of ``silu_mul`` to gate and up."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < elements
    place = at // width * 2 * width + at % width
    gate = tl.load(gate_up + place, mask=here, other=0.0).to(tl.float32)
    up = tl.load(gate_up + place + width, mask=here, other=0.0).to(tl.float32)
    slope = tl.load(dh + at, mask=here, other=0.0).to(tl.float32)
    sigmoid = tl.div_rn(1.0, 1.0 + tl.exp(-gate))
    silu = gate * sigmoid
    to_gate = slope * up * (sigmoid + silu * (1.0 - sigmoid))
    tl.store(dgate_up + place, to_gate.to(dgate_up.dtype.element_ty), mask=here)
    tl.store(dgate_up + place + width, (slope * rounded(silu, dh)).to(dgate_up.dtype.element_ty), mask=here)


def rms_norm(x_NH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See ``interface.Kernels.rms_norm``."""
    width = weight_H.shape[0]
    rows = x_NH.numel() // width
    y_NH, scale_N = x_NH.new_empty(x_NH.shape), weight_H.new_empty(rows).float()
    size, padded = whole_rows(width)
    rms_norm_kernel[(triton.cdiv(rows, size),)](
        x_NH, weight_H, y_NH, scale_N, rows, width, eps, ROWS=size, WIDTH=padded, num_warps=4, **UNFUSED
    )
    return y_NH, scale_N


def rms_norm_gradient(
    dy_NH: Tensor, x_NH: Tensor, weight_H: Tensor, scale_N: Tensor, grains: Grains, total_H: Tensor, big: float
) -> tuple[Tensor, Tensor]:
    """(gradient of the rows, the largest magnitude of a partial); that of the weight is added to ``total_H``."""
    width, rows, device = weight_H.shape[0], scale_N.shape[0], x_NH.device
    dx_NH, largest = x_NH.new_empty(x_NH.shape), cell(device)
    size, padded = whole_rows(width)
    rms_norm_gradient_kernel[(triton.cdiv(rows, size),)](
        dy_NH, x_NH, weight_H, scale_N, dx_NH, rows, width, ROWS=size, WIDTH=padded, num_warps=4, **UNFUSED
    )
    start, end = (t.to(device, non_blocking=True) for t in (grains.start, grains.end))
    norm_weight_gradient_kernel[(len(grains), triton.cdiv(width, GRAIN_COLUMNS))](
        dy_NH, x_NH, scale_N, start, end, total_H, largest, width,
        BIG=big, ROWS=GRAIN_ROWS, COLUMNS=GRAIN_COLUMNS, num_warps=4, **UNFUSED,
    )  # fmt: skip
    return dx_NH, largest.view(torch.float32)


def rope(x_NQD: Tensor, cos_ND: Tensor, sin_ND: Tensor, *, back: bool) -> Tensor:
    """The rotation, or its transpose."""
    rows, heads, width = x_NQD.shape
    y_NQD, half = x_NQD.new_empty(x_NQD.shape), width // 2
    size, padded = whole_rows(half)
    rope_kernel[(triton.cdiv(rows * heads, size),)](
        x_NQD, cos_ND, sin_ND, y_NQD, rows * heads, heads, half,
        BACK=back, ROWS=size, HALF=padded, num_warps=4, **UNFUSED,
    )  # fmt: skip
    return y_NQD


def silu_mul(gate_up_NI: Tensor) -> Tensor:
    """silu(gate) * up."""
    rows, width = gate_up_NI.shape[0], gate_up_NI.shape[1] // 2
    h_NI = gate_up_NI.new_empty(rows, width)
    silu_mul_kernel[(triton.cdiv(rows * width, ELEMENTS),)](
        gate_up_NI, h_NI, rows * width, width, BLOCK=ELEMENTS, num_warps=4, **UNFUSED
    )
    return h_NI


def silu_mul_gradient(dh_NI: Tensor, gate_up_NI: Tensor) -> Tensor:
    """The gradient of gate and up."""
    dgate_up_NI = gate_up_NI.new_empty(gate_up_NI.shape)
    silu_mul_gradient_kernel[(triton.cdiv(dh_NI.numel(), ELEMENTS),)](
        dh_NI, gate_up_NI, dgate_up_NI, dh_NI.numel(), dh_NI.shape[1], BLOCK=ELEMENTS, num_warps=4, **UNFUSED
    )
    return dgate_up_NI
