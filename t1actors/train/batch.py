"""A training batch: trajectory records and rewards in trial-index order, and how a step divides them. No torch.

Guarantees: the order is the trials' index, whatever order they came in; every record passed ``tito.record.check``, so that a
missing routing row is refused here and never reaches a network as zeros; the digest covers records and rewards and nothing
else; minibatches and micro-batches are functions of (batch, seed, step, epoch, limits), the same on every machine.

Layout: the batch's T sampled tokens lie trial after trial, chunk after chunk, in position order. Every per-token stream
(values, log-probs, advantages) uses it.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import blake3
import numpy as np
import numpy.typing as npt

from t1actors.tito.record import ChunkArrays, Geometry, RecordError, TrajectoryRecord, check
from t1actors.tito.stored import digest as record_digest
from t1actors.train.errors import BatchError


@dataclass(frozen=True)
class BatchTrial:
    """One trial of a batch; its sampled tokens are [first, first + sampled) of the batch's."""

    record: TrajectoryRecord
    reward: float
    chunks: tuple[ChunkArrays, ...]
    first: int

    @property
    def trial(self) -> str:
        return self.record.trial

    @property
    def index(self) -> int:
        return self.record.index

    @cached_property
    def ids(self) -> int:
        return sum(len(chunk.ids_N) for chunk in self.chunks)

    @cached_property
    def sampled_per_chunk(self) -> tuple[int, ...]:
        return tuple(int(chunk.mask_N.sum()) for chunk in self.chunks)

    @property
    def sampled(self) -> int:
        return sum(self.sampled_per_chunk)


@dataclass(frozen=True)
class TokenPlace:
    """Where a sampled token is: id ``position`` of the trial's chunk number ``chunk``, sampled in turn ``turn`` of that
    chunk; all from 0."""

    trial: BatchTrial
    chunk: int
    position: int
    turn: int

    @property
    def id(self) -> int:
        """The token's id."""
        return int(self.trial.chunks[self.chunk].ids_N[self.position])


