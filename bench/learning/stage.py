"""What runs of one configuration share: the engine, the sandboxes, networks as scratch space, and rollouts already played.

Guarantees: ``Stage.play`` gives the same trials for the same weights and trial specs, and plays them once in an invocation:
arms that are compared begin with the very same episodes, and the warm start is evaluated once. Greedy trials do not depend on
their seed, so all seeds share them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import torch
from msgspec import structs

from bench.learning.part import Context, process_seconds
from bench.learning.rollout import Rollout, Trial
from t1actors.actors.schedule import PlannedStep
from t1actors.config import Config
from t1actors.engine.torch_engine import TorchEngine
from t1actors.events import TrialSpec
from t1actors.harness.native import NativeHarness
from t1actors.models.checkpoint import weights_to_bytes
from t1actors.models.folder import model_folder
from t1actors.models.policy import Policy
from t1actors.models.tokenizer import Tokenizer
from t1actors.models.value import ValueModel
from t1actors.tito.record import Geometry
from t1actors.train.networks import (
    critic_for,
    geometry_of,
    initial_critic_state,
    initial_policy_state,
    policy_for,
    version_of,
    working_weights,
)
from t1actors.train.state import Tensors, TrainerState


@dataclass(frozen=True)
class Version:
    """A policy's weights and the digest that names them."""

    digest: str
    weights: Tensors


@dataclass(frozen=True)
class Played:
    """``cpu_s`` is what it cost when it was played, also where it was only looked up."""

    trials: tuple[Trial, ...]
    cpu_s: float


class Stage:
    """Use ``staged``. ``policy`` and ``critic`` are scratch: every step function loads the weights that it is about."""

    def __init__(self, context: Context, config: Config, engine: TorchEngine) -> None:
        self.context = context
        self.config = config
        self.engine = engine
        self.policy_state: TrainerState = initial_policy_state(config.model)
        """The warm start with a fresh optimizer."""
        self.critic_state: TrainerState = initial_critic_state(config.model)
        """The warm start's trunk with a zero head (or what ``model.critic`` names)."""
        self.policy: Policy = policy_for(self.policy_state, config.model)
        self.critic: ValueModel = critic_for(self.critic_state, config.model)
        self.geometry: Geometry = geometry_of(self.policy)
        self.initial = self.version(self.policy_state)
        harness = NativeHarness(Tokenizer.from_folder(model_folder(config.model.policy)))
        self._rollout = Rollout(config, context.backend, engine, harness, self.geometry)

    def version(self, state: TrainerState) -> Version:
        """What ``state`` publishes."""
        return Version(version_of(self.policy, state), working_weights(self.policy, state.weights))

    async def play(self, version: Version, planned: PlannedStep, *, count: int | None = None) -> Played:
        """The first ``count`` trials of the step (its batch by default), sampled from ``version``."""
        specs = planned.trials[: planned.batch_size if count is None else count]
        return await self.play_trials(version, specs, planned.temperature)

    async def play_trials(self, version: Version, specs: Sequence[TrialSpec], temperature: float) -> Played:
        if temperature == 0:
            specs = [structs.replace(spec, seed=0) for spec in specs]  # greedy decoding draws nothing
        part = (self.config.model, self.config.rollout, self.config.sandbox)
        return await self.context.once(
            ("rollout", part, version.digest, tuple(specs), temperature),
            lambda: self._play(version, specs, temperature),
        )

    async def _play(self, version: Version, specs: Sequence[TrialSpec], temperature: float) -> Played:
        began_s = process_seconds()
        if self.engine.version != version.digest:
            await self.engine.load(version.digest, weights_to_bytes(version.weights))
        trials = await self._rollout.play(specs, temperature)
        return Played(tuple(trials), process_seconds() - began_s)


@asynccontextmanager
async def staged(context: Context, config: Config) -> AsyncIterator[Stage]:
    """A stage whose engine runs. One torch thread: with two, decoding is slower and bits depend on it."""
    torch.set_num_threads(1)
    engine = TorchEngine(
        model_folder(config.model.policy),
        dtype=config.model.sampler_dtype,
        max_live_sequences=config.rollout.max_live_sequences,
        max_ids=config.rollout.max_ids,
    )
    async with engine.running():
        yield Stage(context, config, engine)


def with_seed(config: Config, seed: int) -> Config:
    return replace(config, run=replace(config.run, seed=seed))
