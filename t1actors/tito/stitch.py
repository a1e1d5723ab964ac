"""Turns become one record: ids, mask, log-probs and routing grow by the same offsets, turn by turn.

    record = stitch_turns(turns, trial="t0", index=0, task="count", temperature=1.0, geometry=geometry).record

A trial is one path of turns, or several where its calls do not all go on from one another: then every path becomes a chunk.
Paths that fork have their beginning in common (the same ``Turn`` objects); the first of them trains it, for the others it is
context.

Guarantees: what the engine sampled enters as it was sampled (no text is ever encoded here), and is trained exactly once; a
turn's context, and turns that another chunk trains, enter with m = 0 and q = 0; a chunk ends at its last trained token; the
routing row of a turn's last token is the one recorded by the *next* call on its path, the first that ran it; the result
passed ``record.check`` and ``audit.audit``.

A ``Turn`` states only what its call added to its path, so nothing here decides how a prompt continues what came before it:
who adds (``harness.native``) has STRICT boundaries, who has whole prompts finds theirs in ``tito.foreign``. ``stitch`` is the
same for turns that lie in a log.

Shapes: R new routing rows of a turn, L mixture-of-experts layers, K experts per token, N ids of a chunk.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from t1actors.events import Boundary, TurnSampled, VersionSpan
from t1actors.payloads import Blobs, unpack_array
from t1actors.tito import audit, record
from t1actors.tito.record import Chunk, Geometry, Ids, Logprobs, TitoError, TokenSpan, TrajectoryRecord

StitchRule: TypeAlias = Literal["strict", "t1"]
"""Which boundaries a record may have: "strict": STRICT and SPLIT; "t1": the repaired ones too (T1 section 3)."""


class StitchError(TitoError):
    """A trial's turns do not join. Says which trial and turn; the trial must be aborted, never trained on in part."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One model call, by what it added to the trial's stream. The fields of ``engine.interface.GenerateResult`` fit."""

    context_ids: Sequence[int]
    """What the caller appended before sampling: the prompt, an observation. A path's first turn has at least one id."""
    sampled_ids: Sequence[int]
    logprobs: Collection[float]
    """Of the sampled ids, under the distribution they were drawn from, in nats."""
    routing_RLK: npt.NDArray[np.generic]
    """Experts of every predicting position that no earlier turn of the path has a row for: R = all ids so far - 1 - rows
    so far."""
    versions: Sequence[VersionSpan]
    """Which weights sampled which of ``sampled_ids``."""
    canonical: bool = True
    """Whether encoding the text of ``sampled_ids`` gives the same ids; only counted."""


@dataclass(frozen=True, kw_only=True)
class PathTurn:
    """A turn on a path. The same turn on several paths is the same ``Turn`` object: the first path trains it."""

    turn: Turn
    trained: bool = True
    """False: its sampled span is only context here; another chunk trains it."""
    boundary: Boundary | None = None
    """How it joins what stands before it. None for a chunk's first; elsewhere None is STRICT."""


@dataclass(frozen=True)
class Stitched:
    """A trial's record and what the assembler reports about it."""

    record: TrajectoryRecord
    boundaries: tuple[Boundary, ...]
    """Of every turn but the first, in order of their numbers; SPLIT for the first that a later chunk trains."""
    ids: int
    """Over all chunks: what they have in common counts in each."""
    sampled: int
    drift_in_loss: int
    """Positions with m = 1 that do not hold the id that was sampled there: 0, or the audit would have raised."""
    non_canonical_turns: int
    """Turns whose sampled ids are not the canonical encoding of their text. They stay as sampled."""
    retokenized: int = 0
    """As this and the next two of ``foreign.Shares``; only repaired boundaries have any."""
    placeholders: int = 0
    altered: int = 0


