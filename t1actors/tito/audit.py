"""Every token and every row of a record, re-checked against the turns it was made from.

Guarantees: an accepted record holds, for every turn on every path, exactly what the engine was given (T_i extended by the
turn's context) and exactly what it sampled; its log-probs at the place where the mask says that it is trained, which is one
place in the whole record; and the routing rows that the turns brought, one after the other, up to the row of the last id but
one. The check is written from the turns' side, apart from the stitcher: it never computes an offset that the stitcher
computed, it reads the record's streams once from their beginning, as much as each turn says.

Drift in the loss region is |{j in D u P : m_j = 1}|, D = retokenised positions, P = placeholders (T1 section 3).
What a turn sampled enters as ids, so there is neither: any difference here is a broken record, and an error. How the turns of
whole prompts were joined is proven by ``tito.foreign_audit``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from t1actors.tito.record import Chunk, TitoError, TrajectoryRecord


class AuditError(TitoError):
    """A record disagrees with the turns it was made from. Says which trial, turn and token."""


class SampledTurn(Protocol):
    """What the audit reads of a turn: a ``stitch.Turn``."""

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

    @property
    def routing_RLK(self) -> npt.NDArray[np.generic]:
        """The rows that no turn before it on its path brought."""
        ...


class Step(Protocol):
    """What the audit reads of a path: a ``stitch.PathTurn``."""

    @property
    def turn(self) -> SampledTurn:
        """The same object wherever the turn occurs."""
        ...

    @property
    def trained(self) -> bool:
        """Whether this path trains what the turn sampled."""
        ...


@dataclass(frozen=True)
class Audit:
    """What an accepted record amounts to, in tokens."""

    ids: int
    sampled: int
    drift_in_loss: int


class _Stream:
    """Values read once, from the beginning."""

    def __init__(self, values: npt.NDArray[np.generic]) -> None:
        self._values = values
        self.read = 0

    def next(self, count: int) -> npt.NDArray[np.generic]:
        """The next ``count`` values, or what is left."""
        found = self._values[self.read : self.read + count]
        self.read += len(found)
        return found

    @property
    def left(self) -> int:
        return len(self._values) - self.read


def audit(record: TrajectoryRecord, paths: Sequence[Sequence[Step]]) -> Audit:
    """What ``record`` holds, or ``AuditError`` at the first token or row that differs from those of ``paths``."""
    if len(record.chunks) != len(paths):
        raise AuditError(f"trial {record.trial}: {len(record.chunks)} chunks recorded of {len(paths)} paths")
    trained: Counter[int] = Counter()
    sampled = 0
    for chunk, path, number in zip(record.chunks, paths, range(len(paths)), strict=True):
        where = f"trial {record.trial}" + (f", chunk {number}" if number else "")
        sampled += _audit_chunk(chunk, path, where)
        trained.update(id(step.turn) for step in path if step.trained)
    for number, path in enumerate(paths):
        for place, step in enumerate(path):
            if trained[id(step.turn)] != 1:
                raise AuditError(
                    f"trial {record.trial}, chunk {number}, turn {place}: trained {trained[id(step.turn)]} times, not once"
                )
    return Audit(ids=sum(len(chunk.ids) // 4 for chunk in record.chunks), sampled=sampled, drift_in_loss=0)


def _audit_chunk(chunk: Chunk, path: Sequence[Step], where: str) -> int:
    """How many ids of ``chunk`` are trained."""
    arrays = chunk.arrays()
    ids, mask, logprobs = _Stream(arrays.ids_N), _Stream(arrays.mask_N), _Stream(arrays.logprobs_N)
    rows = _Stream(arrays.routing_RLK)
    sampled = 0
    for number, step in enumerate(path):
        turn, place = step.turn, f"{where}, turn {number}"
        given, drawn = len(turn.context_ids), len(turn.sampled_ids)
        for stream, name, wants in (
            (ids, "id", (turn.context_ids, turn.sampled_ids)),
            (mask, "m", (np.zeros(given), np.full(drawn, step.trained))),
            # Records hold float32; an event's value is a float32 widened for MessagePack, so this loses nothing.
            (logprobs, "q", (np.zeros(given), list(turn.logprobs) if step.trained else np.zeros(drawn))),
        ):
            for want in wants:
                first = stream.read
                want_n = np.asarray(want, dtype=np.float32 if name == "q" else np.int64)
                _same(stream.next(len(want_n)), want_n, name, first, place)
        sampled += drawn if step.trained else 0
        first = rows.read
        _same(rows.next(len(turn.routing_RLK)), turn.routing_RLK, "routing row", first, place)
        if rows.read != ids.read - 1:
            raise AuditError(f"{place}: {rows.read} routing rows for the {ids.read} ids up to its end; must be ids - 1")
    for stream, name in ((ids, "ids"), (mask, "masks"), (logprobs, "log-probs"), (rows, "routing rows")):
        if stream.left:
            raise AuditError(f"{where}: {stream.read + stream.left} {name} recorded where the turns have {stream.read}")
    return sampled


def _same(found: npt.NDArray[np.generic], want: npt.NDArray[np.generic], name: str, first: int, place: str) -> None:
    """Raises ``AuditError`` naming the first value that differs; ``first`` is the place of ``found[0]`` in its stream."""
    if len(found) != len(want):
        raise AuditError(f"{place}: the record ends after {first + len(found)} {name}s, inside the turn")
    if np.array_equal(found, want):
        return
    differs = (found != want).reshape(len(found), -1).any(axis=1)
    n = int(np.argmax(differs))
    what = f"routing row {first + n}" if name == "routing row" else f"token {first + n}"
    raise AuditError(f"{place}, {what}: the record has {name} {found[n].tolist()}, the turn has {want[n].tolist()}")
