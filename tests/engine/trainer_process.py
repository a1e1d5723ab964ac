"""The trainer of ``test_zero_gap``, a process of its own: log-probs of what an engine sampled, from ids, routing and weights.

    python -m tests.engine.trainer_process FOLDER

FOLDER holds ``model/`` (a Hugging Face folder) and, for each dtype, an ``.npz`` with ids, mask and routing of the sequences,
one after another, and their lengths. No log-prob of the sampler is there. Writes ``logprobs.npz``: an array for each case.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from t1actors.config import TrainConfig
from t1actors.models.policy import Policy
from t1actors.models.pretrained import load_policy
from t1actors.tito.record import TokenSpan, TrajectoryRecord, chunk_of
from t1actors.train.actor_step import logprobs
from t1actors.train.batch import Batch
from t1actors.train.exactness import exact
from t1actors.train.networks import geometry_of
from t1actors.train.packing import pack
from tests.kernels.planted import Planted

DTYPES: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
PACKINGS = {"one by one": 1, "in fives": 5, "all at once": 1_000}
PLANTED = ("matmul", "attend", "logprob")
"""Kernels that are off by one unit in the last place, in the first number of each result; each in a case of its own."""


def batch_of(sampled: dict[str, np.ndarray], policy: Policy, temperature: float) -> Batch:
    """The sequences as trials whose sampler's log-probs nobody knows (they are 0)."""
    ends = np.cumsum(sampled["lengths"])
    items: list[tuple[TrajectoryRecord, float]] = []
    for index, (start, end) in enumerate(pairwise([0, *ends.tolist()])):
        mask_N = sampled["mask"][start:end]
        edges = np.flatnonzero(np.diff(mask_N, prepend=0, append=0)).reshape(-1, 2).tolist()
        turns = tuple((a, b) for a, b in edges)
        chunk = chunk_of(
            ids_N=sampled["ids"][start:end],
            mask_N=mask_N,
            logprobs_N=np.zeros(end - start, dtype=np.float32),
            routing_RLK=sampled["routing"][start - index : end - index - 1],
            versions=tuple(TokenSpan(version="v", start=a, end=b) for a, b in turns),
            turns=turns,
            geometry=geometry_of(policy),
        )
        record = TrajectoryRecord(trial=f"t{index}", index=index, task="", temperature=temperature, chunks=(chunk,))
        items.append((record, 0.0))
    return Batch.of(items, geometry_of(policy))


def packed(policy: Policy, batch: Batch, parts: Sequence[Sequence[int]], config: TrainConfig) -> np.ndarray:
    """Log-probs of the batch's tokens as a training step makes them: packed, with gradients."""
    found_T = np.full(batch.sampled, np.nan, dtype=np.float32)
    with exact():
        for part in parts:
            micro = pack(batch, part)
            found_n, _ = logprobs(policy, micro, batch, config, policy.gradients())
            assert found_n.requires_grad
            found_T[micro.tokens_n] = found_n.detach().numpy()
    return found_T


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    cases: dict[str, np.ndarray] = {}
    replayed = TrainConfig()
    for dtype in DTYPES:
        with np.load(folder / f"{dtype}.npz") as stored:
            sampled = dict(stored)
        policy = load_policy(folder / "model", dtype=dtype)
        batch = batch_of(sampled, policy, float(sampled["temperature"]))
        order = np.random.default_rng(0).permutation(len(batch.trials)).tolist()
        for name, size in PACKINGS.items():
            parts = [order[i : i + size] for i in range(0, len(order), size)]
            cases[f"{dtype}, {name}"] = packed(policy, batch, parts, replayed)
        cases[f"{dtype}, free"] = packed(policy, batch, [order], replace(replayed, replay_routing=False))
        for operation in PLANTED:
            faulty = Policy(policy.hf, Planted(policy.kernels, operation))
            cases[f"{dtype}, {operation}"] = packed(faulty, batch, [order], replayed)
    np.savez(folder / "logprobs.npz", **cases)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
