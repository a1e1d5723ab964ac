"""What a run's log says about its training steps: a fold of the merged log into the inputs of every step.

Guarantees: reads, never writes; knows a step's inputs by digest (weights, states, trajectories, configuration) and keeps
the recorded results beside them only to compare with; a log that lacks something a replay needs says what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from t1actors.config import Config, from_toml
from t1actors.events import (
    ActorInitialised,
    ActorUpdated,
    AnyEvent,
    BatchSealed,
    CriticInitialised,
    CriticUpdated,
    Payload,
    RunStarted,
    StepOpened,
    TrajectoryAssembled,
    UnknownEvent,
    ValuesEstimated,
    WeightsOffered,
    decode,
)
from t1actors.log.interface import Log
from t1actors.log.merged import merged
from t1actors.train.environment import implementation


class ReplayImpossible(Exception):
    """The step cannot be run again from what is there: says what is missing, and where."""


_READ = frozenset(
    kind.__name__
    for kind in (
        RunStarted,
        StepOpened,
        TrajectoryAssembled,
        BatchSealed,
        CriticInitialised,
        ValuesEstimated,
        CriticUpdated,
        ActorInitialised,
        ActorUpdated,
        WeightsOffered,
    )
)


class _Kind(msgspec.Struct):
    kind: str


_kind = msgspec.msgpack.Decoder(_Kind)


@dataclass
class StepInputs:
    """One step as the log has it; ``values``, ``critic`` and ``actor`` are recorded results."""

    opened: StepOpened
    trajectories: dict[str, TrajectoryAssembled] = field(default_factory=dict[str, TrajectoryAssembled])
    sealed: BatchSealed | None = None
    values: ValuesEstimated | None = None
    critic: CriticUpdated | None = None
    actor: ActorUpdated | None = None

    @property
    def results(self) -> tuple[ValuesEstimated | CriticUpdated | ActorUpdated, ...]:
        """What training recorded of the step."""
        return tuple(event for event in (self.values, self.critic, self.actor) if event is not None)


@dataclass
class RunInputs:
    """A run as the log has it. Build it with ``read_inputs`` or ``fold_inputs``."""

    run: str
    code_version: str
    config: Config
    recorded_kernels: str = ""
    """Those that trained the run; empty in logs that don't say."""
    critic_initial: CriticInitialised | None = None
    actor_initial: ActorInitialised | None = None
    steps: dict[int, StepInputs] = field(default_factory=dict[int, StepInputs])
    weights: dict[str, Payload] = field(default_factory=dict[str, Payload])
    """Version -> its weights, whether or not their blob is still there."""

    @property
    def kernels(self) -> str:
        """The name of the kernels that trained the run; empty where the log does not say. Logs whose RunStarted does not say
        it have it in what the actor said of its environment."""
        initial = self.actor_initial
        return self.recorded_kernels or (implementation(initial.environment) if initial is not None else "")

    def step(self, number: int) -> StepInputs:
        """Raises ``ReplayImpossible`` for a step that the log does not have."""
        if number not in self.steps:
            known = f"steps {min(self.steps)} to {max(self.steps)}" if self.steps else "no step at all"
            raise ReplayImpossible(f"run {self.run} has no step {number}: its log has {known}")
        return self.steps[number]

    def sealed(self, number: int) -> BatchSealed:
        """Raises ``ReplayImpossible`` for a step whose batch was never sealed."""
        sealed = self.step(number).sealed
        if sealed is None:
            raise ReplayImpossible(f"step {number} has no batch yet: the run ended before BatchSealed")
        return sealed


def read_inputs(log: Log, progress: Callable[[int], None] | None = None) -> RunInputs:
    """The fold of the whole log; ``progress`` hears how many events were read. Raises ``ReplayImpossible``, and what
    reading the log raises (``LogError``)."""
    return fold_inputs(_events(log, progress))


def fold_inputs(events: Iterable[AnyEvent | UnknownEvent]) -> RunInputs:
    """The fold of events in causal order. Raises ``ReplayImpossible`` when no RunStarted comes first."""
    inputs: RunInputs | None = None
    for event in events:
        if isinstance(event, RunStarted):
            # a resumed run has the same configuration
            inputs = inputs or RunInputs(
                event.run, event.code_version, from_toml(event.config_toml, origin="RunStarted"), event.kernels
            )
        elif inputs is not None:
            _fold(inputs, event)
    if inputs is None:
        raise ReplayImpossible("the log has no RunStarted: this is not the log of a run")
    return inputs


def _events(log: Log, progress: Callable[[int], None] | None) -> Iterator[AnyEvent | UnknownEvent]:
    for done, entry in enumerate(merged(log)):
        if progress is not None:
            progress(done)
        if _kind.decode(entry.raw).kind in _READ:
            yield decode(entry.raw)


def _fold(inputs: RunInputs, event: AnyEvent | UnknownEvent) -> None:
    match event:
        case StepOpened():
            inputs.steps[event.step] = StepInputs(event)
        case TrajectoryAssembled():
            inputs.step(event.step).trajectories[event.trial] = event
        case BatchSealed():
            inputs.step(event.step).sealed = event
        case ValuesEstimated():
            inputs.step(event.step).values = event
        case CriticInitialised():
            inputs.critic_initial = event
        case CriticUpdated():
            inputs.step(event.step).critic = event
        case ActorInitialised():
            inputs.actor_initial = event
            inputs.weights[event.version] = event.weights
        case ActorUpdated():
            inputs.step(event.step).actor = event
            inputs.weights[event.weights_after] = event.weights
        case WeightsOffered():
            inputs.weights.setdefault(event.digest, event.weights)
        case _:
            pass
