"""What a snapshot of an actor holds, and which snapshot a recovery may begin with.

A snapshot is what folding the journals would give, as it was after one durable frame: the state and the open intents (here,
as MessagePack), the reading positions and the vector (``log.snapshots``). As long as the journals are whole it saves time and
nothing else; once their beginnings were deleted it is where recovery begins.

Guarantees: a snapshot is used only when its frame is in the journal; while everything could still be folded from the start,
only one that this very code wrote (a changed ``fold`` is then folded anew); when it cannot, also another code's, if its state
has the same form. Forms are compared by the schema of the state's type, without its comments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import cast

import msgspec
from blake3 import blake3

from t1actors.events import EffectIntended
from t1actors.log.interface import Frame, JournalReader, Log, Snapshot, Truncated
from t1actors.runtime.errors import HostError, RecoveryError
from t1actors.runtime.intents import Intent, Intents


@dataclasses.dataclass(frozen=True)
class Taken:
    """An actor at the end of a frame that is not durable yet: what changes afterwards is encoded or copied."""

    state: bytes
    positions: dict[str, int]
    intents: list[tuple[Intent, bool]]
    """Each with whether its cancelling had been asked for."""

    @classmethod
    def now(cls, state: object, positions: Mapping[str, int], intents: Intents) -> Taken:
        """Of an actor whose every input and output is in its ledger's last frame. The caller has checked ``form_of``."""
        marked = [(intent, intent.cancel_requested) for intent in intents.all()]
        return cls(_encoder.encode(state), dict(positions), marked)

    def content(self, *, epoch: int) -> bytes:
        """``Snapshot.content``, once the frame is durable, written by the incarnation ``epoch``."""
        held = [
            HeldIntent(
                event=intent.event,
                epoch=epoch + 1 - intent.attempt,
                wall_ns=intent.intended_wall_ns,
                cancel_requested=cancelled,
            )
            for intent, cancelled in self.intents
        ]
        return _encoder.encode(_Content(state=msgspec.Raw(self.state), intents=held))


class HeldIntent(msgspec.Struct, frozen=True, kw_only=True):
    """An open effect. ``epoch`` is that of the incarnation that meant it; ``wall_ns`` when its intent was committed."""

    event: EffectIntended
    epoch: int
    wall_ns: int
    cancel_requested: bool


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    state: msgspec.Raw
    intents: list[HeldIntent]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Content)


def form_of(state: object) -> str:
    """A digest of the type of ``state``: which fields of which types it has, at any depth. Raises ``HostError`` when that
    does not say how to read it."""
    kind = type(state)
    if kind in (list, dict, set, tuple):  # of what?
        raise HostError(f"a state of type {kind.__name__} does not say what it holds: make it a dataclass")
    try:
        schema = _without_comments(msgspec.json.schema(kind))
    except TypeError as error:
        raise HostError(f"a state of type {kind.__name__} is not data: {error}") from error
    return blake3(msgspec.json.encode(schema, order="deterministic")).hexdigest()[:32]


def decode_content(content: bytes, initial: object) -> tuple[object, list[HeldIntent]]:
    """The state and the open intents. ``initial``, of the same type, takes the values on where it is a dataclass that can be
    changed: an actor may keep that object and look at it while it performs. Raises ``msgspec.DecodeError``."""
    held = _decoder.decode(content)
    state = msgspec.msgpack.decode(held.state, type=type(initial))
    if dataclasses.is_dataclass(initial) and not isinstance(initial, type):
        for field in dataclasses.fields(initial):
            setattr(initial, field.name, getattr(state, field.name))
        return initial, held.intents
    return state, held.intents


def beginning(log: Log, name: str, *, code: str, form: str) -> Snapshot | None:
    """The newest snapshot that recovery may begin with; None: fold from the start. Raises ``RecoveryError`` when there is
    none and the start is gone, ``JournalDamaged``."""
    gone = [journal for journal in log.journals() if log.kept_from(journal)]
    refused: list[str] = []
    for snapshot in log.snapshots(name):
        what = f"the one at event {snapshot.next_sequence:,}"
        if snapshot.code != code and not gone:
            refused.append(f"{what} was written by the code version {snapshot.code}")
        elif snapshot.shape != form:
            refused.append(f"{what} has a state of another form, by the code version {snapshot.code}")
        elif unfit := overtaken(log, snapshot) or unfounded(log, name, snapshot):
            refused.append(f"{what} {unfit}")
        else:
            return snapshot
    if log.kept_from(name) == 0:
        return None
    reasons = "; ".join(refused) or "there is none"
    raise RecoveryError(
        f"journal {name} is kept from event {log.kept_from(name):,} on, so its actor can only go on from a snapshot, and "
        f"none can be used: {reasons}. Resume with the code version that wrote it, or from a copy of the run"
    )


