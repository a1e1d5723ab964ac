"""Turns become one record: ids, mask, log-probs and routing grow by the same offsets, turn by turn.

    record = stitch_turns(turns, trial="t0", index=0, task="count", temperature=1.0, geometry=geometry).record

Guarantees: what the engine sampled enters as it was sampled (no text is ever encoded here); a turn's context enters with
m = 0 and q = 0; the routing row of a turn's last token is the one recorded by the *next* call, the first that ran it; the
result passed ``record.check`` and ``audit.audit``.

A ``Turn`` states only what its call added, so the prompt of turn i + 1 is T_i followed by its context and every boundary is
STRICT. ``stitch`` is the same for turns that lie in a log (``harness.native`` carries ids). Harnesses that send text need the
other cases of T1 section 3: their names exist in ``events.BoundaryCase``, their rules are not here.

Shapes: R new routing rows of a turn, L mixture-of-experts layers, K experts per token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from t1actors.events import Boundary, TurnSampled, VersionSpan
from t1actors.payloads import Blobs, unpack_array
from t1actors.tito import audit, record
from t1actors.tito.record import Geometry, TitoError, TokenSpan, TrajectoryRecord


class StitchError(TitoError):
    """A trial's turns do not join. Says which trial and turn; the trial must be aborted, never trained on in part."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One model call, by what it added to the trial's stream. The fields of ``engine.interface.GenerateResult`` fit."""

    context_ids: Sequence[int]
    """What the caller appended before sampling: the prompt, an observation. At least one id."""
    sampled_ids: Sequence[int]
    logprobs: Collection[float]
    """Of the sampled ids, under the distribution they were drawn from, in nats."""
    routing_RLK: npt.NDArray[np.generic]
    """Experts of every predicting position that no earlier turn has a row for: R = all ids so far - 1 - rows so far."""
    versions: Sequence[VersionSpan]
    """Which weights sampled which of ``sampled_ids``."""
    canonical: bool = True
    """Whether encoding the text of ``sampled_ids`` gives the same ids; only counted."""


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


def stitch_turns(
    turns: Sequence[Turn], *, trial: str, index: int, task: str, temperature: float, geometry: Geometry
) -> Stitched:
    """The record of a trial from all its turns, in order.

    Args:
        trial: names the trial in errors and in the record.
        index: the trial's place in its batch; a batch is ordered by it.
        task: any name; the record carries it.
        temperature: what every turn was sampled at. 0 (greedy) makes a record that can't be trained on.
        geometry: of the model, ``train.networks.geometry_of`` or ``Geometry.of_model_config``.

    Raises:
        StitchError: no turns, a malformed one, or routing of another shape than the model's.
        record.RecordError, audit.AuditError: the result breaks a guarantee.
    """
    if not turns:
        raise StitchError(f"trial {trial}: no turns: a trial without a sampled token has no trajectory")
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    spans: list[tuple[int, int]] = []
    versions: list[TokenSpan] = []
    routing: list[npt.NDArray[np.int64]] = []
    for number, turn in enumerate(turns):
        where = f"trial {trial}, turn {number}"
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
        if turn.routing_RLK.shape != (rows_needed, geometry.layers, geometry.top_k):
            raise StitchError(
                f"{where}: routing is {list(turn.routing_RLK.shape)}, its {rows_needed} new predicting positions need "
                f"{[rows_needed, geometry.layers, geometry.top_k]}; abort the trial, rows are never made up"
            )
        routing.append(turn.routing_RLK.astype(np.int64))
        ids += [*turn.context_ids, *turn.sampled_ids]
        mask += [0] * len(turn.context_ids) + [1] * len(turn.sampled_ids)
        logprobs += [0.0] * len(turn.context_ids) + [float(q) for q in turn.logprobs]
        spans.append((start, end))
        versions += [TokenSpan(version=s.version, start=start + s.start, end=start + s.end) for s in turn.versions]
    chunk = record.chunk_of(
        ids_N=np.array(ids, dtype=np.int32),
        mask_N=np.array(mask, dtype=np.uint8),
        logprobs_N=np.array(logprobs, dtype=np.float32),
        routing_RLK=np.concatenate(routing),
        versions=tuple(versions),
        turns=tuple(spans),
        geometry=geometry,
    )
    trajectory = TrajectoryRecord(trial=trial, index=index, task=task, temperature=temperature, chunks=(chunk,))
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


def stitch(turns: Sequence[TurnSampled], *, index: int, task: str, geometry: Geometry, blobs: Blobs) -> Stitched:
    """As ``stitch_turns``, for the trial that the events ``turns`` (all of it, in order) belong to.

    Raises:
        StitchError: turns missing, mixed or malformed; routing missing or of another shape than the model's.
        record.RecordError, audit.AuditError: the result breaks a guarantee.
        BlobError: a routing payload is missing or damaged.
    """
    if not turns:
        raise StitchError("no turns: a trial without a sampled token has no trajectory")
    first = turns[0]
    for number, turn in enumerate(turns):
        where = f"trial {first.trial}, turn {number}"
        if turn.trial != first.trial or turn.turn != number:
            raise StitchError(f"{where}: found turn {turn.turn} of trial {turn.trial} in its place")
        if turn.temperature != first.temperature:
            raise StitchError(
                f"{where}: sampled at temperature {turn.temperature}, the trial began at {first.temperature}"
            )
    plain = [
        Turn(
            context_ids=turn.context_ids,
            sampled_ids=turn.sampled_ids,
            logprobs=turn.logprobs,
            routing_RLK=unpack_array(blobs, turn.routing),
            versions=turn.versions,
            canonical=turn.canonical,
        )
        for turn in turns
    ]
    return stitch_turns(
        plain, trial=first.trial, index=index, task=task, temperature=first.temperature, geometry=geometry
    )