def stitch_turns(
    turns: Sequence[Turn], *, trial: str, index: int, task: str, temperature: float, geometry: Geometry
) -> Stitched:
    """The record of a trial from all its turns, in order, each going on from the one before: one chunk.

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
    path = [PathTurn(turn=turn) for turn in turns]
    return stitch_paths(
        [path] if path else [], trial=trial, index=index, task=task, temperature=temperature, geometry=geometry
    )


def stitch_paths(
    paths: Sequence[Sequence[PathTurn]],
    *,
    trial: str,
    index: int,
    task: str,
    temperature: float,
    geometry: Geometry,
    rule: StitchRule = "strict",
) -> Stitched:
    """As ``stitch_turns``, a chunk for each path. A turn's number is that of its boundary or, where it has none, its place
    among the trained turns, path after path.

    Raises:
        StitchError: as there; a turn is not trained exactly once, on the first path that it is on; a path ends with one that
            it does not train; two turns have one number; a boundary that ``rule`` does not allow.
    """
    if not paths:
        raise StitchError(f"trial {trial}: no turns: a trial without a sampled token has no trajectory")
    _check_training(trial, paths)
    boundaries = _boundaries(trial, paths, rule)
    chunks = tuple(
        _chunk_of(path, where=f"trial {trial}, {f'path {number}, ' if len(paths) > 1 else ''}turn", geometry=geometry)
        for number, path in enumerate(paths)
    )
    trajectory = TrajectoryRecord(trial=trial, index=index, task=task, temperature=temperature, chunks=chunks)
    record.check(trajectory, geometry)
    found = audit.audit(trajectory, paths)
    return Stitched(
        record=trajectory,
        boundaries=boundaries,
        ids=found.ids,
        sampled=found.sampled,
        drift_in_loss=found.drift_in_loss,
        non_canonical_turns=sum(not step.turn.canonical for path in paths for step in path if step.trained),
    )


def stitch(
    turns: Sequence[TurnSampled],
    *,
    index: int,
    task: str,
    geometry: Geometry,
    blobs: Blobs,
    rule: StitchRule = "strict",
) -> Stitched:
    """As ``stitch_turns``, for the trial that the events ``turns`` (all of it, in order) belong to; a chunk begins where its
    context was compacted. Turns that answered chat calls go on from where these say (``ChatCall.continues``).

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
    return stitch_paths(
        paths_of(plain, [continues(turn) for turn in turns]),
        trial=first.trial,
        index=index,
        task=task,
        temperature=first.temperature,
        geometry=geometry,
        rule=rule,
    )


def continues(turn: TurnSampled) -> int | None:
    """The turn whose ids this one goes on from; None begins a chunk."""
    if turn.chat is not None:
        return turn.chat.continues
    return None if turn.turn == 0 or turn.compaction == "start" else turn.turn - 1


def paths_of(turns: Sequence[Turn], parents: Sequence[int | None]) -> list[list[PathTurn]]:
    """The paths of a trial whose turns go on from those before them that ``parents`` names (None begins a chunk): one for
    each turn that nothing goes on from, in their order. Where two have their beginning in common the first trains it.

    Raises:
        StitchError: a turn that goes on from none before it.
    """
    for number, parent in enumerate(parents):
        if parent is not None and not 0 <= parent < number:
            raise StitchError(f"turn {number} goes on from turn {parent}, which is not before it")
    continued, trained = set(parents), set[int]()
    paths: list[list[PathTurn]] = []
    for leaf in range(len(turns)):
        if leaf in continued:
            continue
        numbers, number = list[int](), leaf
        while number is not None:
            numbers.append(number)
            number = parents[number]
        path: list[PathTurn] = []
        for place, number in enumerate(reversed(numbers)):
            boundary = Boundary(turn=number, case="STRICT" if place else "SPLIT")
            path.append(PathTurn(turn=turns[number], trained=number not in trained, boundary=boundary))
            trained.add(number)
        paths.append(path)
    return paths


def _check_training(trial: str, paths: Sequence[Sequence[PathTurn]]) -> None:
    """Raises ``StitchError`` unless every turn is trained exactly once: on the first path that it is on."""
    seen: set[int] = set()
    for number, path in enumerate(paths):
        if not path or not path[-1].trained:
            what = "ends with a turn that it does not train" if path else "has no turns"
            raise StitchError(f"trial {trial}, path {number}: {what}; leave out what follows its last trained turn")
        for place, step in enumerate(path):
            first = id(step.turn) not in seen
            if step.trained is not first:
                what = "is trained a second time" if step.trained else "is on no earlier path, and not trained"
                raise StitchError(
                    f"trial {trial}, path {number}, turn {place}: it {what}; the first path that a turn is on trains it"
                )
            seen.add(id(step.turn))


