"""Actor: PPO against the behaviour version, once the critic's values of a step stand (T1 sections 4, 5 and 7).

Guarantees: steps are taken in order, warm-up steps in a lane of their own that later steps forget; the ratio's denominator
is the behaviour version recorded for each token, run from that version's weights; weights are durable before ActorUpdated
names them; a restarted actor goes on from the recorded state and computes the same digests. After the last training step
the policy is exported as a Hugging Face folder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import numpy as np
from anyio import to_thread
from msgspec import structs

from t1actors.actors.schedule import Schedule
from t1actors.actors.training import BatchLog, Retention, build_batch, snapshot_due
from t1actors.events import (
    ActorInitialised,
    ActorUpdated,
    AnyEvent,
    BatchSealed,
    EffectFinished,
    ModelExported,
    Payload,
    RunStarted,
    StepOpened,
    TrajectoryAssembled,
    UnknownEvent,
    ValuesEstimated,
)
from t1actors.models.checkpoint import weights_digest, weights_from_bytes, weights_to_bytes
from t1actors.models.folder import model_folder
from t1actors.models.policy import Policy
from t1actors.models.pretrained import save_policy
from t1actors.payloads import pack, pack_array, unpack, unpack_array
from t1actors.runtime.actor import NOTHING, ActorContext, Decision, Effect, Performing
from t1actors.train.actor_step import ActorResult, staleness
from t1actors.train.crew import Crew
from t1actors.train.digests import encode_detail
from t1actors.train.environment import environment
from t1actors.train.lanes import actor_lane
from t1actors.train.networks import geometry_of, initial_policy_state, policy_for, working_weights
from t1actors.train.state import Tensors, TrainerState, from_bytes, to_bytes

EXPORT_FOLDER = "model"


class Initialise(Effect, frozen=True, kw_only=True):
    """Load the initial policy and state its version."""


class Update(Effect, frozen=True, kw_only=True):
    """Train the actor on step ``step``'s batch."""

    step: int


class Export(Effect, frozen=True, kw_only=True):
    """Write the policy of ``version`` as a Hugging Face folder."""

    version: str


@dataclass
class Lane:
    """Updates that follow each other: the state after the last one, the version it is, how many there were."""

    state: Payload
    version: str
    trained: int = 0


@dataclass
class ActorState:
    """What the log says of the actor's part: batches, states, versions, and values that wait to be used."""

    batches: BatchLog = field(default_factory=BatchLog)
    retention: Retention = field(default_factory=Retention)
    initial: Lane | None = None
    lanes: dict[str, Lane] = field(default_factory=dict[str, Lane])
    weights: dict[str, Payload] = field(default_factory=dict[str, Payload])
    """Version -> its weights."""
    values: dict[int, ValuesEstimated] = field(default_factory=dict[int, ValuesEstimated])
    """Steps whose values stand and that are not trained yet."""


@dataclass
class Working:
    """What is held in memory: the network, and the state that a payload digest names."""

    network: Policy
    state_digest: str
    state: TrainerState


