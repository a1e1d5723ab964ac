"""How the rows of a packed slab are cut into grains, so that a weight's gradient does not depend on the packing. It is made
in the host's memory, wherever the slab lies.

A grain is a function of its sequence alone: 64 consecutive positions from a multiple of 64 on (dense weights), or
1,024 positions of one expert (expert weights). Which sequences share a slab, in which order, and which process has
them, changes no grain.

Shapes: N rows, R rows of pairs (row, expert) or rows that are wanted, G grains, S sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from t1kernels.interface import PAGE, Grains
from torch import Tensor

EXPERT_PAGE = 1024
"""Positions of a grain of an expert's gradient. Part of what a step's bytes mean: never change it."""


@dataclass(frozen=True)
class Cut:
    """For each row the number of its 64-row block and of its 1,024-row page; numbers rise with the rows and belong to
    one sequence."""

    block_N: Tensor
    page_N: Tensor

    @staticmethod
    def of(lengths: Sequence[int]) -> Cut:
        """Sequences from position 0, one after another."""
        return Cut(_numbered(lengths, PAGE), _numbered(lengths, EXPERT_PAGE))

    def rows(self, chosen_R: Tensor) -> Cut:
        """The cut of some of the rows, in rising order."""
        chosen_R = chosen_R.cpu()
        return Cut(self.block_N.index_select(0, chosen_R), self.page_N.index_select(0, chosen_R))

    def dense(self, parts: int = 1) -> Grains:
        """Grains of a dense weight; ``parts``: how many rows of the operation each row of the slab stands for (its
        heads)."""
        start, end = _runs(self.block_N)
        return Grains(start * parts, end * parts, torch.zeros_like(start))

    def experts(self, offset_E: Tensor, token_R: Tensor) -> Grains:
        """Grains of expert weights: pairs sorted by expert, then row, cut where the expert or the page changes."""
        counts_E, token_R = offset_E.cpu().diff(), token_R.cpu()
        expert_R = torch.repeat_interleave(torch.arange(counts_E.shape[0], device="cpu"), counts_E)
        pages = int(self.page_N[-1]) + 1 if self.page_N.numel() else 1
        start, end = _runs(expert_R * pages + self.page_N.index_select(0, token_R))
        return Grains(start, end, expert_R.index_select(0, start))


def _numbered(lengths: Sequence[int], size: int) -> Tensor:
    counts = np.array(lengths, dtype=np.int64)
    blocks = -(-counts // size)
    first = np.cumsum(blocks) - blocks
    position = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return torch.from_numpy(np.repeat(first, counts) + position // size)


def _runs(keys_R: Tensor) -> tuple[Tensor, Tensor]:
    """(first, past the last) of each run of equal keys."""
    keys = keys_R.numpy()
    borders = np.flatnonzero(np.diff(keys)) + 1
    start = np.concatenate([np.zeros(min(1, len(keys)), dtype=np.int64), borders])
    end = np.concatenate([borders, np.full(min(1, len(keys)), len(keys), dtype=np.int64)])
    return torch.from_numpy(start), torch.from_numpy(end)
