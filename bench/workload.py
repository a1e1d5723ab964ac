"""What the benchmarks work on: the shipped policy, and the shipped demonstrations as episodes and as trajectories.

An episode is what a trial asks of an engine: contexts that come from outside, and how many tokens are sampled after each.
A trajectory is the same stream as a trainer gets it: its log-probs and its routing are the shipped policy's own. Real
lengths, real text, and no sandbox is needed to have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from t1actors.harness.native import NativeHarness
from t1actors.models.folder import model_folder
from t1actors.models.policy import Policy
from t1actors.models.tokenizer import Tokenizer
from t1actors.tasks.demos import Demonstration, read_demonstrations
from t1actors.tito.record import Geometry, TokenSpan, TrajectoryRecord, chunk_of
from t1actors.train.batch import Batch
from t1actors.train.networks import geometry_of
from t1actors.train.warmstart import example_of, shipped_corpus

FOLDER = model_folder("builtin:demo")
REWARD_SCALE = 20


@dataclass(frozen=True)
class Turn:
    context: tuple[int, ...]
    sampled: int


@dataclass(frozen=True)
class Episode:
    turns: tuple[Turn, ...]

    @property
    def sampled(self) -> int:
        return sum(turn.sampled for turn in self.turns)


def demonstrations(count: int) -> list[Demonstration]:
    """The first ``count`` that are shipped."""
    return list(islice(read_demonstrations(shipped_corpus()), count))


def episodes(count: int) -> list[Episode]:
    tokenizer = Tokenizer.from_folder(FOLDER)
    harness = NativeHarness(tokenizer)

    def episode(shown: Demonstration) -> Episode:
        contexts = [harness.opening(shown.instruction), *(harness.observation(text) for text in shown.observations)]
        return Episode(
            tuple(
                Turn(context, len(tokenizer.encode(command)) + 1)
                for context, command in zip(contexts, shown.commands, strict=True)
            )
        )

    return [episode(shown) for shown in demonstrations(count)]


def batch(policy: Policy, version: str, count: int) -> Batch:
    """``count`` trajectories that ``version`` sampled."""
    tokenizer = Tokenizer.from_folder(FOLDER)
    harness = NativeHarness(tokenizer)
    geometry = geometry_of(policy)
    items: list[tuple[TrajectoryRecord, float]] = []
    for index, shown in enumerate(demonstrations(count)):
        example = example_of(shown, harness, tokenizer)
        record = _record(policy, geometry, version, index, shown.task, example.ids, example.sampled)
        items.append((record, shown.passed / REWARD_SCALE))
    return Batch.of(items, geometry)


def _record(
    policy: Policy,
    geometry: Geometry,
    version: str,
    index: int,
    task: str,
    ids: Sequence[int],
    sampled: Sequence[bool],
) -> TrajectoryRecord:
    ids_N, mask_N = np.array(ids, dtype=np.int32), np.array(sampled, dtype=np.uint8)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask_N, [0]])))
    turns = tuple((int(start), int(end)) for start, end in edges.reshape(-1, 2))
    with torch.inference_mode():
        forwarded = policy.forward_packed(torch.from_numpy(ids_N[:-1].astype(np.int64)), (len(ids_N) - 1,))
        logprobs_R, _ = policy.logprobs(
            forwarded.hidden_NH, torch.from_numpy(ids_N[1:].astype(np.int64)), temperature=1.0
        )
    logprobs_N = np.concatenate([[np.float32(0)], logprobs_R.numpy()])
    chunk = chunk_of(
        ids_N=ids_N,
        mask_N=mask_N,
        logprobs_N=np.where(mask_N == 1, logprobs_N, np.float32(0)),
        routing_RLK=forwarded.routing_NLK.numpy(),
        versions=tuple(TokenSpan(version=version, start=start, end=end) for start, end in turns),
        turns=turns,
        geometry=geometry,
    )
    return TrajectoryRecord(trial=f"s0.t{index}", index=index, task=task, temperature=1.0, chunks=(chunk,))
