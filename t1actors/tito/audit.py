"""Every boundary of a record, re-checked against the turns it was made from.

Guarantees: an accepted record holds, for every turn, exactly what the engine was given (T_i extended by the turn's
context) and exactly what it sampled, with its log-probs, at the place where the mask says so. The check is written from
the turns' side, apart from the stitcher: it never computes an offset that the stitcher computed, it walks the record
with the turns.

Drift in the loss region is |{j in D u P : m_j = 1}|, D = retokenised positions, P = placeholders (T1 section 3).
Records made from ids have neither, so any difference here is a broken record, and an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from t1actors.events import Boundary
from t1actors.tito.record import ChunkArrays, Ids, Logprobs, Mask, TitoError, TrajectoryRecord


class AuditError(TitoError):
    """A record disagrees with the turns it was made from. Says which trial, turn and token."""


class SampledTurn(Protocol):
    """What the audit reads of a turn: a ``stitch.Turn``, or a ``TurnSampled`` event."""

    @property
    def context_ids(self) -> Sequence[int]:
        """What the call added before sampling."""
        ...

    @property
    def sampled_ids(self) -> Sequence[int]:
        """What the model added."""
        ...

    @property
    def logprobs(self) -> Collection[float]:
        """One a sampled id."""
        ...


@dataclass(frozen=True)
class Audit:
    """What an accepted record amounts to: how its turns join (from the second on), and counts of tokens."""

    boundaries: tuple[Boundary, ...]
    sampled: int
    drift_in_loss: int


@dataclass(frozen=True)
class _Token:
    id: int
    sampled: bool
    logprob: float
    turn: int


def audit(record: TrajectoryRecord, turns: Sequence[SampledTurn]) -> Audit:
    """The boundaries of ``record``, all STRICT, or ``AuditError`` at the first token that differs."""
    expected = list(_walk(turns))
    actual = [
        (int(token), bool(m), float(q))
        for chunk in record.chunks
        for token, m, q in zip(*(stream.tolist() for stream in _streams(chunk.arrays())), strict=True)
    ]
    if len(actual) != len(expected):
        raise AuditError(f"trial {record.trial}: {len(actual)} ids recorded where the turns have {len(expected)}")
    for position, (want, (token, m, q)) in enumerate(zip(expected, actual, strict=True)):
        if (token, m) != (want.id, want.sampled) or q != want.logprob:
            raise AuditError(
                f"trial {record.trial}, turn {want.turn}, token {position}: the record has id {token}, m {int(m)}, q {q}; "
                f"the turn has id {want.id}, m {int(want.sampled)}, q {want.logprob}"
            )
    return Audit(
        boundaries=tuple(Boundary(turn=number, case="STRICT") for number in range(1, len(turns))),
        sampled=sum(token.sampled for token in expected),
        drift_in_loss=0,
    )


def _streams(arrays: ChunkArrays) -> tuple[Ids, Mask, Logprobs]:
    return arrays.ids_N, arrays.mask_N, arrays.logprobs_N


def _walk(turns: Sequence[SampledTurn]) -> Iterator[_Token]:
    for number, turn in enumerate(turns):
        for token in turn.context_ids:
            yield _Token(token, False, 0.0, number)
        for token, logprob in zip(turn.sampled_ids, turn.logprobs, strict=True):
            # Records hold float32; an event's value is a float32 widened for MessagePack, so this loses nothing.
            yield _Token(token, True, float(np.float32(logprob)), number)