def _boundaries(trial: str, paths: Sequence[Sequence[PathTurn]], rule: StitchRule) -> tuple[Boundary, ...]:
    """Of every trained turn but the trial's first."""
    found: dict[int, Boundary | None] = {}
    for number, path in enumerate(paths):
        trained = [step for step in path if step.trained]
        for place, step in enumerate(trained):
            given = step.boundary
            turn = len(found) if given is None else given.turn
            if turn in found:
                raise StitchError(
                    f"trial {trial}, path {number}: a second turn {turn}; give its turns' boundaries numbers"
                )
            if place == 0:
                found[turn] = Boundary(turn=turn, case="SPLIT") if number else None
                continue
            if given is not None and given.case == "SPLIT":
                raise StitchError(
                    f"trial {trial}, turn {turn}: SPLIT inside a path; what splits off begins another path"
                )
            if rule == "strict" and given is not None and given.case != "STRICT":
                raise StitchError(
                    f"trial {trial}, turn {turn}: a boundary of case {given.case}; only STRICT and SPLIT are allowed "
                    'here. tito.stitch = "t1" allows repaired ones'
                )
            found[turn] = given or Boundary(turn=turn, case="STRICT")
    return tuple(boundary for _, boundary in sorted(found.items()) if boundary is not None)


def _chunk_of(path: Sequence[PathTurn], *, where: str, geometry: Geometry) -> Chunk:
    """The chunk of ``path``. ``where`` and a turn's place name it in errors."""
    ids: list[Ids] = []
    mask: list[npt.NDArray[np.uint8]] = []
    logprobs: list[Logprobs] = []
    routing: list[npt.NDArray[np.integer]] = []
    spans: list[tuple[int, int]] = []
    versions: list[TokenSpan] = []
    length = 0
    for place, step in enumerate(path):
        turn = step.turn
        context, sampled = len(turn.context_ids), len(turn.sampled_ids)
        if not sampled or not (context or length):
            raise StitchError(f"{where} {place}: {context} context ids and {sampled} sampled; both are needed")
        if len(turn.logprobs) != sampled:
            raise StitchError(f"{where} {place}: {len(turn.logprobs)} log-probs for {sampled} sampled ids")
        start, end = length + context, length + context + sampled
        routing.append(_rows(turn, end - 1 - max(length - 1, 0), f"{where} {place}", geometry))
        ids += [np.asarray(turn.context_ids, dtype=np.int32), np.asarray(turn.sampled_ids, dtype=np.int32)]
        mask += [np.zeros(context, dtype=np.uint8), np.full(sampled, step.trained, dtype=np.uint8)]
        logprobs.append(np.zeros(context if step.trained else context + sampled, dtype=np.float32))
        if step.trained:
            logprobs.append(np.fromiter(turn.logprobs, dtype=np.float32, count=sampled))
            spans.append((start, end))
            versions += [TokenSpan(version=s.version, start=start + s.start, end=start + s.end) for s in turn.versions]
        length = end
    return record.chunk_of(
        ids_N=np.concatenate(ids),
        mask_N=np.concatenate(mask),
        logprobs_N=np.concatenate(logprobs),
        routing_RLK=routing,
        versions=tuple(versions),
        turns=tuple(spans),
        geometry=geometry,
    )


def _rows(turn: Turn, needed: int, where: str, geometry: Geometry) -> npt.NDArray[np.integer]:
    """The turn's routing, in the type that it has: experts are checked before they are cast."""
    shape = (needed, geometry.layers, geometry.top_k)
    if turn.routing_RLK.shape != shape or turn.routing_RLK.dtype.kind not in "iu":
        raise StitchError(
            f"{where}: routing is {list(turn.routing_RLK.shape)} of {turn.routing_RLK.dtype.name}, its {needed} new "
            f"predicting positions need {list(shape)} of integers; abort the trial, rows are never made up"
        )
    return cast("npt.NDArray[np.integer]", turn.routing_RLK)