def overtaken(log: Log, snapshot: Snapshot) -> str:
    """Why recovery could not read on from where the snapshot's actor was, or nothing. Raises ``JournalDamaged``."""
    starts = {journal: log.kept_from(journal) for journal in log.journals()}
    if any(snapshot.positions.get(journal, start) < start for journal, start in starts.items()):
        return "is older than what other journals still have"
    return ""


def unfounded(log: Log, name: str, snapshot: Snapshot) -> str:
    """Why the snapshot is of something that the journals do not hold (they were cut back since), or nothing. Raises
    ``JournalDamaged``."""
    if not _in_journal(log, name, snapshot):
        return "is of a frame that the journal does not have"
    shorter = next((j for j, n in snapshot.positions.items() if not _reaches(log, j, n)), "")
    return f"has read more of journal {shorter} than there is" if shorter else ""


def stranded(log: Log, follows: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """The actors that could not go on: beginnings of what they read were deleted, and no snapshot that they have fits what is
    there; with why not, of each whole one. ``follows``: by actor, journals that it is known to read, beside those that its
    snapshots name. Whether a state's form fits the code is not known here. The run may be going on. Raises
    ``JournalDamaged``."""
    gone = {journal for journal in log.journals() if log.kept_from(journal)}
    found: dict[str, list[str]] = {}
    for name in log.journals() if gone else ():
        followed = {name, *follows.get(name, ())}.union(*(snapshot.positions for snapshot in log.snapshots(name)))
        reasons = _refused(log, name) if followed & gone else None
        if reasons is not None:
            found[name] = reasons
    return found


def _refused(log: Log, name: str) -> list[str] | None:
    """Why not, of each snapshot; None when one could be used."""
    snapshots = log.snapshots(name)
    while True:
        reasons: list[str] = []
        for snapshot in snapshots:
            try:
                unfit = overtaken(log, snapshot) or unfounded(log, name, snapshot)
            except Truncated as error:
                unfit = f"needs what was deleted ({error})"
            if not unfit:
                return None
            reasons.append(f"the one at event {snapshot.next_sequence:,} {unfit}")
        before, snapshots = snapshots, log.snapshots(name)
        if snapshots == before:  # else the run goes on, and what was looked at went because there are others now
            return reasons


def behind(reader: JournalReader, snapshot: Snapshot) -> bool:
    """Move ``reader``, opened at the snapshot's ``base_sequence``, behind its frame; False: that is not in the journal."""
    while frames := reader.read(max_frames=1):
        if reader.last_digest() == snapshot.last_frame:
            return True
        if _past(frames[0], snapshot):
            return False
    return False


def _past(frame: Frame, snapshot: Snapshot) -> bool:
    return frame.base_sequence > snapshot.base_sequence


def _in_journal(log: Log, name: str, snapshot: Snapshot) -> bool:
    if snapshot.base_sequence < log.kept_from(name):
        return False
    reader = log.open_reader(name, from_sequence=snapshot.base_sequence)
    try:
        return behind(reader, snapshot)
    finally:
        reader.close()


def _reaches(log: Log, journal: str, position: int) -> bool:
    """Whether the journal holds, or held before it was trimmed, all events before ``position``."""
    if position <= log.kept_from(journal):
        return True
    reader = log.open_reader(journal, from_sequence=position - 1)
    try:
        while frames := reader.read(max_frames=1):  # the first ones may hold no event
            if frames[0].next_sequence >= position:
                return True
        return False
    finally:
        reader.close()


def _without_comments(schema: object) -> object:
    match schema:
        case dict():
            entries = cast("dict[str, object]", schema)
            return {k: _without_comments(v) for k, v in entries.items() if k != "description" or not isinstance(v, str)}
        case list():
            return [_without_comments(entry) for entry in cast("list[object]", schema)]
        case _:
            return schema
