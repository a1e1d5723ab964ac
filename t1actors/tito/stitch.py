"""Turns become one record: ids, mask, log-probs and routing grow by the same offsets, turn by turn.

Guarantees: what the engine sampled enters as it was sampled (no text is ever encoded here); a turn's context enters with
m = 0 and q = 0; the routing row of a turn's last token is the one recorded by the *next* call, the first that ran it; the
result passed ``record.check`` and ``audit.audit``.

The events of a harness that carries ids (``harness.native``) state only what each call added, so the prompt of turn i + 1 is
T_i followed by its context and every boundary is STRICT. Harnesses that send text need the other cases of T1 section 3:
their names exist in ``events.BoundaryCase``, their rules are not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from t1actors.events import Boundary, TurnSampled
from t1actors.payloads import Blobs, unpack_array
from t1actors.tito import audit, record
from t1actors.tito.record import Geometry, TitoError, TokenSpan, TrajectoryRecord


class StitchError(TitoError):
    """A trial's turns do not join. Says which trial and turn; the trial must be aborted, never trained on in part."""


@dataclass(frozen=True)
class Stitched:
    """A trial's record and what the assembler reports about it."""

    record: TrajectoryRecord
    boundaries: tuple[Boundary, ...]
    ids: int
    sampled: int
    drift_in_loss: int
    """Positions with m = 1 that do not hold the id that was sampled there: 0, or the audit would have raised."""
    non_canonical_turns: int
    """Turns whose sampled ids are not the canonical encoding of their text. They stay as sampled."""


def stitch(turns: Sequence[TurnSampled], *, index: int, task: str, geometry: Geometry, blobs: Blobs) -> Stitched:
    """The record of the trial that ``turns`` (all of it, in order) belong to.

    Raises:
        StitchError: turns missing, mixed or malformed; routing missing or of another shape than the model's.
        record.RecordError, audit.AuditError: the result breaks a guarantee.
        BlobError: a routing payload is missing or damaged.
    """
    if not turns:
        raise StitchError("no turns: a trial without a sampled token has no trajectory")
    trial = turns[0].trial
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    spans: list[tuple[int, int]] = []
    versions: list[TokenSpan] = []
    routing: list[npt.NDArray[np.generic]] = []
    for number, turn in enumerate(turns):
        where = f"trial {trial}, turn {number}"
        if turn.trial != trial or turn.turn != number:
            raise StitchError(f"{where}: found turn {turn.turn} of trial {turn.trial} in its place")
        if turn.temperature != turns[0].temperature:
            raise StitchError(
                f"{where}: sampled at temperature {turn.temperature}, the trial began at {turns[0].temperature}"
            )
        if not turn.context_ids or not turn.sampled_ids:
            raise StitchError(
                f"{where}: {len(turn.context_ids)} context ids and {len(turn.sampled_ids)} sampled; both are needed"
            )
        if len(turn.logprobs) != len(turn.sampled_ids):
            raise StitchError(f"{where}: {len(turn.logprobs)} log-probs for {len(turn.sampled_ids)} sampled ids")
        known_rows = max(len(ids) - 1, 0)
        start = len(ids) + len(turn.context_ids)
        end = start + len(turn.sampled_ids)
        rows_needed = end - 1 - known_rows
        stated = tuple(turn.routing.shape)
        if stated != (rows_needed, geometry.layers, geometry.top_k):
            raise StitchError(
                f"{where}: routing is {list(stated)}, its {rows_needed} new predicting positions need "
                f"{[rows_needed, geometry.layers, geometry.top_k]}; abort the trial, rows are never made up"
            )
        routing.append(unpack_array(blobs, turn.routing))
        ids += [*turn.context_ids, *turn.sampled_ids]
        mask += [0] * len(turn.context_ids) + [1] * len(turn.sampled_ids)
        logprobs += [0.0] * len(turn.context_ids) + list(turn.logprobs)
        spans.append((start, end))
        versions += [TokenSpan(version=s.version, start=start + s.start, end=start + s.end) for s in turn.versions]
    chunk = record.chunk_of(
        ids_N=np.array(ids, dtype=np.int32),
        mask_N=np.array(mask, dtype=np.uint8),
        logprobs_N=np.array(logprobs, dtype=np.float32),
        routing_RLK=np.concatenate([rows_RLK.astype(np.int64) for rows_RLK in routing]),
        versions=tuple(versions),
        turns=tuple(spans),
        geometry=geometry,
    )
    trajectory = TrajectoryRecord(
        trial=trial, index=index, task=task, temperature=turns[0].temperature, chunks=(chunk,)
    )
    record.check(trajectory, geometry)
    found = audit.audit(trajectory, turns)
    return Stitched(
        record=trajectory,
        boundaries=found.boundaries,
        ids=len(ids),
        sampled=found.sampled,
        drift_in_loss=found.drift_in_loss,
        non_canonical_turns=sum(not turn.canonical for turn in turns),
    )
