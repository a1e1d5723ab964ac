"""Log-probabilities of chosen tokens without logits, and tokens drawn from logits: the same softmax for both.

The vocabulary is cut into tiles of a product's columns. Forward: a program makes the logits of one tile for some rows, and
keeps of each row three numbers: the highest scaled logit m, sum e^(s - m), sum e^(s - m) (s - m); a second kernel folds the
tiles. The sampler's ``draw``, which has the logits, takes the same three numbers of the same tiles, written as the same
sums, and goes through the same second kernel; so both come to the same bits. Backward: slopes of ``WORDS`` words at a time,
from logits made again, in the model's dtype; two products use them.

Bound: FLOPs, 2 R V H forward and 6 R V H backward; memory beside inputs and outputs is 12 bytes a row and tile forward, and
slopes of ``WORDS`` words a row backward.

Shapes: see ``interface``; T tiles of the vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from t1kernels.exact import ExactSum
from t1kernels.interface import Grains
from t1kernels.triton_kernels.arithmetic import UNFUSED, folded, rounded
from t1kernels.triton_kernels.products import BLOCKS, Blocks, product, product_tile
from t1kernels.triton_kernels.weight_gradients import weight_gradient

WORDS = 2048
"""Whose slopes are held at a time. The gradient of the hidden states is summed over such pieces in order: so it is part
of its bits."""
FOLD_ROWS, FOLD_TILES = 32, 32
DRAW_WORDS = 1024
LEAST = tl.constexpr(-104.0)
"""e to this is 0 in float32."""


@triton.jit
def softmax_of_tile(scaled, here, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr):
    """(highest, sum of e^(s - highest), sum of e^(s - highest) (s - highest)) of each row."""
    scaled = tl.where(here[None, :], scaled, float("-inf"))
    highest = tl.max(scaled, 1)
    shifted = scaled - tl.where(highest == float("-inf"), 0.0, highest)[:, None]
    p = tl.exp(shifted)
    weighted = p * tl.maximum(shifted, LEAST)
    return highest, folded(p, ROWS, COLUMNS, STEPS), folded(weighted, ROWS, COLUMNS, STEPS)


@triton.jit
def keep(parts, tile, tiles, row, rows, highest, total, weighted):
    """``parts`` (3, T, R)."""
    at = parts + tile.to(tl.int64) * rows + row
    tl.store(at, highest, mask=row < rows)
    tl.store(at + tiles.to(tl.int64) * rows, total, mask=row < rows)
    tl.store(at + tiles.to(tl.int64) * 2 * rows, weighted, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def softmax_of_hidden_kernel(
    hidden, head, ids, parts, chosen, temperature, rows, words, depth,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr,
    ):  # fmt: skip
    """Statistics of one tile of the vocabulary for some rows, from products that are not kept."""
    row = (tl.program_id(0) * ROWS).to(tl.int64) + tl.arange(0, ROWS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    row_here, column_here = row < rows, column < words
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    sums = product_tile(hidden, head, row, row_here, column, column_here, depth, depth, 1, sums, DEPTH, WHOLE)
    scaled = tl.div_rn(rounded(sums, hidden), tl.full((ROWS, COLUMNS), temperature, tl.float32))
    word = tl.load(ids + row, mask=row_here, other=-1)
    mine = (column[None, :] == word[:, None]) & column_here[None, :]
    found = tl.sum(mine.to(tl.int32), 1) > 0
    tl.store(chosen + row, tl.sum(tl.where(mine, scaled, 0.0), 1), mask=row_here & found)
    highest, total, weighted = softmax_of_tile(scaled, column_here, ROWS, COLUMNS, STEPS)
    keep(parts, tl.program_id(1), tl.num_programs(1), row, rows, highest, total, weighted)


@triton.jit(do_not_specialize=["rows"])
def softmax_of_logits_kernel(
    logits, parts, temperature, rows, words, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr
):
    """The same statistics from logits that the sampler has."""
    row = (tl.program_id(0) * ROWS).to(tl.int64) + tl.arange(0, ROWS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    row_here, column_here = row < rows, column < words
    value = tl.load(
        logits + row[:, None] * words + column[None, :], mask=row_here[:, None] & column_here[None, :], other=0.0
    )
    divisor = tl.load(temperature + row, mask=row_here, other=1.0)
    divisor = tl.where(divisor == 0.0, 1.0, divisor)
    scaled = tl.div_rn(value.to(tl.float32), tl.broadcast_to(divisor[:, None], (ROWS, COLUMNS)))
    highest, total, weighted = softmax_of_tile(scaled, column_here, ROWS, COLUMNS, STEPS)
    keep(parts, tl.program_id(1), tl.num_programs(1), row, rows, highest, total, weighted)


@triton.jit(do_not_specialize=["rows"])
def fold_kernel(parts, softmax, weighted, rows, tiles, ROWS: tl.constexpr, TILES: tl.constexpr):
    """Fold the tiles of each row, TILES at a time from left to right: ``softmax`` (R, 2) and ``weighted`` (R)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_here = row < rows
    m = tl.full((ROWS,), float("-inf"), tl.float32)
    l = tl.zeros((ROWS,), tl.float32)  # noqa: E741 (as in every paper on it)
    e = tl.zeros((ROWS,), tl.float32)
    step = tiles.to(tl.int64) * rows
    for first in range(0, tiles, TILES):
        tile = (first + tl.arange(0, TILES)).to(tl.int64)
        here = row_here[:, None] & (tile < tiles)[None, :]
        at = parts + tile[None, :] * rows + row[:, None]
        tile_m = tl.load(at, mask=here, other=float("-inf"))
        tile_l = tl.load(at + step, mask=here, other=0.0)
        tile_e = tl.load(at + 2 * step, mask=here, other=0.0)
        now = tl.maximum(m, tl.max(tile_m, 1))
        base = tl.where(now == float("-inf"), 0.0, now)
        factor = tl.exp(tile_m - base[:, None])
        fallen = tl.where(tile_m == float("-inf"), 0.0, tile_m - base[:, None])
        kept = tl.exp(m - base)
        before = tl.where(m == float("-inf"), 0.0, m - base)
        e = kept * (e + before * l) + tl.sum(factor * (tile_e + fallen * tile_l), 1)
        l = kept * l + tl.sum(factor * tile_l, 1)  # noqa: E741
        m = now
    tl.store(softmax + 2 * row, m, mask=row_here)
    tl.store(softmax + 2 * row + 1, l, mask=row_here)
    tl.store(weighted + row, e, mask=row_here)


