"""Trimming a run: deleting what only old steps need, beginnings of journals and blobs.

Of the journals of the sampler and the pool whole segments go: they hold every turn of every trial, which is nearly all there
is. The others stay: they say what the run is, how each trial was graded and what each step came to, so that what was measured
is there for every step, and are small.

Guarantees:
- From ``TrimNote.first_step`` on every step stays replayable (``kept_steps``); the note is durable before anything goes, but
  for routing and, where the disk is too full for a note, states of old steps.
- No actor named in the log is kept from going on: a segment stays while it lies at or behind the reading position in the
  oldest snapshot that its actor could go on from, or at or behind the frame of its own. That holds for a replica that was
  given up, too: it goes on when the run is started again.
- A blob goes only when events of old steps are all that names it, and not while one may be about to; the routing of turns,
  which only waits to be in its trial's record, goes when its step is sealed. Blobs go before the segments that name them, so
  a trimming that was interrupted is ended by the next.
- Everything is flushed before anything goes, so no lost machine takes the run back to where it would be needed.
- Readers that are no actors hold nothing back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from t1actors.actors.trials import step_of_trial
from t1actors.events import (
    PRIVATE_EVENTS,
    ActorInitialised,
    ActorStarted,
    AnyEvent,
    CriticInitialised,
    ReplicaReclaimed,
    RunFinished,
    RunStarted,
    StepOpened,
    TurnSampled,
    UnknownEvent,
    WeightsOffered,
    decode,
)
from t1actors.log.blobs import FileBlobs, sync_file_system
from t1actors.log.filelog import FileLog
from t1actors.log.interface import JournalReader, Snapshot
from t1actors.log.sweep import digests_in
from t1actors.log.trim import Beginning, Mark, begin_at, beginning_of
from t1actors.log.trimmed import trimmed_of
from t1actors.payloads import payloads_of
from t1actors.runtime.kept_steps import Kept, Steps
from t1actors.runtime.recovery import SUPERVISOR
from t1actors.runtime.snapshots import overtaken, unfounded
from t1actors.runtime.trim_note import FULL, TrimNote, trim_note, write_trim_note

PUBLISHER = "publisher"
OF_TURNS = frozenset({"sampler", "pool"})
"""Actors whose journals can be trimmed; replicas are named ``sampler1`` and so on."""
_STATES = frozenset({"state", "weights"})
_FOR_EVER = 2**62
"""Named by something that is of no step."""


@dataclass(frozen=True)
class Plan:
    """What a trimming deletes. ``held``: journals of which nothing more can go yet although it is old enough, and why;
    ``given_up``: those for whose sake that is so and who go on no sooner than the run is started again."""

    note: TrimNote
    last_step: int | None
    beginnings: dict[str, Beginning]
    blobs: tuple[str, ...]
    blob_bytes: int
    held: dict[str, str]
    given_up: tuple[str, ...] = ()

    @property
    def segment_bytes(self) -> int:
        return sum(beginning.size_bytes for beginning in self.beginnings.values())

    @property
    def empty(self) -> bool:
        return not self.blobs and not self.segment_bytes


@dataclass
class Trimmer:
    """Knows the run's log as far as it has read it; ``plan`` reads on, ``carry_out`` deletes. For one task at a time.
    ``recent_s``: blobs that were put within so many seconds stay for now. Of a run that goes on, a blob may just have been
    put again, the same bytes as long ago, and the event that names it is still to come. ``at_rest``: nobody runs the run, so
    once it is finished no actor of it goes on."""

    run_dir: Path
    recent_s: float = 0.0
    at_rest: bool = False
    _steps: Steps = field(default_factory=Steps)
    _named: dict[str, int] = field(default_factory=dict[str, int])
    """Blob -> the newest step that an event of names it."""
    _volatile: dict[str, int] = field(default_factory=dict[str, int])
    """The same of blobs that turns name."""
    _opened_at: dict[int, int] = field(default_factory=dict[int, int])
    """Step -> the sequence of its StepOpened."""
    _started_at: dict[str, int] = field(default_factory=dict[str, int])
    """Journal -> the sequence of the first ActorStarted that names it."""
    _session: int = 0
    _given_up: dict[str, int] = field(default_factory=dict[str, int])
    """Replica -> the last session in which it was given up."""
    _finished: bool = False
    _founded: set[tuple[str, int, bytes]] = field(default_factory=set[tuple[str, int, bytes]])
    """Snapshots of which the journals hold everything: that stays so, for journals are cut at rest only."""
    _readers: dict[str, JournalReader] = field(default_factory=dict[str, JournalReader])

    def __post_init__(self) -> None:
        self._log = FileLog(self.run_dir / "log")
        self._blobs = FileBlobs(self.run_dir / "blobs")

    def close(self) -> None:
        """Close the readers."""
        for reader in self._readers.values():
            reader.close()

    def plan(self, count: int) -> Plan:
        """What can go when the last ``count`` finished steps must stay replayable. Raises ``LogError``, ``OSError``."""
        self._read_on()
        before = trim_note(self.run_dir)
        kept = self._steps.kept(count, replayable=before.first_step, since=before.kept_step)
        note = TrimNote(first_step=kept.first_step, kept_step=kept.kept_step, steps=count)
        last = max(self._steps.opened, default=None)
        if kept.kept_step not in self._opened_at or not kept.kept_step:
            return Plan(before, last, {}, (), 0, {})
        blobs = tuple(sorted(self._unneeded(kept)))
        size = sum(self._blobs.size(digest) for digest in blobs)
        beginnings: dict[str, Beginning] = {}
        held: dict[str, str] = {}
        given_up: set[str] = set()
        mark = Mark(PUBLISHER, self._opened_at[kept.kept_step])
        # A replica may have been given up before it had a journal.
        actors = {*self._log.journals(), *self._given_up} - {SUPERVISOR}
        snapshots = {name: self._usable(name) for name in sorted(actors)}
        for name in self._log.journals():
            if name.rstrip("0123456789") not in OF_TURNS:
                continue
            bound, holder = self._bound(name, snapshots)
            beginning = beginning_of(self._log.directory(name), before=bound, mark=mark)
            if beginning.size_bytes:
                beginnings[name] = beginning
            wanted = beginning_of(self._log.directory(name), before=_FOR_EVER, mark=mark)
            if wanted.trimmed.first_segment > beginning.trimmed.first_segment:
                held[name] = self._why(holder, snapshots[holder])
                given_up |= {holder} & self._away()
        return Plan(note, last, beginnings, blobs, size, held, tuple(sorted(given_up)))

    def carry_out(self, plan: Plan) -> None:
        """Delete. Raises ``OSError``: doing it again goes on."""
        if not plan.empty:
            # Volatile blobs; with log_durability = "process" also the snapshots, and the frames that they are of.
            sync_file_system(self.run_dir)
            # This needs no note, and on a full disk makes room for it.
            self._delete(digest for digest in plan.blobs if digest in self._volatile and digest not in self._named)
            self._write_note(plan)
        self._delete(plan.blobs)
        for name, beginning in plan.beginnings.items():
            begin_at(self._log.directory(name), beginning.trimmed)

    def _write_note(self, plan: Plan) -> None:
        """On a disk that is full a state goes for it, without which old steps do not replay: nothing else misses it."""
        ever = {payload.digest for step in self._steps.opened for payload in self._steps.states_of(step)}
        states = [digest for digest in plan.blobs if digest in ever and digest not in self._named]
        while True:
            try:
                return write_trim_note(self.run_dir, plan.note)
            except OSError as error:
                if error.errno not in FULL or not states:
                    raise
            self._delete([states.pop()])

    def _delete(self, digests: Iterable[str]) -> None:
        for digest in digests:
            if self._old_enough(digest):
                self._blobs.delete(digest)
                self._named.pop(digest, None)
                self._volatile.pop(digest, None)

    # --- what must stay ---------------------------------------------------------------------------------------------------

    def _bound(self, name: str, snapshots: dict[str, list[Snapshot]]) -> tuple[int, str]:
        """The first sequence of the journal that an actor still needs in order to go on, and which actor that is."""
        if self._finished and self.at_rest:
            return _FOR_EVER, ""
        started = self._started_at.get(name, -1)
        bounds: list[tuple[int, str]] = []
        for actor, kept in snapshots.items():
            if not kept:
                bounds.append((0, actor))
            elif actor == name:
                bounds.append((kept[-1].base_sequence, actor))
            elif name in kept[-1].positions:
                bounds.append((kept[-1].positions[name], actor))
            elif kept[-1].positions.get(SUPERVISOR, 0) <= started:
                bounds.append((0, actor))  # it may yet learn of the journal, and reads it from the start then
        return min(bounds)

    def _why(self, actor: str, kept: list[Snapshot]) -> str:
        """Why what the actor needs stays, and what to do about it."""
        place = f"its snapshot at event {kept[-1].next_sequence:,}" if kept else "the beginning, having no snapshot,"
        if actor in self._away():
            return (
                f"replica {actor} was given up in session {self._given_up[actor]} and goes on from {place} when the run is "
                "started again: resume it (`t1 run --resume`), and this can go when the replica has two newer snapshots"
            )
        if kept:
            return f"actor {actor} goes on from {place}"
        none = f"actor {actor} has no snapshot yet that it could go on from"
        return f"{none} (run.snapshot_events; one is made at a clean stop)"

    def _away(self) -> set[str]:
        """Replicas that run no more in this session, the last one if the run is at rest."""
        return {replica for replica, session in self._given_up.items() if session == self._session}

    def _usable(self, name: str) -> list[Snapshot]:
        """The snapshots that recovery could begin with, the newest first; whether the code fits is not known here."""
        found: list[Snapshot] = []
        for snapshot in self._log.snapshots(name):
            key = (name, snapshot.next_sequence, snapshot.last_frame)
            if overtaken(self._log, snapshot) or (key not in self._founded and unfounded(self._log, name, snapshot)):
                continue
            self._founded.add(key)
            found.append(snapshot)
        return found

    def _unneeded(self, kept: Kept) -> Iterator[str]:
        first = kept.kept_step
        for digest, step in self._named.items():
            if step < first and not self._in_play(digest) and self._old_enough(digest):
                yield digest
        for digest in self._volatile:
            if digest not in self._named and not self._in_play(digest) and self._old_enough(digest):
                yield digest
        stays = {
            p.digest for step in range(first, _end(self._steps)) for p in self._steps.states_of(step)
        } | kept.states
        for step in range(first):
            for payload in self._steps.states_of(step):
                if payload.inline is None and payload.digest not in stays and self._old_enough(payload.digest):
                    yield payload.digest

    def _in_play(self, digest: str) -> bool:
        """Whether a turn of a step that is not sealed yet names it."""
        step = self._volatile.get(digest)
        return step is not None and step not in self._steps.sealed

    def _old_enough(self, digest: str) -> bool:
        return self._blobs.put_before(digest, time.time() - self.recent_s)

    # --- reading ----------------------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        for name in self._log.journals():
            reader = self._readers.get(name)
            if reader is None:
                start = trimmed_of(self._log.directory(name)).first_sequence
                reader = self._readers[name] = self._log.open_reader(name, from_sequence=start)
            while frames := reader.read():
                for frame in frames:
                    for sequence, raw in enumerate(frame.events, frame.base_sequence):
                        event = decode(raw)
                        if not isinstance(event, PRIVATE_EVENTS):
                            self._note(name, sequence, event, raw)

    def _note(self, journal: str, sequence: int, event: AnyEvent | UnknownEvent, raw: bytes) -> None:
        self._steps.fold(event)
        match event:
            case StepOpened():
                self._opened_at[event.step] = sequence
            case ActorStarted():
                self._started_at.setdefault(event.journal, sequence)
            case RunStarted():
                self._session = event.session
            case ReplicaReclaimed():
                self._given_up[event.replica] = self._session
            case RunFinished():
                self._finished = True
            case UnknownEvent():  # of a newer version: who knows what it names, and for how long
                self._named.update((digest, _FOR_EVER) for digest in digests_in(raw))
            case _:
                pass
        step = step_of(event)
        for field_name, payload in payloads_of(event):
            if payload.inline is None and not _is_state(event, field_name):
                named = self._volatile if isinstance(event, TurnSampled) else self._named
                named[payload.digest] = max(step, named.get(payload.digest, -1))


def step_of(event: AnyEvent | UnknownEvent) -> int:
    """The step that the event is of: its own, or its trial's; a number above all steps when it is of none."""
    step = getattr(event, "step", None)
    if isinstance(step, int):
        return step
    try:
        return step_of_trial(getattr(event, "trial", ""))
    except ValueError:
        return _FOR_EVER


def _is_state(event: AnyEvent | UnknownEvent, name: str) -> bool:
    """States have rules of their own (``Kept.states``)."""
    return name in _STATES or isinstance(event, ActorInitialised | CriticInitialised | WeightsOffered)


def _end(steps: Steps) -> int:
    return max(steps.opened, default=-1) + 1
