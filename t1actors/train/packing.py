"""Micro-batches as tensors: chunks one after another, each without its last id, which predicts nothing.

Guarantees: row r of a slab is predicting row j of one chunk; ids, sampled rows, targets and routing rows are cut from the
chunk's streams by the same offsets, so a slab has exactly the recording's rows.

Shapes: R rows (over chunks, N - 1 each), L mixture-of-experts layers, K experts per token, n sampled tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from t1actors.train.batch import Batch


@dataclass(frozen=True)
class MicroBatch:
    """``rows_n`` predict the sampled tokens ``targets_n``; ``tokens_n`` are their places among the batch's T."""

    ids_R: torch.Tensor
    lengths: tuple[int, ...]
    routing_RLK: torch.Tensor
    rows_n: torch.Tensor
    targets_n: torch.Tensor
    tokens_n: npt.NDArray[np.int64]


def pack(batch: Batch, places: Sequence[int]) -> MicroBatch:
    """The trials at ``places``, in that order."""
    chunks = [chunk for place in places for chunk in batch.trials[place].chunks]
    lengths = tuple(len(chunk.ids_N) - 1 for chunk in chunks)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    rows = [start + np.flatnonzero(chunk.mask_N[1:]) for start, chunk in zip(starts[:-1], chunks, strict=True)]
    targets = [chunk.ids_N[chunk.mask_N == 1] for chunk in chunks]
    return MicroBatch(
        ids_R=torch.from_numpy(np.concatenate([chunk.ids_N[:-1] for chunk in chunks]).astype(np.int64)),
        lengths=lengths,
        routing_RLK=torch.from_numpy(np.concatenate([chunk.routing_RLK for chunk in chunks]).astype(np.int64)),
        rows_n=torch.from_numpy(np.concatenate(rows).astype(np.int64)),
        targets_n=torch.from_numpy(np.concatenate(targets).astype(np.int64)),
        tokens_n=batch.tokens_of(places),
    )