@triton.jit(do_not_specialize=["rows"])
def answers_kernel(chosen, softmax, weighted, logprob, entropy, rows, ROWS: tl.constexpr):
    """Log-prob and entropy of some rows from their folded statistics."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    m = tl.load(softmax + 2 * row, mask=here, other=0.0)
    l = tl.load(softmax + 2 * row + 1, mask=here, other=1.0)  # noqa: E741
    total = tl.log(l)
    tl.store(logprob + row, (tl.load(chosen + row, mask=here, other=0.0) - m) - total, mask=here)
    tl.store(entropy + row, total - tl.div_rn(tl.load(weighted + row, mask=here, other=0.0), l), mask=here)


@triton.jit(do_not_specialize=["rows"])
def slope_kernel(
    hidden, head, ids, softmax, upstream, slope, temperature, rows, words, depth, first_word,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """d log-prob / d logit, times the gradient of the log-prob, of ``words`` words from ``first_word`` on."""
    row = (tl.program_id(0) * ROWS).to(tl.int64) + tl.arange(0, ROWS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    row_here, column_here = row < rows, column < words
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    sums = product_tile(hidden, head, row, row_here, column, column_here, depth, depth, 1, sums, DEPTH, WHOLE)
    scaled = tl.div_rn(rounded(sums, hidden), tl.full((ROWS, COLUMNS), temperature, tl.float32))
    m = tl.load(softmax + 2 * row, mask=row_here, other=0.0)
    l = tl.load(softmax + 2 * row + 1, mask=row_here, other=1.0)  # noqa: E741
    up = tl.load(upstream + row, mask=row_here, other=0.0) / temperature
    word = tl.load(ids + row, mask=row_here, other=-1)
    value = tl.exp(scaled - m[:, None]) / l[:, None] * -up[:, None]
    value += tl.where((column + first_word)[None, :] == word[:, None], up[:, None], 0.0)
    at = slope + row[:, None] * words + column[None, :]
    tl.store(at, value.to(slope.dtype.element_ty), mask=row_here[:, None] & column_here[None, :])


@triton.jit
def draw_kernel(logits, temperature, uniform, softmax, token, chosen, words, WORDS: tl.constexpr):
    """One row's token: where the running sum of its probabilities passes the uniform number."""
    row = tl.program_id(0).to(tl.int64)
    divisor = tl.load(temperature + row)
    greedy = divisor == 0.0
    divisor = tl.where(greedy, 1.0, divisor)
    m = tl.load(softmax + 2 * row)
    column = tl.arange(0, WORDS)
    total = tl.zeros((), tl.float64)
    for first in range(0, words, WORDS):
        value = tl.load(logits + row * words + first + column, mask=first + column < words, other=float("-inf"))
        scaled = tl.div_rn(value.to(tl.float32), tl.full((WORDS,), divisor, tl.float32))
        total += tl.sum(tl.exp(scaled - m).to(tl.float64), 0)
    target = total * tl.load(uniform + row)
    before = tl.zeros((), tl.float64)
    found = words
    last = 0
    for first in range(0, words, WORDS):
        value = tl.load(logits + row * words + first + column, mask=first + column < words, other=float("-inf"))
        scaled = tl.div_rn(value.to(tl.float32), tl.full((WORDS,), divisor, tl.float32))
        p = tl.exp(scaled - m).to(tl.float64)
        drawn_here = (before + tl.cumsum(p, 0) > target) & (p > 0.0)
        hit = tl.where(greedy, scaled == m, drawn_here)
        found = tl.minimum(found, tl.min(tl.where(hit, first + column, words), 0))
        last = tl.maximum(last, tl.max(tl.where(p > 0.0, first + column, 0), 0))
        before += tl.sum(p, 0)
    # Rounding can leave the last sum at or below a target just under the total: then it is the last word that has a chance.
    drawn = tl.where(found < words, found, last)
    value = tl.load(logits + row * words + drawn).to(tl.float32)
    tl.store(token + row, drawn.to(tl.int64))
    tl.store(chosen + row, tl.div_rn(value, divisor))


