"""Whether the payloads that events name are there and are what they are named.

What must be there: trajectory records with their pages and the states before the first update, from which everything else
can be computed again. The rest (sealed layers, turns' routing, later states, values) is kept while it serves: its absence
is a note. Other bytes than the name says are an error in anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from numpy import float32

from t1actors.events import (
    ActorInitialised,
    ActorUpdated,
    AnyEvent,
    CriticInitialised,
    CriticUpdated,
    Payload,
    RunFinished,
    TrajectoryAssembled,
    TurnSampled,
    UnknownEvent,
)
from t1actors.log.merged import Entry
from t1actors.observe.invariants import Finding
from t1actors.payloads import BlobError, Blobs, payloads_of, unpack
from t1actors.runtime.trimming import step_of
from t1actors.tito.record import RecordError, TrajectoryRecord
from t1actors.tito.stored import decode, pages_in


class References:
    """Fed with entries and their events by ``apply``; ``findings`` holds what was found."""

    def __init__(self, blobs: Blobs, *, excerpt: bool = False, first_step: int = 0) -> None:
        """``excerpt``: of an archive of one step, which holds what that step needs and no other blob. ``first_step``: the
        first one whose trials were not trimmed."""
        self._blobs = blobs
        self._excerpt = excerpt
        self._first_step = first_step
        self._absent: Counter[str] = Counter()
        self._findings: list[Finding] = []
        self._turns: dict[str, list[TurnSampled]] = {}
        """What was sampled of trials that are not assembled yet."""
        self._latest: dict[str, tuple[Entry, Payload]] = {}
        """The states that the critic and the actor would go on from, by what they are of."""
        self._finished = False

    def apply(self, entry: Entry, event: AnyEvent | UnknownEvent) -> None:
        """Check every payload that the event names."""
        if isinstance(event, UnknownEvent):
            return
        trimmed = step_of(event) < self._first_step
        if isinstance(event, TurnSampled) and not trimmed:
            self._turns.setdefault(event.trial, []).append(event)
        self._finished |= isinstance(event, RunFinished)
        if isinstance(event, CriticInitialised | CriticUpdated):
            self._latest["critic"] = entry, event.state
        if isinstance(event, ActorInitialised | ActorUpdated):
            self._latest["actor"] = entry, event.state
        whole, record = True, b""
        for name, payload in payloads_of(event):
            what = f"{type(event).__name__}.{name}"
            if payload.inline is None and not self._blobs.has(payload.digest):
                whole = False
                if _needed(event) and not self._excerpt and not trimmed:
                    self._error(entry, f"{what}: blob {payload.digest} is missing; restore it from a copy of the run")
                else:
                    self._absent[what] += 1
                continue
            try:
                data = unpack(self._blobs, payload)
            except BlobError as error:
                whole = False
                self._error(entry, f"{what}: {error}")
                continue
            if name == "record":
                record = data
        if isinstance(event, TrajectoryAssembled) and whole and not trimmed:
            self._record(entry, event, record)

    def finish(self) -> list[Finding]:
        """What was found, and notes on what is kept no longer."""
        why = "not in this archive" if self._excerpt else "no longer kept (it can be computed again)"
        if self._first_step and not self._excerpt:
            why = f"no longer kept (it can be computed again from step {self._first_step} on)"
        notes = [
            Finding("note", "blobs", 0, f"{count} of {what} are {why}") for what, count in sorted(self._absent.items())
        ]
        if not self._finished and not self._excerpt:
            for part, (entry, state) in self._latest.items():
                if state.inline is None and not self._blobs.has(state.digest):
                    self._error(
                        entry,
                        f"the run cannot go on: the {part}'s latest state, blob {state.digest}, is missing; restore it from "
                        "a copy of the run",
                    )
        return [*self._findings, *notes]

    def _error(self, entry: Entry, message: str) -> None:
        self._findings.append(Finding("error", entry.frame.journal, entry.sequence, message))

    def _record(self, entry: Entry, event: TrajectoryAssembled, data: bytes | memoryview) -> None:
        try:
            if pages_in(data) != event.pages:
                raise RecordError("its routing lies in other pages than the event names")
            record = decode(data, self._blobs)
            ids, sampled = _counted(record)
        except (BlobError, RecordError) as error:
            self._error(entry, f"trajectory of trial {event.trial}: {error}")
            return
        if (record.trial, ids, sampled) != (event.trial, event.ids, event.sampled):
            message = (
                f"trial {record.trial} with {ids} ids, {sampled} sampled; the event says {event.ids}, {event.sampled}"
            )
            self._error(entry, f"trajectory of trial {event.trial}: {message}")
            return
        drawn = [_drawn(turn.sampled_ids, turn.logprobs) for turn in self._turns.pop(event.trial, [])]
        recorded = _sampled(record)
        if len(record.chunks) > 1:  # turns lie path after path, not in the order of their calls
            drawn, recorded = sorted(drawn), sorted(recorded)
        # Not strict: that there are as many of each is checked elsewhere.
        for place, (held, there) in enumerate(zip(chain(*recorded), chain(*drawn), strict=False)):
            if held != there:
                message = f"sampled token {place} is {held[0]} ({held[1]:g}), its turn has {there[0]} ({there[1]:g})"
                self._error(entry, f"trajectory of trial {event.trial}: {message}")
                return


def _drawn(ids: Iterable[int], logprobs: Iterable[float]) -> list[tuple[int, float32]]:
    return [(i, float32(q)) for i, q in zip(ids, logprobs, strict=False)]


def _sampled(record: TrajectoryRecord) -> list[list[tuple[int, float32]]]:
    """(id, log-prob) of every sampled token, turn by turn."""
    found: list[list[tuple[int, float32]]] = []
    for chunk in record.chunks:
        arrays = chunk.arrays()
        found += [_drawn(arrays.ids_N[a:b].tolist(), arrays.logprobs_N[a:b]) for a, b in chunk.turns]
    return found


def _counted(record: TrajectoryRecord) -> tuple[int, int]:
    """Ids and sampled ids of a record. Raises ``RecordError``, also unless rows = ids - 1 in every chunk."""
    ids = sampled = 0
    for number, chunk in enumerate(record.chunks):
        arrays = chunk.arrays()
        length = len(arrays.ids_N)
        if chunk.routing_shape[0] != length - 1:
            raise RecordError(
                f"chunk {number}: {chunk.routing_shape[0]} routing rows for {length} ids; must be ids - 1"
            )
        ids += length
        sampled += int(arrays.mask_N.sum())
    return ids, sampled


def _needed(event: AnyEvent) -> bool:
    return isinstance(event, TrajectoryAssembled | ActorInitialised | CriticInitialised)