class PolicyActor:
    """See the module."""

    reads = frozenset({"publisher", "assembler", "critic"})
    effect_type = Initialise | Update | Export

    def __init__(self, context: ActorContext) -> None:
        self._config = context.config
        self._blobs = context.blobs
        self._run_dir = context.run_dir
        self._last_training_step = Schedule(context.config, context.run_dir).last("train")
        self._state = ActorState()
        self._working: Working | None = None
        self._crew = Crew(context.config.train.ranks, what="the actor's crew")

    def initial(self) -> ActorState:
        return self._state

    def fold(self, state: ActorState, event: AnyEvent | UnknownEvent) -> ActorState:
        match event:
            case StepOpened() | TrajectoryAssembled() | BatchSealed():
                state.batches.fold(event)
            case ActorInitialised():
                state.initial = Lane(event.state, event.version)
                state.weights[event.version] = event.weights
                state.retention.add(event.state, event.weights, snapshot=True)
            case ValuesEstimated():
                if actor_lane(state.batches.purpose(event.step)) is None:
                    state.batches.forget(event.step)
                else:
                    state.values[event.step] = event
            case ActorUpdated():
                self._fold_update(state, event)
            case _:
                pass
        return state

    def decide(self, state: ActorState, event: AnyEvent | UnknownEvent) -> Decision:
        match event:
            case RunStarted() if state.initial is None:
                return Decision(effects=[Initialise(key="actor/initial", stall_s=self._config.train.stall_s)])
            case ValuesEstimated() if event.step in state.values and min(state.values) == event.step:
                return self._update_next(state)
            case EffectFinished() if event.key == "actor/initial" and self._last_training_step is None:
                return self._export(state)
            case EffectFinished() if event.key.startswith("step/"):
                if event.key == _update_key(self._last_training_step):
                    return self._export(state)
                return self._update_next(state)
            case _:
                return NOTHING

    async def perform(self, effect: Effect, performing: Performing) -> Sequence[AnyEvent]:
        match effect:
            case Initialise():
                return [await to_thread.run_sync(self._initialise)]
            case Update():
                started_s = anyio.current_time()
                updated = await to_thread.run_sync(self._update, effect.step)
                return [structs.replace(updated, seconds=anyio.current_time() - started_s)]
            case Export():
                await to_thread.run_sync(self._write_model, effect.version)
                return [ModelExported(version=effect.version, folder=EXPORT_FOLDER)]
            case _:
                raise AssertionError(f"not an effect of the actor: {effect}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._crew.start()
        try:
            yield
        finally:
            self._crew.close()

    # --- decisions ------------------------------------------------------------------------------------------------------

    def _fold_update(self, state: ActorState, event: ActorUpdated) -> None:
        purpose = state.batches.purpose(event.step)
        lane = self._lane(state, event.step)
        state.lanes[purpose] = Lane(event.state, event.weights_after, lane.trained + 1)
        state.weights[event.weights_after] = event.weights
        state.retention.add(event.state, event.weights, snapshot=event.snapshot)
        state.values.pop(event.step, None)
        state.batches.forget(event.step)

    def _lane(self, state: ActorState, step: int) -> Lane:
        lane = state.lanes.get(state.batches.purpose(step), state.initial)
        assert lane is not None
        return lane

    def _update_next(self, state: ActorState) -> Decision:
        if not state.values:
            return NOTHING
        step = min(state.values)
        return Decision(effects=[Update(key=_update_key(step), step=step, stall_s=self._config.train.stall_s)])

    def _export(self, state: ActorState) -> Decision:
        lane = state.lanes.get("train", state.initial)
        assert lane is not None
        return Decision(effects=[Export(key="actor/export", version=lane.version, stall_s=self._config.train.stall_s)])

    # --- effects, in a worker thread ------------------------------------------------------------------------------------

    def _initialise(self) -> ActorInitialised:
        state = initial_policy_state(self._config.model)
        network = policy_for(state, self._config.model)
        working = working_weights(network, state.weights)
        payload = pack(self._blobs, to_bytes(state))
        self._working = Working(network, payload.digest, state)
        return ActorInitialised(
            version=weights_digest(working),
            weights=pack(self._blobs, weights_to_bytes(working)),
            state=payload,
            environment=environment(self._config.model.kernels),
        )

    def _load(self, payload: Payload) -> Working:
        working = self._working
        if working is None or working.state_digest != payload.digest:
            state = from_bytes(unpack(self._blobs, payload))
            network = working.network if working else policy_for(state, self._config.model)
            working = self._working = Working(network, payload.digest, state)
        return working

    def _behaviours(self, versions: Sequence[str], own: str) -> dict[str, Tensors]:
        return {
            version: weights_from_bytes(unpack(self._blobs, self._state.weights[version]))
            for version in versions
            if version != own
        }

    def _update(self, step: int) -> ActorUpdated:
        log = self._state
        lane = self._lane(log, step)
        working = self._load(lane.state)
        batch = build_batch(log.batches, step, geometry_of(working.network), self._blobs)
        values_T = unpack_array(self._blobs, log.values[step].values).astype(np.float32)
        result = self._crew.actor_step(
            working.network,
            working.state,
            self._behaviours(batch.versions, lane.version),
            batch,
            values_T,
            self._config.train,
            seed=self._config.run.seed,
            step=step,
        )
        # A copy, made in one go: steps open while this thread works.
        indices = {opened.version: opened.version_index for opened in list(log.batches.opened.values())}
        opened = log.batches.opened[step]
        # An update may leave the weights as they were: then one version has two indices, and this step's own counts.
        behaviour, stale = staleness(batch, {**indices, opened.version: opened.version_index}, lane.trained)
        payload = pack(self._blobs, to_bytes(result.state))
        self._working = Working(working.network, payload.digest, result.state)
        log.retention.sweep(self._blobs)
        return self._event(step, lane, result, payload, behaviour, stale)

    def _event(
        self, step: int, lane: Lane, result: ActorResult, state: Payload, behaviour: str, stale: int
    ) -> ActorUpdated:
        report = result.report
        return ActorUpdated(
            step=step,
            weights_before=report.weights_before,
            weights_after=report.weights_after,
            optimizer_after=report.optimizer_after,
            behaviour_version=behaviour,
            staleness=stale,
            weights=pack(self._blobs, weights_to_bytes(result.weights)),
            state=state,
            snapshot=snapshot_due(lane.trained, self._config.train.snapshot_every),
            old_logprobs_digest=report.old_logprobs_digest,
            loss=report.loss,
            loss_digest=report.loss_digest,
            gradient_digest=report.gradient_digest,
            gradient_norm=report.gradient_norm,
            gap_mean=report.gap.total_mean,
            gap_max=report.gap.total_max,
            engine_gap_mean=report.gap.engine_mean,
            engine_gap_max=report.gap.engine_max,
            policy_movement_mean=report.gap.movement_mean,
            policy_movement_max=report.gap.movement_max,
            ratio_mean=report.ratio_mean,
            ratio_max=report.ratio_max,
            clip_share=report.clip_share,
            kl=report.kl,
            entropy=report.entropy,
            tokens=pack_array(self._blobs, report.tokens),
            seconds=0.0,
            detail=pack(self._blobs, encode_detail(report.detail)),
            quantum_over_rms=report.coarsest.ratio,
            quantum_tensor=report.coarsest.tensor,
        )

    def _write_model(self, version: str) -> None:
        weights = weights_from_bytes(unpack(self._blobs, self._state.weights[version]), version=version)
        working = self._working
        lane = self._state.lanes.get("train", self._state.initial)
        assert lane is not None
        network = working.network if working else self._load(lane.state).network
        network.load_weights(weights)
        folder: Path = self._run_dir / EXPORT_FOLDER
        save_policy(network, folder, model_folder(self._config.model.policy))


def _update_key(step: int | None) -> str:
    return f"step/{step}/actor"