@dataclass(frozen=True)
class Batch:
    """Trials in index order. Build it with ``Batch.of``."""

    trials: tuple[BatchTrial, ...]
    geometry: Geometry

    @staticmethod
    def of(items: Iterable[tuple[TrajectoryRecord, float]], geometry: Geometry) -> Batch:
        """The batch of these records and rewards.

        Raises:
            BatchError: a record breaks a guarantee (names trial, chunk, position), two share an index, a reward is not
                finite, a temperature is not positive, or there is no trial at all.
        """
        ordered = sorted(items, key=lambda item: item[0].index)
        if not ordered:
            raise BatchError("a batch needs at least one trial")
        trials: list[BatchTrial] = []
        first = 0
        for record, reward in ordered:
            if trials and record.index == trials[-1].index:
                raise BatchError(f"trials {trials[-1].trial} and {record.trial} share the index {record.index}")
            if not np.isfinite(reward):
                raise BatchError(
                    f"trial {record.trial}: reward {reward}; an unmeasured trial does not belong in a batch"
                )
            if not record.temperature > 0:
                raise BatchError(
                    f"trial {record.trial}: temperature {record.temperature}; greedy trials are not trained on"
                )
            if record.temperature != ordered[0][0].temperature:
                raise BatchError(
                    f"trial {record.trial}: temperature {record.temperature}, but {ordered[0][0].trial} was sampled at "
                    f"{ordered[0][0].temperature}; a step has one temperature"
                )
            try:
                check(record, geometry)
            except RecordError as error:
                raise BatchError(str(error)) from error
            trial = BatchTrial(record, float(reward), tuple(chunk.arrays() for chunk in record.chunks), first)
            trials.append(trial)
            first += trial.sampled
        return Batch(tuple(trials), geometry)

    @property
    def items(self) -> tuple[tuple[TrajectoryRecord, float], ...]:
        """What the batch was made from: edit these and call ``Batch.of`` for a what-if."""
        return tuple((trial.record, trial.reward) for trial in self.trials)

    @cached_property
    def sampled(self) -> int:
        """T, the sampled tokens of all trials."""
        return sum(trial.sampled for trial in self.trials)

    @property
    def temperature(self) -> float:
        """What every token of the batch was sampled at."""
        return self.trials[0].record.temperature

    @cached_property
    def digest(self) -> str:
        return batch_digest((record_digest(t.record), t.reward) for t in self.trials)

    @cached_property
    def sampler_logprobs_T(self) -> npt.NDArray[np.float32]:
        """q of every sampled token, as the sampler recorded it."""
        return np.concatenate([c.logprobs_N[c.mask_N == 1] for t in self.trials for c in t.chunks])

    @cached_property
    def versions(self) -> tuple[str, ...]:
        """The behaviour versions of the sampled tokens, in order of first appearance."""
        spans = (span for t in self.trials for chunk in t.record.chunks for span in chunk.versions)
        return tuple(dict.fromkeys(span.version for span in spans))

    @cached_property
    def version_T(self) -> npt.NDArray[np.int64]:
        """For every sampled token, the place of its behaviour version in ``versions``."""
        place = {version: n for n, version in enumerate(self.versions)}
        spans = (span for t in self.trials for chunk in t.record.chunks for span in chunk.versions)
        return np.concatenate([np.full(span.end - span.start, place[span.version]) for span in spans])

    @property
    def chunk_rewards(self) -> list[float]:
        """The trial's raw reward for every chunk (T1 section 8: broadcast to every chunk)."""
        return [t.reward for t in self.trials for _ in t.chunks]

    @property
    def chunk_sampled(self) -> list[int]:
        return [count for t in self.trials for count in t.sampled_per_chunk]

    def trial_of_token(self, token: int) -> BatchTrial:
        """The trial that sampled token ``token`` of the batch belongs to."""
        return next(t for t in self.trials if t.first <= token < t.first + t.sampled)

    def place_of_token(self, token: int) -> TokenPlace:
        """Where token ``token`` of the batch's T is. Raises ``IndexError``."""
        if not 0 <= token < self.sampled:
            raise IndexError(f"token {token} of a batch with {self.sampled} sampled tokens")
        trial = self.trial_of_token(token)
        left = token - trial.first
        for number, (chunk, count) in enumerate(zip(trial.record.chunks, trial.sampled_per_chunk, strict=True)):
            if left < count:
                position = int(np.flatnonzero(trial.chunks[number].mask_N)[left])
                turn = next(n for n, (start, end) in enumerate(chunk.turns) if start <= position < end)
                return TokenPlace(trial, number, position, turn)
            left -= count
        raise AssertionError("a trial's chunks hold its sampled tokens")

    def without(self, *trials: str) -> Batch:
        """The batch with these trials left out: a what-if. Raises ``BatchError`` for a trial it does not have, and when
        none is left."""
        if odd := sorted(set(trials) - {t.trial for t in self.trials}):
            raise BatchError(
                f"the batch has no trial {', '.join(odd)}; it has {', '.join(t.trial for t in self.trials)}"
            )
        return Batch.of([(t.record, t.reward) for t in self.trials if t.trial not in trials], self.geometry)

    def tokens_of(self, places: Sequence[int]) -> npt.NDArray[np.int64]:
        """The sampled tokens of the trials at ``places``, in their order."""
        chosen = (self.trials[place] for place in places)
        return np.concatenate([np.arange(t.first, t.first + t.sampled) for t in chosen])


def batch_digest(items: Iterable[tuple[str, float]]) -> str:
    """The name of a batch: blake3 over (trajectory digest, reward as float64) in trial-index order."""
    node = blake3.blake3(b"t1actors batch 1\0")
    for trajectory_digest, reward in items:
        node.update(bytes.fromhex(trajectory_digest) + struct.pack("<d", reward))
    return node.hexdigest()


def minibatches(batch: Batch, count: int, *, seed: int, step: int, epoch: int, part: str) -> list[tuple[int, ...]]:
    """The places of the trials of each optimizer step: a seeded shuffle cut into ``count`` nearly equal parts, each in index
    order. The shuffle sorts by blake3, so it needs no random generator and never changes with a library."""

    def draw(place: int) -> bytes:
        return blake3.blake3(f"{seed}/{part}/{step}/{epoch}/{batch.trials[place].index}".encode()).digest()

    total = len(batch.trials)
    order = sorted(range(total), key=draw) if count > 1 else list(range(total))
    count = min(count, total)
    cuts = [total * n // count for n in range(count + 1)]
    return [tuple(sorted(order[a:b])) for a, b in itertools.pairwise(cuts)]


def micro_batches(batch: Batch, places: Sequence[int], limit_ids: int) -> list[tuple[int, ...]]:
    """``places`` cut, in order, so that each part holds at most ``limit_ids`` ids; a longer trial stands alone."""
    parts: list[list[int]] = []
    held = 0
    for place in places:
        ids = batch.trials[place].ids
        if not parts or held + ids > limit_ids:
            parts.append([])
            held = 0
        parts[-1].append(place)
        held += ids
    return [tuple(part) for part in parts]
