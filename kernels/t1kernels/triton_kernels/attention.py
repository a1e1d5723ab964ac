"""Causal attention over pages of 64 positions: one kernel for decode, prefill and packed training.

A program has a tile of consecutive positions of one sequence, times the query heads that share a key head: 64 rows of a
product. A tile begins wherever a position is a multiple of its size, or a row is not the successor of the row before it,
so a decode row is a tile of its own. Pages are folded from left to right (online softmax); all rows of a tile end in the
same page, so none is folded over a page that it does not see. What lies behind a tile's last position is never used: it
may never have been written. No split over keys: few long sequences leave a device idle in decode.

Bound: decode the bytes of keys and values; prefill and training FLOPs. Products are made in the model's dtype, sums,
softmax and pages (as the interface has them) are float32.

Shapes: see ``interface``; M = 64 rows of a program's tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from t1kernels.interface import PAGE
from t1kernels.triton_kernels.arithmetic import FLOAT32, UNFUSED

TILE = 64
"""Positions times query heads of a program."""


@triton.jit
def store_kernel(
    keys, values, key, value, first_page, position, groups, width,
    PAGE: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One row's key and value to their place in its sequence's pages; a page of keys is transposed."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.load(position + row)
    page, place = tl.load(first_page + row) + at // PAGE, at % PAGE
    group, d = tl.arange(0, GROUPS)[:, None], tl.arange(0, WIDTH)[None, :]
    here = (group < groups) & (d < width)
    source = (row * groups + group) * width + d
    head = page * groups + group
    one_key = tl.load(key + source, mask=here, other=0.0)
    one_value = tl.load(value + source, mask=here, other=0.0)
    tl.store(keys + (head * width + d) * PAGE + place, one_key.to(keys.dtype.element_ty), mask=here)
    tl.store(values + (head * PAGE + place) * width + d, one_value.to(values.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["rows"])
def attend_kernel(
    query, keys, values, first_page, position, out, softmax, scale, rows, heads, groups, width,
    PAGE: tl.constexpr, POSITIONS: tl.constexpr, SHARE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """POSITIONS of a tile times SHARE (query heads of a key head, filled up to a power of two) = M rows."""
    begin = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    first = tl.load(first_page + begin)
    start = tl.load(position + begin)
    before_first = tl.load(first_page + begin - 1, mask=begin > 0, other=-1)
    before = tl.load(position + begin - 1, mask=begin > 0, other=-1)
    if (before_first == first) & (before + 1 == start) & (start % POSITIONS != 0):
        return  # the row belongs to a tile that begins before it
    share = heads // groups
    index = tl.arange(0, POSITIONS * SHARE)
    step, head = index // SHARE, group * share + index % SHARE
    row = begin + step
    here = (row < rows) & (start % POSITIONS + step < POSITIONS)
    here &= tl.load(first_page + row, mask=here, other=-1) == first
    here &= tl.load(position + row, mask=here, other=-1) == start + step
    last = start + tl.max(tl.where(here, step, 0), 0)
    here &= index % SHARE < share
    at = tl.where(here, start + step, start)  # places without a row do as the first one does
    d, key_at = tl.arange(0, WIDTH), tl.arange(0, PAGE)
    q_at = (row * heads + head)[:, None] * width + d[None, :]
    q = tl.load(query + q_at, mask=here[:, None] & (d < width)[None, :], other=0.0)
    m = tl.full((POSITIONS * SHARE,), float("-inf"), tl.float32)
    total = tl.zeros((POSITIONS * SHARE,), tl.float32)
    sums = tl.zeros((POSITIONS * SHARE, WIDTH), tl.float32)
    for page in range(0, last // PAGE + 1):
        store = ((first + page) * groups + group) * width * PAGE
        written = page * PAGE + key_at <= last
        k = tl.load(
            keys + store + d[:, None] * PAGE + key_at[None, :],
            mask=(d < width)[:, None] & written[None, :], other=0.0,
        )  # fmt: skip
        v = tl.load(
            values + store + key_at[:, None] * width + d[None, :],
            mask=written[:, None] & (d < width)[None, :], other=0.0,
        )  # fmt: skip
        scores = tl.dot(q, k.to(q.dtype), input_precision=FLOAT32) * scale
        scores = tl.where((page * PAGE + key_at)[None, :] <= at[:, None], scores, float("-inf"))
        now = tl.maximum(m, tl.max(scores, 1))
        weights = tl.exp(scores - now[:, None])
        kept = tl.exp(m - now)
        total = total * kept + tl.sum(weights, 1)
        sums = tl.dot(weights.to(q.dtype), v.to(q.dtype), sums * kept[:, None], input_precision=FLOAT32)
        m = now
    tl.store(
        out + q_at, tl.div_rn(sums, tl.broadcast_to(total[:, None], (POSITIONS * SHARE, WIDTH))).to(out.dtype.element_ty),
        mask=here[:, None] & (d < width)[None, :],
    )  # fmt: skip
    tl.store(softmax + (row * heads + head) * 2, m, mask=here)
    tl.store(softmax + (row * heads + head) * 2 + 1, total, mask=here)


def compiled_for(width: int, dtype: torch.dtype) -> dict[str, object]:
    """How kernels of attention are compiled: so that registers and shared memory suffice (``python -m bench.gpu --compile``).
    Heads may be 256 wide in bfloat16, 128 in float32."""
    short = dtype == torch.bfloat16
    return {
        "num_warps": 4 if short and width <= 64 else 8,
        "num_stages": 2 if short and width <= 128 else 1,
        **UNFUSED,
    }


def store(
    keys_PGDT: Tensor, values_PGTD: Tensor, key_NGD: Tensor, value_NGD: Tensor, first_page_N: Tensor, position_N: Tensor
) -> None:
    """See ``interface.Kernels.store``."""
    rows, groups, width = key_NGD.shape
    store_kernel[(rows,)](
        keys_PGDT, values_PGTD, key_NGD, value_NGD, first_page_N, position_N, groups, width,
        PAGE=PAGE, GROUPS=triton.next_power_of_2(groups), WIDTH=triton.next_power_of_2(width), num_warps=4, **UNFUSED,
    )  # fmt: skip


def attend(
    query_NQD: Tensor,
    keys_PGDT: Tensor,
    values_PGTD: Tensor,
    first_page_N: Tensor,
    position_N: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """See ``interface.Kernels.attend``."""
    rows, heads, width = query_NQD.shape
    groups = keys_PGDT.shape[1]
    share, padded = triton.next_power_of_2(heads // groups), max(16, triton.next_power_of_2(width))
    out_NQD = query_NQD.new_empty(query_NQD.shape)
    softmax_NQ2 = query_NQD.new_empty(rows, heads, 2, dtype=torch.float32)
    attend_kernel[(rows, groups)](
        query_NQD, keys_PGDT, values_PGTD, first_page_N, position_N, out_NQD, softmax_NQ2, scale,
        rows, heads, groups, width,
        PAGE=PAGE, POSITIONS=max(1, TILE // share), SHARE=share, WIDTH=padded, **compiled_for(padded, query_NQD.dtype),
    )  # fmt: skip
    return out_NQD, softmax_NQ2
