"""Critic: values every batch with the weights it has, hands them to the actor, then updates itself (T1 section 6).

Guarantees: steps are taken in order; ValuesEstimated comes from the pre-update weights; the actor may overlap the update
without changing a bit; a restarted critic goes on from the recorded state and computes the same digests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import numpy as np
from anyio import to_thread
from msgspec import structs

from t1actors.actors.training import BatchLog, Retention, build_batch, snapshot_due
from t1actors.events import (
    AnyEvent,
    BatchSealed,
    CriticInitialised,
    CriticUpdated,
    EffectFinished,
    Payload,
    Purpose,
    RunStarted,
    StepOpened,
    TrajectoryAssembled,
    UnknownEvent,
    ValuesEstimated,
)
from t1actors.models.checkpoint import weights_digest
from t1actors.models.value import ValueModel
from t1actors.payloads import pack, pack_array, unpack, unpack_array
from t1actors.runtime.actor import NOTHING, ActorContext, Decision, Effect, Performing
from t1actors.train.batch import Batch
from t1actors.train.crew import Crew
from t1actors.train.digests import encode_detail
from t1actors.train.environment import environment
from t1actors.train.lanes import critic_drops_moments
from t1actors.train.networks import critic_for, geometry_of, initial_critic_state, working_weights
from t1actors.train.state import TrainerState, from_bytes, to_bytes


class Initialise(Effect, frozen=True, kw_only=True):
    """Load the initial critic."""


class Estimate(Effect, frozen=True, kw_only=True):
    """Values of step ``step``'s batch, before the update."""

    step: int


class Update(Effect, frozen=True, kw_only=True):
    """Train the critic on step ``step``'s batch."""

    step: int


@dataclass
class CriticState:
    """What the log says of the critic's part."""

    batches: BatchLog = field(default_factory=BatchLog)
    retention: Retention = field(default_factory=Retention)
    initialised: bool = False
    state: Payload | None = None
    """The state after the last update."""
    previous: Purpose | None = None
    """The purpose of the last step that trained the critic."""
    trained: int = 0
    next_step: int = 0
    values: dict[int, ValuesEstimated] = field(default_factory=dict[int, ValuesEstimated])


@dataclass
class Working:
    """What is held in memory: the network, the state that a payload digest names, the batch of a step."""

    network: ValueModel
    state_digest: str
    state: TrainerState
    batch_step: int = -1
    batch: Batch | None = None