def _steps(blocks: Blocks) -> int:
    return blocks.columns.bit_length() - 1


def _fold(parts: Tensor) -> tuple[Tensor, Tensor]:
    _, tiles, rows = parts.shape
    softmax_R2, weighted_R = parts.new_empty(rows, 2), parts.new_empty(rows)
    fold_kernel[(triton.cdiv(rows, FOLD_ROWS),)](
        parts, softmax_R2, weighted_R, rows, tiles, ROWS=FOLD_ROWS, TILES=FOLD_TILES, num_warps=4, **UNFUSED
    )
    return softmax_R2, weighted_R


def _answers(chosen_R: Tensor, softmax_R2: Tensor, weighted_R: Tensor) -> tuple[Tensor, Tensor]:
    logprob_R, entropy_R = torch.empty_like(chosen_R), torch.empty_like(chosen_R)
    rows, size = chosen_R.shape[0], 128
    answers_kernel[(triton.cdiv(rows, size),)](
        chosen_R, softmax_R2, weighted_R, logprob_R, entropy_R, rows, ROWS=size, num_warps=4, **UNFUSED
    )
    return logprob_R, entropy_R


def logprob(hidden_RH: Tensor, head_VH: Tensor, ids_R: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """See ``interface.Kernels.logprob``. An id outside the vocabulary gets NaN."""
    (rows, depth), words, blocks = hidden_RH.shape, head_VH.shape[0], BLOCKS[hidden_RH.dtype]
    tiles = triton.cdiv(words, blocks.columns)
    parts = hidden_RH.new_empty(3, tiles, rows, dtype=torch.float32)
    chosen_R = hidden_RH.new_full((rows,), torch.nan, dtype=torch.float32)
    softmax_of_hidden_kernel[(triton.cdiv(rows, blocks.rows), tiles)](
        hidden_RH, head_VH, ids_R, parts, chosen_R, temperature, rows, words, depth,
        ROWS=blocks.rows, COLUMNS=blocks.columns, DEPTH=blocks.depth, STEPS=_steps(blocks),
        WHOLE=depth % blocks.depth == 0, **blocks.options,
    )  # fmt: skip
    softmax_R2, weighted_R = _fold(parts)
    return *_answers(chosen_R, softmax_R2, weighted_R), softmax_R2


def logprob_gradient(
    dlogprob_R: Tensor,
    hidden_RH: Tensor,
    head_VH: Tensor,
    ids_R: Tensor,
    softmax_R2: Tensor,
    temperature: float,
    grains: Grains,
    into: ExactSum,
) -> tuple[Tensor, Tensor]:
    """(gradient of the hidden states, the largest magnitude of a partial); that of the head is added to ``into``."""
    (rows, depth), blocks = hidden_RH.shape, BLOCKS[hidden_RH.dtype]
    dhidden_RH = torch.zeros_like(hidden_RH, dtype=torch.float32)
    largest: list[Tensor] = []
    for first in range(0, head_VH.shape[0], WORDS):
        some_VH = head_VH[first : first + WORDS]
        words = some_VH.shape[0]
        slope_RV = hidden_RH.new_empty(rows, words)
        slope_kernel[(triton.cdiv(rows, blocks.rows), triton.cdiv(words, blocks.columns))](
            hidden_RH, some_VH, ids_R, softmax_R2, dlogprob_R, slope_RV, temperature, rows, words, depth, first,
            ROWS=blocks.rows, COLUMNS=blocks.columns, DEPTH=blocks.depth, WHOLE=depth % blocks.depth == 0,
            **blocks.options,
        )  # fmt: skip
        product(slope_RV, some_VH, transposed=True, add_to=dhidden_RH)
        total_VH = into.sum[first : first + WORDS]
        largest.append(weight_gradient(slope_RV, hidden_RH, grains, total_VH, into.big))
    return dhidden_RH.to(hidden_RH.dtype), torch.stack(largest).amax()


def draw(logits_RV: Tensor, temperature_R: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See ``interface.Kernels.draw``. Bound: the bytes of the logits, read three times."""
    (rows, words), blocks = logits_RV.shape, BLOCKS[logits_RV.dtype]
    tiles = triton.cdiv(words, blocks.columns)
    parts = logits_RV.new_empty(3, tiles, rows, dtype=torch.float32)
    softmax_of_logits_kernel[(triton.cdiv(rows, blocks.rows), tiles)](
        logits_RV, parts, temperature_R, rows, words,
        ROWS=blocks.rows, COLUMNS=blocks.columns, STEPS=_steps(blocks), **blocks.options,
    )  # fmt: skip
    softmax_R2, weighted_R = _fold(parts)
    token_R = torch.empty(rows, dtype=torch.int64, device=logits_RV.device)
    chosen_R = torch.empty(rows, dtype=torch.float32, device=logits_RV.device)
    draw_kernel[(rows,)](
        logits_RV, temperature_R, uniform_R, softmax_R2, token_R, chosen_R, words,
        WORDS=DRAW_WORDS, num_warps=4, **UNFUSED,
    )  # fmt: skip
    return token_R, *_answers(chosen_R, softmax_R2, weighted_R)
