"""Drawing tokens with numbers that belong to (seed, position), not to the batch.

Guarantees: the draw of a row depends on its logits, its temperature and (seed, position) only; log-prob and entropy
are of the very distribution drawn from; a token of probability zero is never drawn.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Uint64Array = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: Uint64Array) -> Uint64Array:
    """The finaliser of splitmix64: a bijection in which every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seeds_B: Uint64Array, positions_B: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """One number in [0, 1 - 2^-52] for each (seed, position)."""
    mixed_B = _mix(_mix(seeds_B + _GOLDEN) + (positions_B.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (mixed_B >> np.uint64(12)).astype(np.float64) * 2.0**-52


@dataclass(frozen=True)
class Drawn:
    """One drawn id a row, with its log-prob and the entropy of what it was drawn from."""

    tokens_B: npt.NDArray[np.int64]
    logprobs_B: npt.NDArray[np.float32]
    entropies_B: npt.NDArray[np.float64]


def draw(logits_BV: Tensor, temperatures_B: npt.NDArray[np.float32], uniforms_B: npt.NDArray[np.float64]) -> Drawn:
    """Draw one token a row by inverting the cumulative distribution; temperature 0 takes the argmax.

    For a greedy row log-prob and entropy are those of temperature 1 (the distribution drawn from would be a point).
    """
    greedy_B = temperatures_B == 0
    scaled_BV = logits_BV.float()
    if not bool((temperatures_B == 1).all()):
        scaled_BV = scaled_BV / torch.from_numpy(np.where(greedy_B, np.float32(1), temperatures_B))[:, None]
    highest_B1 = scaled_BV.amax(dim=-1, keepdim=True)
    masses_BV = torch.exp(scaled_BV - highest_B1)
    cumulative_BV = masses_BV.cumsum(dim=-1, dtype=torch.float64)
    total_B1 = cumulative_BV[:, -1:]
    # 52 bits: the target is at least one unit in the last place below the total, so no index is past the end.
    target_B1 = total_B1 * torch.from_numpy(uniforms_B)[:, None]
    tokens_B1 = torch.searchsorted(cumulative_BV, target_B1, right=True)
    if bool(greedy_B.any()):
        tokens_B1 = torch.where(torch.from_numpy(greedy_B)[:, None], scaled_BV.argmax(dim=-1, keepdim=True), tokens_B1)
    normaliser_B1 = highest_B1.double() + total_B1.log()
    logprobs_B1 = scaled_BV.gather(-1, tokens_B1).double() - normaliser_B1
    mean_logit_B1 = (masses_BV * scaled_BV).sum(dim=-1, keepdim=True).double() / total_B1
    return Drawn(
        tokens_B=tokens_B1[:, 0].numpy(),
        logprobs_B=logprobs_B1[:, 0].float().numpy(),
        entropies_B=(normaliser_B1 - mean_logit_B1)[:, 0].numpy(),
    )
