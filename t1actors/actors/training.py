"""What the critic and the actor share: the batch from the log, states by digest, and which old states may go.

Guarantees: a batch is built from the recorded trajectories alone, in trial-index order, and has the digest that BatchSealed
states; a state is taken from memory only when it is the one the log names; every state at a multiple of ``snapshot_every``
training steps stays, and the two latest besides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from t1actors.events import BatchSealed, Payload, Purpose, StepOpened, TrajectoryAssembled
from t1actors.payloads import Blobs
from t1actors.tito.record import Geometry
from t1actors.tito.stored import load
from t1actors.train.batch import Batch
from t1actors.train.errors import BatchError

KEPT_LATEST = 2
"""States kept besides the snapshots: the one a restart needs, and the one before it."""


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
    """Blobs that one part of the trainer wrote, oldest first, and which of them may be deleted.

    Of the step before a snapshot the weights stay too: at staleness 1 they sampled the batch of the step after it, and
    without them its replay would have to begin at the snapshot before, and so on to the run's start.
    """

    written: list[Written] = field(default_factory=list[Written])

    def add(self, state: Payload, weights: Payload | None = None, *, snapshot: bool) -> None:
        """Note what a step wrote, after its event."""
        self.written.append(Written(state, weights, snapshot))

    def sweep(self, blobs: Blobs) -> None:
        """Delete what is neither a snapshot's, nor its replay's, nor the latest's. Idempotent, also across a restart; changes
        nothing of what is noted, which is the log's to say. First all is flushed that the log rests on: no lost machine takes
        the run back to where it would need what is deleted here."""
        written = list(self.written)
        kept: set[str] = set()
        for n, one in enumerate(written):
            following = written[n + 1] if n + 1 < len(written) else None
            if one.snapshot or n >= len(written) - KEPT_LATEST:
                kept |= {payload.digest for payload in one.payloads()}
            elif following is not None and following.snapshot and one.weights is not None:
                kept.add(one.weights.digest)
        named = [payload.digest for one in written for payload in one.payloads() if payload.inline is None]
        old = [digest for digest in dict.fromkeys(named) if digest not in kept and blobs.has(digest)]
        if old:
            blobs.flush()
        for digest in old:
            blobs.delete(digest)


def snapshot_due(trained_before: int, every: int) -> bool:
    """Whether the state after the step is a snapshot; ``trained_before`` steps of this part came before it."""
    return (trained_before + 1) % every == 0
