"""The states a step begins from, taken from the nearest snapshots or computed again from there.

Guarantees: a recorded state or version is used only when its bytes have the digest that the log names; what is not
there any more is computed by the same functions that trained it, from trajectories and earlier states; recorded values,
log-probs and results are never an input.

The actor's update of a step needs its own state before, the step's values (so the critic's state before), and the
weights of the behaviour versions. Each of these is held in memory, a blob, or the result of an earlier step: ``plan``
follows that to the nearest ground, ``run`` computes one step.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from t1actors.config import ModelConfig, TrainConfig
from t1actors.events import BatchItem, Payload, Purpose
from t1actors.models.checkpoint import CheckpointError, weights_from_bytes
from t1actors.models.policy import Policy
from t1actors.models.value import ValueModel
from t1actors.payloads import BlobError, Blobs, unpack
from t1actors.replay.inputs import ReplayImpossible, RunInputs
from t1actors.tito.record import RecordError, TrajectoryRecord
from t1actors.tito.stored import load
from t1actors.train.actor_step import ActorResult, actor_step
from t1actors.train.batch import Batch
from t1actors.train.critic_step import CriticResult, Values, critic_step, estimate_values
from t1actors.train.errors import TrainError
from t1actors.train.inspection import Inspect, InspectCritic
from t1actors.train.lanes import actor_lane, critic_drops_moments, last_before, trains_critic
from t1actors.train.networks import geometry_of, policy_for, version_of
from t1actors.train.state import Tensors, TrainerState, from_bytes

Edit = Callable[[Batch], Batch]

HELD_STEPS = 4
"""Computed states kept in memory from one plan to the next, so that the next steps can begin from them."""


@dataclass(frozen=True)
class PlannedRun:
    """Which parts of a step are to be run again."""

    step: int
    critic: bool
    actor: bool


@dataclass(frozen=True)
class StepRun:
    """A step run again, the parts that were planned."""

    step: int
    batch: Batch
    values: Values
    critic: CriticResult | None
    actor: ActorResult | None


class Chain:
    """Runs steps of one run again, each from the nearest ground."""

    def __init__(self, inputs: RunInputs, blobs: Blobs, model: ModelConfig | None = None) -> None:
        """``model``: how the networks compute; None: as the run's configuration says."""
        self._inputs = inputs
        self._model = model or inputs.config.model
        self._blobs = blobs
        self._batches: dict[int, Batch] = {}
        self._critic_after: dict[int, TrainerState] = {}
        self._actor_after: dict[int, tuple[TrainerState, str, Tensors]] = {}
        """Step -> state, version and published weights."""
        self._made_by: dict[str, int] = {}
        for number, step in sorted(inputs.steps.items()):
            if step.actor is not None:
                self._made_by.setdefault(step.actor.weights_after, number)
        self._networks: tuple[Policy, ValueModel] | None = None

    # --- which steps must be run again ------------------------------------------------------------------------------

    def plan(self, step: int) -> list[PlannedRun]:
        """The runs that ``step`` rests on, in order, itself last. Raises ``ReplayImpossible`` when there is no ground."""
        # Only between plans: what one plan computes it may need at its very end.
        for held in (self._batches, self._critic_after, self._actor_after):
            _drop_oldest(held, HELD_STEPS)
        critics = {step}
        actors = {step} if actor_lane(self._purpose(step)) else set[int]()
        work = [step]
        while work:
            number = work.pop()
            sources = [(critics, source) for source in self._critic_sources(number)]
            if number in actors:
                sources += [(actors, source) for source in self._actor_sources(number)]
            for kind, source in sources:
                if source not in kind:
                    kind.add(source)
                    work.append(source)
        return [PlannedRun(n, n in critics, n in actors) for n in sorted(critics | actors)]

    def _critic_sources(self, step: int) -> list[int]:
        before = self._critic_before(step)
        if before is None or before in self._critic_after:
            return []
        recorded = self._inputs.step(before).critic
        return [] if recorded is not None and self._there(recorded.state) else [before]

    def _actor_sources(self, step: int) -> list[int]:
        sources: list[int] = []
        before = self._actor_before(step)
        if before is not None and before not in self._actor_after:
            recorded = self._inputs.step(before).actor
            if recorded is None or not self._there(recorded.state):
                sources.append(before)
        for version in self.batch(step).versions:
            if version in (self._recorded_version(before), *(held for _, held, _ in self._actor_after.values())):
                continue
            payload = self._inputs.weights.get(version)
            if payload is not None and self._there(payload):
                continue
            if version not in self._made_by:
                raise ReplayImpossible(
                    f"step {step} was sampled by version {version[:16]}…, whose weights are gone and which no recorded "
                    "step made; restore its blob"
                )
            sources.append(self._made_by[version])
        return sources

    # --- running ----------------------------------------------------------------------------------------------------

    def run(
        self,
        planned: PlannedRun,
        *,
        edit: Edit | None = None,
        train: TrainConfig | None = None,
        inspect: Inspect | None = None,
        inspect_critic: InspectCritic | None = None,
    ) -> StepRun:
        """Run one step again from what is at hand. An edited one leaves nothing behind for later steps.

        Raises ``ReplayImpossible``, and what ``inspect`` and ``inspect_critic`` raise.
        """
        step = planned.step
        policy, critic = self._network_pair()
        config = train or self._inputs.config.train
        seed = self._inputs.config.run.seed
        batch = self.batch(step) if edit is None else edit(self.batch(step))
        try:
            critic_state = self._critic_state(step)
            values = estimate_values(critic, critic_state, batch, config)
            critic_result = actor_result = None
            if planned.critic:
                critic_result = critic_step(
                    critic,
                    critic_state,
                    batch,
                    values.values_T,
                    config,
                    seed=seed,
                    step=step,
                    inspect=inspect_critic,
                )
            if planned.actor:
                actor_state = self._actor_state(step)
                own = version_of(policy, actor_state)
                behaviours = {v: self._version(step, v) for v in batch.versions if v != own}
                actor_result = actor_step(
                    policy,
                    actor_state,
                    behaviours,
                    batch,
                    values.values_T,
                    config,
                    seed=seed,
                    step=step,
                    inspect=inspect,
                )
        except TrainError as error:
            raise ReplayImpossible(f"step {step}: {error}") from error
        if edit is None and train is None:
            self._hold(step, critic_result, actor_result)
        return StepRun(step, batch, values, critic_result, actor_result)

    def batch(self, step: int) -> Batch:
        """The step's batch from the recorded trajectories. Raises ``ReplayImpossible`` naming the trial."""
        if step not in self._batches:
            items = [(held, item.reward) for item, held in recorded_trajectories(self._inputs, self._blobs, step)]
            try:
                self._batches[step] = Batch.of(items, geometry_of(self._network_pair()[0]))
            except TrainError as error:
                raise ReplayImpossible(f"step {step}: {error}") from error
        return self._batches[step]

    # --- states -----------------------------------------------------------------------------------------------------

    def _critic_state(self, step: int) -> TrainerState:
        before = self._critic_before(step)
        if before is None:
            initial = self._inputs.critic_initial
            if initial is None:
                raise ReplayImpossible("the log has no CriticInitialised: the critic never started")
            return self._state(initial.state, "the critic's initial state")
        state = self._critic_after.get(before)
        if state is None:
            recorded = self._inputs.step(before).critic
            assert recorded is not None  # else the plan has it run
            state = self._state(recorded.state, f"the critic's state after step {before}", recorded.optimizer_after)
        drops = critic_drops_moments(self._purpose(before), self._purpose(step))
        return state.without_moments() if drops else state

    def _actor_state(self, step: int) -> TrainerState:
        before = self._actor_before(step)
        if before is None:
            return self._initial_actor_state()
        if before in self._actor_after:
            return self._actor_after[before][0]
        recorded = self._inputs.step(before).actor
        assert recorded is not None  # else the plan has it run
        return self._state(recorded.state, f"the actor's state after step {before}", recorded.optimizer_after)

    def _initial_actor_state(self) -> TrainerState:
        initial = self._inputs.actor_initial
        if initial is None:
            raise ReplayImpossible("the log has no ActorInitialised: the actor never started")
        return self._state(initial.state, "the actor's initial state")

    def _state(self, payload: Payload, what: str, optimizer: str | None = None) -> TrainerState:
        try:
            state = from_bytes(unpack(self._blobs, payload))
        except (BlobError, TrainError) as error:
            raise ReplayImpossible(f"{what}: {error}") from error
        if optimizer is not None and (found := state.optimizer_digest()) != optimizer:
            raise ReplayImpossible(f"{what} has optimizer digest {found[:16]}…, its event states {optimizer[:16]}…")
        return state

    def _version(self, step: int, version: str) -> Tensors:
        for _, held, weights in self._actor_after.values():
            if held == version:
                return weights
        payload = self._inputs.weights.get(version)
        try:
            if payload is None:
                raise BlobError("no event names them")
            return weights_from_bytes(unpack(self._blobs, payload), version=version)
        except (BlobError, CheckpointError) as error:
            raise ReplayImpossible(f"step {step}: weights of behaviour version {version[:16]}…: {error}") from error

    def _hold(self, step: int, critic: CriticResult | None, actor: ActorResult | None) -> None:
        if critic is not None:
            self._critic_after[step] = critic.state
        if actor is not None:
            self._actor_after[step] = (actor.state, actor.report.weights_after, actor.weights)

    # --- small questions --------------------------------------------------------------------------------------------

    def _purpose(self, step: int) -> Purpose:
        return self._inputs.step(step).opened.purpose

    def _critic_before(self, step: int) -> int | None:
        return last_before(step, (n for n in self._inputs.steps if trains_critic(self._purpose(n))))

    def _actor_before(self, step: int) -> int | None:
        lane = actor_lane(self._purpose(step))
        return last_before(step, (n for n in self._inputs.steps if actor_lane(self._purpose(n)) == lane))

    def _recorded_version(self, before: int | None) -> str | None:
        """The version that the actor's state after ``before`` publishes, as recorded."""
        if before is None:
            return self._inputs.actor_initial.version if self._inputs.actor_initial else None
        recorded = self._inputs.step(before).actor
        return recorded.weights_after if recorded else None

    def _there(self, payload: Payload) -> bool:
        return payload.inline is not None or self._blobs.has(payload.digest)

    def _network_pair(self) -> tuple[Policy, ValueModel]:
        if self._networks is None:
            policy = policy_for(self._initial_actor_state(), self._model)
            self._networks = policy, ValueModel.from_policy(policy)
        return self._networks


def recorded_trajectories(inputs: RunInputs, blobs: Blobs, step: int) -> list[tuple[BatchItem, TrajectoryRecord]]:
    """The sealed batch's items with their records. Raises ``ReplayImpossible`` naming the trial."""
    trajectories = inputs.step(step).trajectories
    found: list[tuple[BatchItem, TrajectoryRecord]] = []
    for item in inputs.sealed(step).items:
        if item.trial not in trajectories:
            raise ReplayImpossible(
                f"step {step}, trial {item.trial}: sealed into the batch without TrajectoryAssembled"
            )
        try:
            found.append((item, load(blobs, trajectories[item.trial].record)))
        except (BlobError, RecordError) as error:
            raise ReplayImpossible(f"step {step}, trial {item.trial}: {error}") from error
    return found


def _drop_oldest(held: MutableMapping[int, Any], most: int) -> None:
    while len(held) > most:
        del held[next(iter(held))]
