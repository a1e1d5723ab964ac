"""Calls of a foreign harness become one record: whole prompts, joined where ids prove that they continue one another.

A harness that sends text, or that was recorded elsewhere, leaves for every call the ids of its *whole* prompt, what was
sampled, and routing. ``tito.boundary`` finds how each prompt continues the call before it; from that follow what the call
added to the stream, and where a new chunk begins.

    found = stitch_foreign(calls, edges=edges, rule="t1", trial="t0", index=0, task="", temperature=1.0, geometry=geometry)
    found.stitched.record, found.stitched.boundaries, found.shares

Guarantees: what was sampled enters as it was sampled, with its own log-probs and the rows of the forwards that sampled it; a
re-encoded copy of it never enters. Every routing row comes from a call that ran that very token (with ``known_rows``, an
earlier call that ran the same ids up to it), but for those copied from the row before: where a repaired boundary left out the
forward over an answer's last id, and only if that row predicts context. They are counted; any other missing row is an error.
The result passed ``record.check``, ``audit.audit`` and ``foreign_audit.audit_boundaries``.

The rule "strict" repairs nothing: what is not STRICT splits, so every token was conditioned on exactly what its chunk shows.
Under "t1" tokens after a repaired boundary were not; they are counted as ``altered``, and no zero engine gap is claimed for
them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import cast

import numpy as np
import numpy.typing as npt

from t1actors.events import Boundary, VersionSpan
from t1actors.tito import foreign_audit
from t1actors.tito.boundary import SPLIT, Edges, Join, agreeing, join
from t1actors.tito.record import Geometry, Ids
from t1actors.tito.stitch import PathTurn, Stitched, StitchError, StitchRule, Turn, stitch_paths

Rows = npt.NDArray[np.integer]


@dataclass(frozen=True, kw_only=True)
class ForeignCall:
    """One model call as it was: ``routing_RLK`` holds rows [known_rows, N - 1) of the N ids of prompt and answer."""

    prompt_ids: Sequence[int]
    sampled_ids: Sequence[int]
    logprobs: Collection[float]
    routing_RLK: npt.NDArray[np.generic]
    versions: Sequence[VersionSpan]
    known_rows: int = 0
    canonical: bool = True

    @cached_property
    def prompt_P(self) -> Ids:
        return np.asarray(self.prompt_ids, dtype=np.int32)

    @cached_property
    def answer_A(self) -> Ids:
        return np.asarray(self.sampled_ids, dtype=np.int32)

    @cached_property
    def ids_N(self) -> Ids:
        """What the call's forwards ran over, and the last sampled id."""
        return np.concatenate([self.prompt_P, self.answer_A])


@dataclass(frozen=True)
class Shares:
    """What repairs did to a trial, in ids: of ``sampled``, how many later prompts show as other ids (``retokenized``) and how
    many were sampled after another history than the record shows (``altered``); ``placeholders`` are copied routing rows."""

    sampled: int
    ids: int
    retokenized: int
    altered: int
    placeholders: int
    left_out: int

    def text(self) -> str:
        """As lines."""
        return "\n".join(
            [
                f"retokenized later   {self.retokenized / self.sampled:8.3%} of {self.sampled:,} sampled ids",
                f"altered history     {self.altered / self.sampled:8.3%}",
                f"placeholder rows    {self.placeholders / self.ids:8.3%} of {self.ids:,} ids",
                f"left out            {self.left_out:8,} ids",
            ]
        )


@dataclass(frozen=True)
class Foreign:
    """A foreign trial's record, and what its repairs amount to."""

    stitched: Stitched
    shares: Shares


def joins_of(calls: Sequence[ForeignCall], edges: Edges, rule: StitchRule = "strict") -> tuple[Join, ...]:
    """How each call from the second on continues the one before it. Routing and log-probs are not looked at."""
    return tuple(
        join(before.prompt_P, before.answer_A, call.prompt_P, edges, repair=rule == "t1")
        for before, call in pairwise(calls)
    )


def boundary_of(turn: int, joined: Join, *, audited: bool) -> Boundary:
    """As events carry it."""
    return Boundary(
        turn=turn,
        case=joined.case,
        s=joined.s,
        u=joined.u,
        audited=audited,
        start=joined.start,
        end=joined.end,
        left_out=joined.left_out,
    )


def shares_of(calls: Sequence[ForeignCall], joins: Sequence[Join]) -> Shares:
    """What repairs did: counted on the ids of the streams, placeholders by who can have run what."""
    streams: list[list[Ids]] = []
    sampled = retokenized = altered = placeholders = 0
    for number, call in enumerate(calls):
        joined = joins[number - 1] if number else SPLIT
        if joined.case == "SPLIT":
            streams.append([])
        elif _ran(calls[number - 1], call, joined) is None:
            placeholders += 1
        stream = streams[-1]
        stream.append(call.prompt_P[joined.rest :])
        shown = np.concatenate(stream)
        kept = len(call.answer_A) - _left_out(joins, number)
        stream.append(call.answer_A[:kept])
        sampled += kept
        altered += 0 if np.array_equal(shown, call.prompt_P) else kept
        if joined.case == "RETOKENIZED":
            retokenized += len(calls[number - 1].answer_A)
    return Shares(
        sampled=sampled,
        ids=sum(len(part) for stream in streams for part in stream),
        retokenized=retokenized,
        altered=altered,
        placeholders=placeholders,
        left_out=sum(j.left_out for j in joins),
    )


