"""Rebuilds an actor from the journals: the same folds in the same order as its earlier incarnations did.

Every frame of the actor's own journal says which foreign events were applied, in which order, and how many own
events each decision emitted; nothing is decided here, nothing is written. Where a snapshot (``snapshots``) says what the
frames up to its own left, only those behind it are folded.

Guarantees: the state, the open intents, the vector and the reading positions are those that the last durable frame
left. An input that cannot be read again, or does not continue where the frame before stopped, is a ``RecoveryError``
that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from t1actors.events import PRIVATE_EVENTS, ActorStarted, AnyEvent, UnknownEvent, decode
from t1actors.log.interface import Frame, InputRun, JournalReader, Log, Snapshot, Truncated
from t1actors.runtime.errors import RecoveryError
from t1actors.runtime.intents import Intents
from t1actors.runtime.snapshots import behind, decode_content

SUPERVISOR = "supervisor"
"""The journal of the supervisor, which every actor reads."""


@dataclass
class Recovered:
    """``positions``: of every followed journal, the next sequence to apply. ``inputs``: how many foreign events were
    folded."""

    state: object
    intents: Intents
    positions: dict[str, int]
    vector: dict[str, int] = field(default_factory=dict[str, int])
    inputs: int = 0


def follows(actor: str, reads: frozenset[str], started: ActorStarted) -> bool:
    """Whether an actor that reads ``reads`` follows the journal that ``started`` makes known: replicas are named
    ``sampler``, ``sampler1``, ... and are read together. Nobody follows its own journal."""
    return started.journal != actor and (started.actor in reads or started.actor.rstrip("0123456789") in reads)


def recover(
    log: Log,
    *,
    name: str,
    epoch: int,
    initial: object,
    fold: Callable[[object, AnyEvent | UnknownEvent], object],
    reads: frozenset[str],
    intents: Intents,
    snapshot: Snapshot | None = None,
) -> Recovered:
    """Folds everything that the journal ``name`` holds, or what is behind ``snapshot``, whose frame it holds. Raises
    ``RecoveryError``, ``JournalDamaged``."""
    recovered = Recovered(initial, intents, {SUPERVISOR: 0})
    sources: dict[str, _Source] = {}
    own = log.open_reader(name, from_sequence=snapshot.base_sequence if snapshot is not None else 0)
    try:
        if snapshot is not None:
            _begin(recovered, snapshot, own, epoch)
        for frame in _frames(own):
            _apply(log, frame, recovered, sources, fold, reads, epoch)
            recovered.vector = frame.head.vector
    except Truncated as error:
        raise RecoveryError(
            f"actor {name} can only go on from a snapshot, because the log was trimmed, and has none that can be used "
            f"({error}). Resume from a copy of the run"
        ) from error
    finally:
        own.close()
        for source in sources.values():
            source.close()
    return recovered


def _begin(recovered: Recovered, snapshot: Snapshot, own: JournalReader, epoch: int) -> None:
    """As the frame of ``snapshot`` left it; ``own`` goes on behind that."""
    if not behind(own, snapshot):
        raise RecoveryError(
            f"journal {own.name}: the frame at {snapshot.base_sequence} of its snapshot cannot be read any more. "
            "`t1 log check` says more"
        )
    recovered.state, intents = decode_content(snapshot.content, recovered.state)
    for intent in intents:
        recovered.intents.reopen(
            intent.event,
            attempt=1 + epoch - intent.epoch,
            wall_ns=intent.wall_ns,
            cancel_requested=intent.cancel_requested,
        )
    recovered.positions = dict(snapshot.positions)
    recovered.vector = dict(snapshot.vector)


def _apply(
    log: Log,
    frame: Frame,
    recovered: Recovered,
    sources: dict[str, _Source],
    fold: Callable[[object, AnyEvent | UnknownEvent], object],
    reads: frozenset[str],
    epoch: int,
) -> None:
    name = frame.journal
    cursor = 0
    # An intent of this frame was first attempted, if at all, by the incarnation that wrote it.
    attempt = 1 + epoch - frame.epoch

    def fold_own(count: int) -> None:
        nonlocal cursor
        if cursor + count > len(frame.events):
            raise RecoveryError(
                f"journal {name}, frame at {frame.base_sequence}: its inputs name {cursor + count} own events and it "
                f"holds {len(frame.events)}; the journal was not written by this runtime. `t1 log check` says more"
            )
        for raw in frame.events[cursor : cursor + count]:
            event = decode(raw)
            recovered.intents.fold(event, attempt=attempt, wall_ns=frame.head.wall_ns)
            recovered.state = fold(recovered.state, event)
        cursor += count

    for run in frame.head.inputs:
        if run.journal == name:
            if run.first != frame.base_sequence + cursor:
                raise RecoveryError(
                    f"journal {name}, frame at {frame.base_sequence}: own results from {run.first} where "
                    f"{frame.base_sequence + cursor} is next. `t1 log check` says more"
                )
            fold_own(run.last - run.first + 1)
        else:
            source = sources.get(run.journal)
            if source is None:
                source = sources[run.journal] = _Source(log, run.journal, recovered.positions.get(run.journal, 0))
            for raw in source.take(run, name, frame.base_sequence):
                event = decode(raw)
                if isinstance(event, PRIVATE_EVENTS):
                    continue
                if run.journal == SUPERVISOR and isinstance(event, ActorStarted) and follows(name, reads, event):
                    recovered.positions.setdefault(event.journal, 0)
                recovered.state = fold(recovered.state, event)
            recovered.positions[run.journal] = run.last + 1
            recovered.inputs += run.last - run.first + 1
        fold_own(run.emitted)
    if cursor != len(frame.events):
        raise RecoveryError(
            f"journal {name}, frame at {frame.base_sequence}: {len(frame.events) - cursor} events belong to no input. "
            "`t1 log check` says more"
        )


class _Source:
    """A foreign journal, read once from ``position`` on in step with the own one."""

    def __init__(self, log: Log, journal: str, position: int) -> None:
        self._reader = log.open_reader(journal, from_sequence=position)
        self._journal = journal
        self._events = _events(self._reader, position)
        self._next = position

    def take(self, run: InputRun, actor: str, at: int) -> Iterator[bytes]:
        if run.first != self._next:
            raise RecoveryError(
                f"journal {actor}, frame at {at}: applies {self._journal} from {run.first} where {self._next} is next. "
                "`t1 log check` says more"
            )
        for sequence in range(run.first, run.last + 1):
            raw = next(self._events, None)
            if raw is None:
                raise RecoveryError(
                    f"journal {actor}, frame at {at}: event {sequence} of journal {self._journal} was applied and cannot "
                    f"be read again; that journal ends at {self._reader.next_sequence}. Restore it, or resume from a "
                    "copy of the run in which both are whole"
                )
            yield raw
        self._next = run.last + 1

    def close(self) -> None:
        self._reader.close()


def _frames(reader: JournalReader) -> Iterator[Frame]:
    while frames := reader.read():
        yield from frames


def _events(reader: JournalReader, position: int) -> Iterator[bytes]:
    for frame in _frames(reader):
        yield from frame.events[max(0, position - frame.base_sequence) :]
