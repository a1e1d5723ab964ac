"""What recovery rebuilds, made comparable; and snapshots as a host would have taken them at any frame."""

import dataclasses

import msgspec

from t1actors.log.interface import Snapshot
from t1actors.runtime.intents import Intents
from t1actors.runtime.recovery import recover
from t1actors.runtime.snapshots import Taken, form_of


def plain(value):
    """``value`` as lists and plain values; the order of dicts counts (somebody may iterate), that of sets does not."""
    if dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else msgspec.structs.fields(type(value))
        return [type(value).__name__, *((f.name, plain(getattr(value, f.name))) for f in fields)]
    if isinstance(value, dict):
        return [(plain(k), plain(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, set):
        return sorted(map(repr, value))
    return value


def rebuilt(recovered):
    """Everything that two recoveries must agree on."""
    intents = [(i.event, i.attempt, i.intended_wall_ns, i.cancel_requested) for i in recovered.intents.all()]
    return plain(recovered.state), plain(intents), recovered.positions, recovered.vector


class Prefix:
    """A log of whose journal ``name`` only the first ``frames`` are there."""

    def __init__(self, log, name, frames):
        self.log, self.name, self.frames = log, name, frames

    def __getattr__(self, name):
        return getattr(self.log, name)

    def open_reader(self, name, *, from_sequence=0):
        reader = self.log.open_reader(name, from_sequence=from_sequence)
        if name == self.name:
            left = [self.frames]
            read = reader.read

            def limited(**_):
                left[0] -= 1
                return read(max_frames=1) if left[0] >= 0 else []

            reader.read = limited
        return reader


def recovered_by(log, name, actor, *, epoch, snapshot=None):
    return recover(
        log,
        name=name,
        epoch=epoch,
        initial=actor.initial(),
        fold=actor.fold,
        reads=actor.reads,
        intents=Intents(name, actor.effect_type),
        snapshot=snapshot,
    )


def taken_after(log, name, actor, frames, *, code=""):
    """The snapshot of ``name`` after so many of its frames, by a recovery that saw no more."""
    reader = log.open_reader(name)
    for _ in range(frames):
        [frame] = reader.read(max_frames=1)
    digest = reader.last_digest()
    reader.close()
    found = recovered_by(Prefix(log, name, frames), name, actor, epoch=frame.epoch)
    return Snapshot(
        base_sequence=frame.base_sequence,
        next_sequence=frame.next_sequence,
        last_frame=digest,
        code=code,
        shape=form_of(found.state),
        positions=found.positions,
        vector=found.vector,
        content=Taken.now(found.state, found.positions, found.intents).content(epoch=frame.epoch),
    )


def frame_count(log, name):
    reader = log.open_reader(name)
    count = 0
    while frames := reader.read():
        count += len(frames)
    reader.close()
    return count