def stitch_foreign(
    calls: Sequence[ForeignCall],
    *,
    edges: Edges,
    rule: StitchRule = "strict",
    trial: str,
    index: int,
    task: str,
    temperature: float,
    geometry: Geometry,
) -> Foreign:
    """The record of a trial from all its calls, in order. The other arguments are those of ``stitch.stitch_turns``.

    Raises:
        StitchError: no calls, a malformed one, routing of another shape, or a row that no call has.
        record.RecordError, audit.AuditError: the result breaks a guarantee.
    """
    for number, call in enumerate(calls):
        _check_call(call, f"trial {trial}, turn {number}", geometry)
    joins = joins_of(calls, edges, rule)
    paths: list[list[PathTurn]] = []
    for number, call in enumerate(calls):
        joined = joins[number - 1] if number else SPLIT
        left_out = _left_out(joins, number)
        last = len(call.ids_N) - 1 - left_out
        rows = _rows_of(calls, number, joined.rest, last, trial)
        if joined.case == "SPLIT":
            paths.append([])
        else:
            rows.insert(0, _row_before(calls, number, joined, trial))
        kept = len(call.sampled_ids) - left_out
        turn = Turn(
            context_ids=call.prompt_ids[joined.rest :],
            sampled_ids=call.sampled_ids[:kept],
            logprobs=list(call.logprobs)[:kept],
            routing_RLK=np.concatenate(rows) if len(rows) > 1 else rows[0],
            versions=_cut(call.versions, kept),
            canonical=call.canonical,
        )
        # The audit below proves it, or there is no record.
        paths[-1].append(PathTurn(turn=turn, boundary=boundary_of(number, joined, audited=True)))
    stitched = stitch_paths(
        paths, trial=trial, index=index, task=task, temperature=temperature, geometry=geometry, rule=rule
    )
    foreign_audit.audit_boundaries(stitched.record, calls, stitched.boundaries, edges)
    shares = shares_of(calls, joins)
    counts = {"retokenized": shares.retokenized, "placeholders": shares.placeholders, "altered": shares.altered}
    return Foreign(replace(stitched, **counts), shares)


def _left_out(joins: Sequence[Join], number: int) -> int:
    """Of the answer of call ``number``, as the call after it decides."""
    return joins[number].left_out if number < len(joins) else 0


def _cut(versions: Sequence[VersionSpan], kept: int) -> tuple[VersionSpan, ...]:
    return tuple(
        VersionSpan(version=v.version, start=v.start, end=min(v.end, kept)) for v in versions if v.start < kept
    )


def _check_call(call: ForeignCall, where: str, geometry: Geometry) -> None:
    if not call.prompt_ids or not call.sampled_ids or len(call.logprobs) != len(call.sampled_ids):
        raise StitchError(
            f"{where}: {len(call.prompt_ids)} ids of a prompt, {len(call.sampled_ids)} sampled, {len(call.logprobs)} "
            "log-probs; a call has a prompt, an answer, and a log-prob for each of its ids"
        )
    if not 0 <= call.known_rows < len(call.prompt_ids):
        raise StitchError(
            f"{where}: {call.known_rows} known rows of a prompt of {len(call.prompt_ids)} ids; those that predict its answer "
            "are the call's own"
        )
    needed = (len(call.ids_N) - 1 - call.known_rows, geometry.layers, geometry.top_k)
    if call.routing_RLK.shape != needed or call.routing_RLK.dtype.kind not in "iu":
        raise StitchError(
            f"{where}: routing is {list(call.routing_RLK.shape)} of {call.routing_RLK.dtype.name}; {len(call.ids_N)} ids "
            f"with {call.known_rows} known rows need {list(needed)} of integers; abort the trial, rows are never made up"
        )


def _rows_of(calls: Sequence[ForeignCall], number: int, first: int, last: int, trial: str) -> list[Rows]:
    """Rows [first, last) of what call ``number`` ran. Those that it does not bring are an earlier call's that ran the same
    ids up to there."""
    call = calls[number]
    rows = cast(Rows, call.routing_RLK)
    if first >= call.known_rows:
        return [rows[first - call.known_rows : last - call.known_rows]]
    end = min(last, call.known_rows)
    for earlier in reversed(range(number)):
        if len(calls[earlier].ids_N) > end and agreeing(calls[earlier].ids_N, call.ids_N) >= end:
            found = _rows_of(calls, earlier, first, end, trial)
            return [*found, rows[: last - end]] if last > end else found
    raise StitchError(
        f"trial {trial}, turn {number}: rows [{first}, {end}) are said to be known, but no earlier call ran those ids; "
        "abort the trial, rows are never made up"
    )


def _ran(before: ForeignCall, call: ForeignCall, joined: Join) -> int | None:
    """Where ``call`` ran the stream's id before what it added; None where it did not: the history ends otherwise."""
    same = joined.u == joined.left_out and int(call.prompt_P[joined.rest - 1]) == int(
        before.answer_A[len(before.answer_A) - 1 - joined.left_out]
    )
    return joined.rest - 1 if same else None


def _row_before(calls: Sequence[ForeignCall], number: int, joined: Join, trial: str) -> Rows:
    """The row of the last id that stands in the stream before what call ``number`` added."""
    place = _ran(calls[number - 1], calls[number], joined)
    if place is not None:
        return _rows_of(calls, number, place, place + 1, trial)[0]
    if joined.rest == len(calls[number].prompt_ids):
        raise StitchError(
            f"trial {trial}, turn {number}: the row that predicts its first sampled id would be a copy, because no call ran "
            f"the id before it ({joined.case}, and nothing added); abort the trial"
        )
    last = len(calls[number - 1].ids_N) - 2
    return _rows_of(calls, number - 1, last, last + 1, trial)[0]
