"""What a run's start does about a machine that was lost.

Under ``log_durability = "process"`` nothing was flushed: journals may end unevenly, anywhere, and blobs may be empty under
their names. What fits together stays, the rest is set aside (``log.aside``), and what was done after the cut is done again.
Under ``"machine"`` nothing acknowledged can be missing: what is missing is damage, and opening the journal says so. But
durable ends are not flushed and may lag until their journals are opened, and an actor must not read a journal that its own
rests on before that: so all are opened first.

Only volatile blobs (``runtime.volatile``) are lost under either. A turn whose routing is gone, of a trial that may still be
assembled, cannot stand: the journals are cut to before it, and it is sampled again, with the same seed. Nothing is cut for
the routing of other trials.

Guarantees: nothing is touched while the machine has stayed up since the journals were written, whatever died on it. Under
``"machine"`` a cut for a lost turn goes back behind no snapshot and to no state that is kept no longer: whoever deletes an
older one has flushed everything before (``log.snapshots``, ``actors.training``, ``runtime.trimming``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from t1actors.events import (
    ActorInitialised,
    ActorUpdated,
    CriticInitialised,
    CriticUpdated,
    JournalCut,
    Payload,
    TrajectoryAssembled,
    TurnSampled,
    decode,
)
from t1actors.log.aside import Aside, asides_of, look_through, set_aside
from t1actors.log.blobs import FileBlobs
from t1actors.log.file_writer import Durability
from t1actors.log.filelog import FileLog
from t1actors.log.frame import Frame
from t1actors.log.lock import last_holder
from t1actors.payloads import BlobError, Blobs, payloads_of
from t1actors.runtime.trim_note import trim_note
from t1actors.runtime.volatile import NamedBlobs


def settle_after_loss(run_dir: Path, boot_id: str, durability: Durability) -> None:
    """If the journals of the run were last written in another boot than ``boot_id``, make what is durable readable; where
    something was not flushed, cut them to what fits together and take damaged blobs out of the way. Raises
    ``JournalFenced``, ``JournalDamaged``, ``JournalFailed``, ``OSError``."""
    root, blobs = run_dir / "log", FileBlobs(run_dir / "blobs")
    if not root.is_dir():
        return
    holders = {path.name: last_holder(path) for path in sorted(root.iterdir()) if path.is_dir()}
    opened = {name: holder for name, holder in holders.items() if holder.epoch}
    if all(holder.boot_id == boot_id for holder in opened.values()):
        return
    log = FileLog(root)
    if durability == "process":
        kept_step = trim_note(run_dir).kept_step
        set_aside(root, objection=objection(blobs, kept_step=kept_step), ground=Grounds(blobs))
    while objects := _objection_to_lost_turns(root, blobs):
        cut = look_through(root, objects)
        for name in sorted(opened.keys() - cut):  # what is wrong with these is not the turns' fault, and said as ever
            log.open_writer(name).close()
        set_aside(root, objection=objects, ground=Grounds(blobs))
    named = _named(root)
    done_with = named.done_with()
    for digest in list(blobs.digests()):
        if digest in done_with:
            blobs.delete(digest)
        elif (durability == "process" or digest not in named.durable) and not _whole(blobs, digest):
            # Nobody that stands names it; under its own name it would be an error for ever.
            os.rename(blobs.path(digest), blobs.path(digest).with_name(f".damaged-{digest}"))
    for name in opened:  # which notes that this boot has seen to it
        log.open_writer(name).close()


def cut_lost_turns(root: Path, blobs: Blobs) -> list[Aside]:
    """Cut journals that fit together to before the turns whose routing is gone, of trials that may still be assembled; what
    was set aside. Raises ``JournalFenced``, ``JournalDamaged``, ``OSError``."""
    asides: list[Aside] = []
    while objects := _objection_to_lost_turns(root, blobs):
        asides += set_aside(root, objection=objects, ground=Grounds(blobs))
    return asides


def _objection_to_lost_turns(root: Path, blobs: Blobs) -> Callable[[Frame], str] | None:
    """None: no turn is lost. To be asked again after a cut: it may take a trial's assembling, and then its turns are needed
    again."""
    lost = {digest for digest in _named(root).needed() if not _whole(blobs, digest)}
    return _objection_to_turns(lost) if lost else None


def _named(root: Path) -> NamedBlobs:
    named = NamedBlobs()

    def note(frame: Frame) -> str:
        for event in map(decode, frame.events):
            named.fold(event)
        return ""

    look_through(root, note)
    return named


def _objection_to_turns(lost: Collection[str]) -> Callable[[Frame], str]:
    """To a frame with a turn whose routing is one of these blobs."""

    def objected(frame: Frame) -> str:
        for event in map(decode, frame.events):
            if (
                isinstance(event, TurnSampled)
                and event.routing.data.inline is None
                and event.routing.data.digest in lost
            ):
                turn = f"turn {event.turn} of trial {event.trial}"
                return f"TurnSampled.routing: blob {event.routing.data.digest[:16]}… of {turn} is damaged or missing"
        return ""

    return objected


def cuts_of(run_dir: Path) -> list[JournalCut]:
    """What was ever cut off the run's journals, as events."""
    root = run_dir / "log"
    return [
        JournalCut(
            journal=aside.journal,
            from_sequence=aside.from_sequence,
            events=aside.events,
            size_bytes=aside.size_bytes,
            path=str(aside.path(root).relative_to(run_dir)),
            reason=aside.reason,
        )
        for aside in asides_of(root)
    ]


def objection(blobs: Blobs, *, kept_step: int = 0) -> Callable[[Frame], str]:
    """Whether a frame names a trajectory of which a blob (its record, a page) is damaged or missing, or another blob that is
    damaged. What an actor goes on from is left to ``Grounds``: of all those blobs only the last are needed; turns' routing
    is volatile, and a matter of its own; and of a trimmed run trajectories of steps before ``kept_step`` are missing on
    purpose."""

    def objected(frame: Frame) -> str:
        for event in map(decode, frame.events):
            if isinstance(event, (*GROUNDS, TurnSampled)):
                continue
            for name, payload in payloads_of(event):
                trajectory = isinstance(event, TrajectoryAssembled) and event.step >= kept_step
                needed = trajectory or blobs.has(payload.digest)
                if payload.inline is None and needed and not _whole(blobs, payload.digest):
                    return f"{type(event).__name__}.{name}: blob {payload.digest[:16]}… is damaged or missing"
        return ""

    return objected


GROUNDS = (ActorInitialised, ActorUpdated, CriticInitialised, CriticUpdated)
"""Events from whose states the critic and the actor go on."""


class Grounds:
    """For ``log.aside.set_aside``: whether the state that a frame records is still there, and, of the actor, the weights
    that it and the update before it published: the batch after it was sampled by those (staleness 1)."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._weights_before: list[Payload] = []

    def __call__(self, frame: Frame) -> bool | None:
        found: bool | None = None
        for event in map(decode, frame.events):
            if not isinstance(event, GROUNDS):
                continue
            needs = [event.state]
            if isinstance(event, ActorInitialised | ActorUpdated):
                needs += [event.weights, *self._weights_before]
                self._weights_before = [event.weights]
            found = all(payload.inline is not None or _whole(self._blobs, payload.digest) for payload in needs)
        return found


def _whole(blobs: Blobs, digest: str) -> bool:
    try:
        blobs.get(digest)
    except BlobError:
        return False
    return True