class Critic:
    """See the module."""

    reads = frozenset({"publisher", "assembler"})
    effect_type = Initialise | Estimate | Update

    def __init__(self, context: ActorContext) -> None:
        self._config = context.config
        self._blobs = context.blobs
        self._state = CriticState()
        self._working: Working | None = None
        self._crew = Crew(context.config.train.ranks, what="the critic's crew")

    def initial(self) -> CriticState:
        return self._state

    def fold(self, state: CriticState, event: AnyEvent | UnknownEvent) -> CriticState:
        match event:
            case StepOpened() | TrajectoryAssembled() | BatchSealed():
                state.batches.fold(event)
                self._skip_evaluations(state)
            case CriticInitialised():
                state.initialised = True
                state.state = event.state
                state.retention.add(event.state, snapshot=True)
            case ValuesEstimated():
                state.values[event.step] = event
            case CriticUpdated():
                state.state = event.state
                state.previous = state.batches.purpose(event.step)
                state.trained += 1
                state.next_step = event.step + 1
                state.retention.add(event.state, snapshot=event.snapshot)
                state.batches.forget(event.step)
                state.values.pop(event.step, None)
                self._skip_evaluations(state)
            case _:
                pass
        return state

    def decide(self, state: CriticState, event: AnyEvent | UnknownEvent) -> Decision:
        match event:
            case RunStarted() if not state.initialised:
                return Decision(effects=[Initialise(key="critic/initial", stall_s=self._config.train.stall_s)])
            case BatchSealed() | EffectFinished():
                return self._next(state, event)
            case _:
                return NOTHING

    async def perform(self, effect: Effect, performing: Performing) -> Sequence[AnyEvent]:
        started_s = anyio.current_time()
        match effect:
            case Initialise():
                return [await to_thread.run_sync(self._initialise)]
            case Estimate():
                values = await to_thread.run_sync(self._estimate, effect.step)
                return [structs.replace(values, seconds=anyio.current_time() - started_s)]
            case Update():
                updated = await to_thread.run_sync(self._update, effect.step)
                return [structs.replace(updated, seconds=anyio.current_time() - started_s)]
            case _:
                raise AssertionError(f"not an effect of the critic: {effect}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._crew.start()
        try:
            yield
        finally:
            self._crew.close()

    # --- decisions ------------------------------------------------------------------------------------------------------

    def _skip_evaluations(self, state: CriticState) -> None:
        opened = state.batches.opened
        while state.next_step in opened and opened[state.next_step].purpose == "evaluate":
            state.next_step += 1

    def _next(self, state: CriticState, event: BatchSealed | EffectFinished) -> Decision:
        """Estimate a step's values once its batch is sealed and the critic is the one that should; then update."""
        step = state.next_step
        if isinstance(event, EffectFinished) and event.key == f"step/{step}/values":
            return Decision(effects=[Update(key=f"step/{step}/critic", step=step, stall_s=self._config.train.stall_s)])
        sealed = state.batches.sealed.get(step)
        if not state.initialised or sealed is None or step in state.values:
            return NOTHING
        if not sealed.items:
            return NOTHING  # the publisher ends the run
        return Decision(effects=[Estimate(key=f"step/{step}/values", step=step, stall_s=self._config.train.stall_s)])

    # --- effects, in a worker thread ------------------------------------------------------------------------------------

    def _initialise(self) -> CriticInitialised:
        state = initial_critic_state(self._config.model)
        network = critic_for(state, self._config.model)
        payload = pack(self._blobs, to_bytes(state))
        self._working = Working(network, payload.digest, state)
        weights = weights_digest(working_weights(network, state.weights))
        return CriticInitialised(weights=weights, state=payload, environment=environment(self._config.model.kernels))

    def _load(self, step: int) -> tuple[Working, Batch]:
        recorded = self._state.state
        assert recorded is not None
        working = self._working
        if working is None or working.state_digest != recorded.digest:
            state = from_bytes(unpack(self._blobs, recorded))
            network = working.network if working else critic_for(state, self._config.model)
            working = self._working = Working(network, recorded.digest, state)
        if working.batch is None or working.batch_step != step:
            working.batch = build_batch(self._state.batches, step, geometry_of(working.network), self._blobs)
            working.batch_step = step
        return working, working.batch

    def _base(self, working: Working, step: int) -> TrainerState:
        purpose = self._state.batches.purpose(step)
        drops = critic_drops_moments(self._state.previous, purpose)
        return working.state.without_moments() if drops else working.state

    def _estimate(self, step: int) -> ValuesEstimated:
        working, batch = self._load(step)
        values = self._crew.estimate_values(working.network, self._base(working, step), batch, self._config.train)
        return ValuesEstimated(
            step=step,
            values=pack_array(self._blobs, values.values_T),
            values_digest=values.digest,
            explained_variance=values.explained_variance,
            seconds=0.0,
        )

    def _update(self, step: int) -> CriticUpdated:
        working, batch = self._load(step)
        values_T = unpack_array(self._blobs, self._state.values[step].values).astype(np.float32)
        result = self._crew.critic_step(
            working.network,
            self._base(working, step),
            batch,
            values_T,
            self._config.train,
            seed=self._config.run.seed,
            step=step,
        )
        report = result.report
        payload = pack(self._blobs, to_bytes(result.state))
        detail = pack(self._blobs, encode_detail(report.detail))
        self._working = Working(working.network, payload.digest, result.state)
        self._state.retention.sweep(self._blobs)
        return CriticUpdated(
            step=step,
            weights_before=report.weights_before,
            weights_after=report.weights_after,
            optimizer_after=report.optimizer_after,
            loss=report.loss,
            loss_digest=report.loss_digest,
            gradient_digest=report.gradient_digest,
            gradient_norm=report.gradient_norm,
            explained_variance=report.explained_variance,
            state=payload,
            snapshot=snapshot_due(self._state.trained, self._config.train.snapshot_every),
            seconds=0.0,
            detail=detail,
            quantum_over_rms=report.coarsest.ratio,
            quantum_tensor=report.coarsest.tensor,
        )
