"""Log-probabilities of chosen tokens, tile by tile over the vocabulary: never a whole row of logits, in either direction.

A row's softmax is folded over tiles of 256 words from left to right; so the sampler, which has a row's logits, and the
trainer, which has a row's hidden state, come to the same bits (``products`` makes logits in the same tiles).

Shapes: T tiles of 16 rows, V words of a tile of the vocabulary; otherwise as in ``interface``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from t1kernels.exact import ExactSum
from t1kernels.interface import Grains, Weight
from t1kernels.padded.arithmetic import decay, exponential, folded, logarithm
from t1kernels.padded.products import COLUMNS, greater, matrices, product, rows_of, tiles, weight_partials

AT_ONCE_ROWS = 1024
LEAST = -104.0
"""e to this is 0 in float32."""


@dataclass
class _Softmax:
    """Of each row: the highest scaled logit so far, the sum of e^(s - highest), and of e^(s - highest) (s - highest)."""

    highest: Tensor
    total: Tensor
    weighted: Tensor

    @staticmethod
    def of(rows: int) -> _Softmax:
        return _Softmax(torch.full((rows,), -math.inf), torch.zeros(rows), torch.zeros(rows))

    def fold(self, scaled_RV: Tensor) -> None:
        """Take in a tile."""
        now = torch.maximum(self.highest, scaled_RV.amax(-1))
        shifted = scaled_RV - now.masked_fill(now == -math.inf, 0.0)[:, None]
        p, kept = exponential(shifted), decay(self.highest, now)
        fallen = (self.highest - now).masked_fill_(self.total == 0.0, 0.0)
        self.weighted = kept * (self.weighted + fallen * self.total) + folded(p * shifted.clamp_(min=LEAST))
        self.total = kept * self.total + folded(p)
        self.highest = now

    def answers(self, chosen_R: Tensor) -> tuple[Tensor, Tensor]:
        """(log-prob of the words with these scaled logits, entropy)."""
        total = logarithm(self.total)
        return (chosen_R - self.highest) - total, total - self.weighted / self.total


def _scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    return logits.float() / temperature


def _tiles_of_logits(hidden_RH: Tensor, head: Weight, temperature: float) -> Iterator[tuple[int, Tensor]]:
    """(first word, scaled logits) of each tile, with the bits of ``matmul``'s logits over the temperature."""
    hidden, divisor = tiles(hidden_RH), torch.tensor(temperature, dtype=torch.float32)
    for first, words_VH in zip(range(0, head.tensor.shape[0], COLUMNS), matrices(head).split(COLUMNS), strict=True):
        words = min(COLUMNS, head.tensor.shape[0] - first)
        logits_RV = rows_of(product(hidden, words_VH.t()), hidden_RH.shape[0], words).to(hidden_RH.dtype)
        yield first, _scaled(logits_RV, divisor)


def logprob(hidden_RH: Tensor, head: Weight, ids_R: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """See ``interface.Kernels.logprob``."""
    parts = [
        _logprob(hidden, head, ids, temperature)
        for hidden, ids in zip(hidden_RH.split(AT_ONCE_ROWS), ids_R.split(AT_ONCE_ROWS), strict=True)
    ]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))  # type: ignore[return-value]


def _logprob(hidden_RH: Tensor, head: Weight, ids_R: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    rows = hidden_RH.shape[0]
    softmax, chosen = _Softmax.of(rows), torch.zeros(rows)
    for first, scaled_RV in _tiles_of_logits(hidden_RH, head, temperature):
        at = ids_R - first
        here = (at >= 0) & (at < scaled_RV.shape[1])
        found = scaled_RV.gather(1, at.clamp(0, scaled_RV.shape[1] - 1)[:, None])[:, 0]
        chosen = torch.where(here, found, chosen)
        softmax.fold(scaled_RV)
    return *softmax.answers(chosen), torch.stack((softmax.highest, softmax.total), dim=-1)


def logprob_gradient(
    dlogprob_R: Tensor,
    hidden_RH: Tensor,
    head: Weight,
    ids_R: Tensor,
    saved_R2: Tensor,
    temperature: float,
    grains: Grains,
    into: ExactSum,
) -> Tensor:
    """See ``interface.Kernels.logprob_gradient``."""
    rows, width = hidden_RH.shape
    dtype = hidden_RH.dtype
    dhidden = torch.zeros_like(tiles(hidden_RH))
    up = dlogprob_R.detach().float() / torch.tensor(temperature, dtype=torch.float32)
    highest, total = saved_R2.split(1, dim=-1)
    largest = 0.0
    for first, scaled_RV in _tiles_of_logits(hidden_RH, head, temperature):
        slope_RV = exponential(scaled_RV - highest).div_(total).mul_(-up[:, None])
        at = ids_R - first
        here = ((at >= 0) & (at < scaled_RV.shape[1])).nonzero()[:, 0]
        slope_RV[here, at[here]] += up[here]
        slope_RV = slope_RV.to(dtype).float()
        dhidden += product(tiles(slope_RV), matrices(head)[first : first + COLUMNS])
        sum_VH = into.sum[first : first + COLUMNS]
        largest = greater(largest, weight_partials(slope_RV, hidden_RH, grains, sum_VH[None], into.big))
    into.note(largest, len(grains))
    return rows_of(dhidden, rows, width).to(dtype).contiguous()


def draw(logits_RV: Tensor, temperature_R: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See ``interface.Kernels.draw``."""
    greedy = temperature_R == 0.0
    divisor = temperature_R.float().masked_fill(greedy, 1.0)[:, None]
    scaled_RV = _scaled(logits_RV.detach(), divisor)
    softmax = _Softmax.of(scaled_RV.shape[0])
    for tile_RV in scaled_RV.split(COLUMNS, dim=1):
        softmax.fold(tile_RV)
    cumulative = exponential(scaled_RV - softmax.highest[:, None]).double().cumsum(-1)
    total = cumulative[:, -1]
    below = torch.minimum(total * uniform_R, total.nextafter(torch.zeros_like(total)))
    drawn = (cumulative <= below[:, None]).sum(-1)
    token = torch.where(greedy, scaled_RV.argmax(-1), drawn.clamp(max=scaled_RV.shape[1] - 1))
    return token, *softmax.answers(scaled_RV.gather(1, token[:, None])[:, 0])
