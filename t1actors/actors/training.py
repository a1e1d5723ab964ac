"""What the critic and the actor share: the batch from the log, states by digest, and which old states may go.

Guarantees: a batch is built from the recorded trajectories alone, in trial-index order, and has the digest that BatchSealed
states; a state is taken from memory only when it is the one the log names; every state at a multiple of ``snapshot_every``
training steps stays, and the two latest besides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from t1actors.events import BatchSealed, Payload, Purpose, StepOpened, TrajectoryAssembled
from t1actors.payloads import Blobs
from t1actors.tito.record import Geometry
from t1actors.tito.stored import load
from t1actors.train.batch import Batch
from t1actors.train.errors import BatchError

KEPT_LATEST = 2
"""States kept besides the snapshots: the one a restart needs, and the one before it."""
SWEEPS = 2
"""How many sweeps see a step whose blobs may go before it is forgotten."""


@dataclass
class BatchLog:
    """What is known of the steps whose batch is still needed."""

    opened: dict[int, StepOpened] = field(default_factory=dict[int, StepOpened])
    trajectories: dict[int, dict[str, TrajectoryAssembled]] = field(
        default_factory=dict[int, dict[str, TrajectoryAssembled]]
    )
    sealed: dict[int, BatchSealed] = field(default_factory=dict[int, BatchSealed])

    def fold(self, event: StepOpened | TrajectoryAssembled | BatchSealed) -> None:
        """Note an event of a step that is still to be trained."""
        match event:
            case StepOpened():
                self.opened[event.step] = event
                if event.purpose != "evaluate":
                    self.trajectories[event.step] = {}
            case TrajectoryAssembled():
                if event.step in self.trajectories:
                    self.trajectories[event.step][event.trial] = event
            case BatchSealed():
                if event.step in self.trajectories:
                    self.sealed[event.step] = event

    def purpose(self, step: int) -> Purpose:
        """What ``step`` is for."""
        return self.opened[step].purpose

    def forget(self, step: int) -> None:
        """The step is trained: its batch is not needed any more."""
        self.trajectories.pop(step, None)
        self.sealed.pop(step, None)


def build_batch(log: BatchLog, step: int, geometry: Geometry, blobs: Blobs) -> Batch:
    """The step's batch. Raises ``BatchError``, ``BlobError``, ``RecordError``."""
    sealed = log.sealed[step]
    held = log.trajectories[step]
    items = [(load(blobs, held[i.trial].record), i.reward) for i in sealed.items]
    batch = Batch.of(items, geometry)
    if batch.digest != sealed.digest:
        raise BatchError(
            f"step {step}: the recorded trajectories have batch digest {batch.digest[:16]}…, "
            f"BatchSealed states {sealed.digest[:16]}…; run `t1 log check`"
        )
    return batch


@dataclass(frozen=True)
class Written:
    """The blobs of one step: the trainer's state, and the weights that it published."""

    state: Payload
    weights: Payload | None
    snapshot: bool

    def payloads(self) -> list[Payload]:
        """Both, or the state alone."""
        return [self.state] if self.weights is None else [self.state, self.weights]


@dataclass
class Retention:
    """Blobs that one part of the trainer wrote, and which of them may be deleted.

    Of the step before a snapshot the weights stay too: at staleness 1 they sampled the batch of the step after it, and
    without them its replay would have to begin at the snapshot before, and so on to the run's start.

    A step is forgotten when two sweeps have seen it that could delete what it wrote: the second deletes again what a lost
    machine brought back. What stays of it is noted by digest, for a later step may have written the same bytes.
    """

    written: list[Written] = field(default_factory=list[Written])
    """By the last steps, oldest first."""
    stays: set[str] = field(default_factory=set[str])
    """Digests of what stays for ever of earlier ones."""

    def add(self, state: Payload, weights: Payload | None = None, *, snapshot: bool) -> None:
        """Note what a step wrote, after its event: the sweep before it is done."""
        self.written.append(Written(state, weights, snapshot))
        while len(self.written) > KEPT_LATEST + SWEEPS:
            one, following = self.written[:2]
            self.stays |= _blobs_of(_for_ever(one, following))
            del self.written[0]

    def sweep(self, blobs: Blobs) -> None:
        """Delete what is neither a snapshot's, nor its replay's, nor the latest's. Idempotent, also across a restart; changes
        nothing of what is noted, which is the log's to say. First all is flushed that the log rests on: no lost machine takes
        the run back to where it would need what is deleted here."""
        written = list(self.written)
        first = max(0, len(written) - KEPT_LATEST)
        old, latest = written[:first], written[first:]
        stays = self.stays.union(*(_blobs_of(one.payloads()) for one in latest))
        for one, following in zip(old, [*written[1:], None], strict=False):
            stays |= _blobs_of(_for_ever(one, following))
        named = [payload.digest for one in old for payload in one.payloads() if payload.inline is None]
        gone = [digest for digest in dict.fromkeys(named) if digest not in stays and blobs.has(digest)]
        if gone:
            blobs.flush()
        for digest in gone:
            blobs.delete(digest)


def _for_ever(one: Written, following: Written | None) -> list[Payload]:
    """What stays of a step for the sake of replays."""
    if one.snapshot:
        return one.payloads()
    before = following is not None and following.snapshot
    return [one.weights] if before and one.weights is not None else []


def _blobs_of(payloads: Iterable[Payload]) -> set[str]:
    return {payload.digest for payload in payloads if payload.inline is None}


def snapshot_due(trained_before: int, every: int) -> bool:
    """Whether the state after the step is a snapshot; ``trained_before`` steps of this part came before it."""
    return (trained_before + 1) % every == 0
