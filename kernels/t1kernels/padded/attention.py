"""Causal attention over pages of keys and values: an online softmax folded over 64-key blocks from left to right.

Forward: queries go in tiles of 16 rows of one sequence, filled up with copies. A block that a row sees nothing of changes
its state by exactly times 1 and plus 0, so a row of a prefill tile and the same row in decode have the same bits.
Backward: tiles of 64 rows; a tile's partials of dK and dV are added on an exact grid. Keys of a page that no row of the
tile may see are never used: they may never have been written.

Shapes: T tiles, M = rows of a tile times the Q / G query heads that share a key head, P pages, C = 64 keys of a page;
otherwise as in ``interface``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from t1kernels.exact import ExactSum, refuse_inexact
from t1kernels.interface import PAGE
from t1kernels.padded.arithmetic import decay, exponential, folded, on_grid
from t1kernels.padded.products import ROWS

AT_ONCE = 1 << 19
"""Scores held at a time."""
GRID_BITS = 48


@dataclass(frozen=True)
class _Tiles:
    """Tiles of S rows of one sequence each: ``row`` (T, S) the row in each place, ``absent`` (T, S) where there is none and
    another row of the tile fills it up."""

    row: Tensor
    absent: Tensor

    @staticmethod
    def of_runs(sequence_N: Tensor) -> _Tiles:
        """Runs of rows of the same sequence, cut into tiles of 16."""
        count = torch.arange(sequence_N.shape[0])
        begins = torch.ones(sequence_N.shape[0], dtype=torch.bool)
        begins[1:] = sequence_N[1:] != sequence_N[:-1]
        within = count - (count * begins).cummax(0).values
        tile, place = (within % ROWS == 0).cumsum(0) - 1, within % ROWS
        row = count[place == 0][:, None].repeat(1, ROWS)
        row[tile, place] = count
        absent = torch.ones_like(row, dtype=torch.bool)
        absent[tile, place] = False
        return _Tiles(row, absent)

    def heads(self, x_NQD: Tensor, groups: int) -> Tensor:
        """The rows of each tile by key head, float32 (T, G, M, D)."""
        count, size = self.row.shape
        x = x_NQD.detach()[self.row].float().view(count, size, groups, -1, x_NQD.shape[2])
        return x.transpose(1, 2).reshape(count, groups, -1, x_NQD.shape[2])

    def rows(self, x_TGMD: Tensor, rows: int) -> Tensor:
        """The inverse of ``heads`` (N, Q, D); zeros for rows in no tile."""
        count, groups, _, width = x_TGMD.shape
        x = x_TGMD.view(count, groups, self.row.shape[1], -1, width).transpose(1, 2).flatten(2, 3)
        found = x.new_zeros(rows, *x.shape[2:])
        found[self.row[~self.absent]] = x[~self.absent]
        return found


def _bmm(a_TGMK: Tensor, b_TGKN: Tensor) -> Tensor:
    return torch.bmm(a_TGMK.flatten(0, 1), b_TGKN.flatten(0, 1)).unflatten(0, a_TGMK.shape[:2])


def store(
    keys_PGDC: Tensor, values_PGCD: Tensor, key_NGD: Tensor, value_NGD: Tensor, first_N: Tensor, position_N: Tensor
) -> None:
    """See ``interface.Kernels.store``."""
    page, place = first_N + position_N // PAGE, position_N % PAGE
    keys_PGDC[page, :, :, place] = key_NGD.detach().float()
    values_PGCD[page, :, place] = value_NGD.detach().float()


def attend(
    query_NQD: Tensor, keys_PGDC: Tensor, values_PGCD: Tensor, first_N: Tensor, position_N: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """See ``interface.Kernels.attend``."""
    groups = keys_PGDC.shape[1]
    cut = _Tiles.of_runs(first_N)
    position_TM = position_N[cut.row].repeat_interleave(query_NQD.shape[1] // groups, dim=1)
    last_T = position_TM.amax(1)
    order = last_T.argsort(descending=True)  # so that the tiles with a block b left come first
    query = cut.heads(query_NQD, groups)
    out, softmax = torch.empty_like(query), query.new_empty(*query.shape[:3], 2)
    at_once = max(1, AT_ONCE // (query.shape[1] * query.shape[2] * PAGE))
    for some in order.split(at_once):
        first_T = first_N[cut.row[some, 0]]
        out[some], softmax[some] = _attend(
            query[some], keys_PGDC, values_PGCD, first_T, position_TM[some], last_T[some], scale
        )
    rows = query_NQD.shape[0]
    return cut.rows(out, rows).to(query_NQD.dtype), cut.rows(softmax, rows)


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, first_T: Tensor, position_TM: Tensor, last_T: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Of tiles in falling order of their last position: (attended, (highest score, sum of exponentials))."""
    highest, total = query.new_full(query.shape[:3], -math.inf), query.new_zeros(query.shape[:3])
    width, rest = query.shape[3], -query.shape[3] % ROWS  # columns of a product: see products
    out = query.new_zeros(*query.shape[:3], width + rest)
    for block in range(int(last_T[0]) // PAGE + 1):
        count = int((last_T >= block * PAGE).sum())
        key_C = torch.arange(block * PAGE, (block + 1) * PAGE)
        unseen_TC = key_C > last_T[:count, None]
        hidden = (key_C > position_TM[:count, :, None])[:, None]
        k = keys[first_T[:count] + block].masked_fill_(unseen_TC[:, None, None, :], 0.0)
        v = values[first_T[:count] + block].masked_fill_(unseen_TC[:, None, :, None], 0.0)
        scores = _bmm(query[:count], k).mul_(scale).masked_fill_(hidden, -math.inf)
        before = highest[:count]
        now = torch.maximum(before, scores.amax(-1))
        weights, kept = exponential(scores - now[..., None]), decay(before, now)
        total[:count] = total[:count] * kept + folded(weights)
        out[:count] = out[:count] * kept[..., None] + _bmm(weights, functional.pad(v, (0, rest)))
        highest[:count] = now
    return out[..., :width] / total[..., None], torch.stack((highest, total), dim=-1)


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
    if not length_S.numel():
        return torch.zeros_like(query_NQD), torch.zeros_like(key_NGD), torch.zeros_like(value_NGD)
    groups, share = key_NGD.shape[1], query_NQD.shape[1] // key_NGD.shape[1]
    pages_S = (length_S + PAGE - 1) // PAGE
    sequence_T = torch.repeat_interleave(torch.arange(length_S.shape[0]), pages_S)
    first_T = (pages_S.cumsum(0) - pages_S)[sequence_T]
    number_T = torch.arange(first_T.shape[0]) - first_T
    position_TC = number_T[:, None] * PAGE + torch.arange(PAGE)
    last_T = length_S[sequence_T] - 1
    cut = _Tiles(
        start_S[sequence_T][:, None] + torch.minimum(position_TC, last_T[:, None]), position_TC > last_T[:, None]
    )
    query, dout, out = (cut.heads(x, groups) for x in (query_NQD, dout_NQD, out_NQD))
    softmax = cut.heads(softmax_NQ2, groups)
    unused = cut.absent[:, None, :, None]
    key, value = (cut.heads(x, groups).masked_fill_(unused, 0.0) for x in (key_NGD, value_NGD))
    blank_TM = cut.absent.repeat_interleave(share, dim=1)
    at_TM = position_TC.repeat_interleave(share, dim=1).masked_fill_(blank_TM, -1)  # such a row sees nothing
    mean = folded(dout * out)
    dquery = torch.empty_like(query)
    dkey, dvalue = (torch.zeros_like(x, dtype=torch.float64) for x in (key, value))
    exact = ExactSum("keys and values", (), bits=GRID_BITS)
    largest_S, at_once = torch.zeros(length_S.shape[0]), max(1, AT_ONCE // (query.shape[1] * query.shape[2] * PAGE))
    for some in number_T.argsort(descending=True).split(at_once):
        number, first, to_query = number_T[some], first_T[some], torch.zeros_like(query[some])
        q, do, m = query[some], dout[some], mean[some][..., None]
        high, total = softmax[some].split(1, dim=-1)
        for block in range(int(number[0]) + 1):
            n = int((number >= block).sum())
            page = first[:n] + block
            k, v = key[page], value[page]
            hidden = (torch.arange(block * PAGE, (block + 1) * PAGE) > at_TM[some][:n, :, None])[:, None]
            scores = _bmm(q[:n], k.transpose(2, 3)).mul_(scale).sub_(high[:n])
            weights = (exponential(scores) / total[:n]).masked_fill_(hidden, 0.0)
            slopes = (_bmm(do[:n], v.transpose(2, 3)) - m[:n]).mul_(weights).mul_(scale).masked_fill_(hidden, 0.0)
            to_query[:n] += _bmm(slopes, k)
            for sums, partial in (
                (dkey, _bmm(slopes.transpose(2, 3), q[:n])),
                (dvalue, _bmm(weights.transpose(2, 3), do[:n])),
            ):
                largest_S.scatter_reduce_(0, sequence_T[some][:n], partial.abs().amax((1, 2, 3)), "amax")
                sums.index_add_(0, page, on_grid(partial, exact.big))
        dquery[some] = to_query
    rows, dtype = query_NQD.shape[0], query_NQD.dtype
    found = tuple(cut.rows(x.float(), rows) for x in (dquery, dkey, dvalue))
    refuse_inexact(exact, largest_S, pages_S, start_S, length_S, found[1:])
    return tuple(x.to(dtype) for x in found)  # type: ignore[return-value]
