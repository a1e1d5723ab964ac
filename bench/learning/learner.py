"""One run in one process: trainer states, the version that each step samples from, and both training steps.

Guarantees: staleness as in a run: a step samples from the newest version of its lane (warm-up, or training) made at or before
the step before the last, an evaluation from the last; a lane begins at the warm start with a fresh optimizer; of warm-up only
the critic's weights are kept (T1 section 6), by the rules of ``train.state``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bench.learning.arms import Arm, constant_values, launched_in_groups
from bench.learning.part import process_seconds
from bench.learning.rollout import Trial
from bench.learning.stage import Stage, Version
from bench.learning.statistics import mean
from t1actors.actors.schedule import PlannedStep
from t1actors.config import Config
from t1actors.events import Purpose
from t1actors.train.actor_step import ActorReport, actor_step
from t1actors.train.batch import Batch
from t1actors.train.critic_step import critic_step, estimate_values
from t1actors.train.lanes import actor_lane, critic_drops_moments, trains_critic
from t1actors.train.state import TrainerState


@dataclass(frozen=True)
class Took:
    """CPU seconds of this process: sampling (as it cost when it was played), values and critic's update, actor's update."""

    sampling_s: float
    critic_s: float = 0.0
    actor_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.sampling_s + self.critic_s + self.actor_s


@dataclass(frozen=True)
class Outcome:
    """One step. ``explained_variance`` is that of the values before the update, None without a critic."""

    planned: PlannedStep
    trials: tuple[Trial, ...]
    took: Took
    explained_variance: float | None = None
    report: ActorReport | None = None

    @property
    def purpose(self) -> Purpose:
        return self.planned.purpose

    @property
    def share(self) -> float:
        """Mean P / n."""
        return mean([trial.share for trial in self.trials])

    def reward(self, scale: float) -> float:
        """Mean P / S, whatever the arm paid."""
        return mean([trial.passed / scale for trial in self.trials])


class Learner:
    """A run of one arm. ``critic`` is the state to begin with, the stage's zero head by default."""

    def __init__(self, stage: Stage, config: Config, arm: Arm, *, critic: TrainerState | None = None) -> None:
        if arm.baseline != "critic" and config.train.lam != 1.0:
            raise ValueError(f"arm {arm.name}: constant values give its formula at train.lam = 1 only")
        self._stage = stage
        self._config = config
        self._arm = arm
        self.critic_state = stage.critic_state if critic is None else critic
        self._critic_purpose: Purpose | None = None
        self._states: dict[str, TrainerState] = {}
        self._made: list[tuple[int, str, Version]] = []
        """(step, lane, version) of every update of the policy."""

    @property
    def policy_state(self) -> TrainerState:
        """The trained policy; warm-up's is nobody's."""
        return self._states.get("train", self._stage.policy_state)

    async def step(self, planned: PlannedStep) -> Outcome:
        """Plays the step and trains on it."""
        if self._arm.group > 1 and planned.purpose != "evaluate":
            planned = launched_in_groups(planned, self._arm.group)
        played = await self._stage.play(self._sampled_from(planned), planned)
        if planned.purpose == "evaluate":
            return Outcome(planned, played.trials, Took(played.cpu_s))
        paid = self._arm.pay(played.trials, planned.step)
        batch = Batch.of(
            [(trial.record, pay) for trial, pay in zip(played.trials, paid, strict=True)], self._stage.geometry
        )
        began_s = process_seconds()
        explained, values_T = self._values(planned, batch)
        critic_s = process_seconds() - began_s
        began_s = process_seconds()
        report = self._train_actor(planned, batch, values_T)
        took = Took(played.cpu_s, critic_s, process_seconds() - began_s)
        return Outcome(planned, played.trials, took, explained, report)

    def _sampled_from(self, planned: PlannedStep) -> Version:
        lane = "warmup" if planned.purpose == "warmup" else "train"
        overlap = 1 if planned.purpose == "evaluate" else 2
        found = [
            version for step, its_lane, version in self._made if its_lane == lane and step <= planned.step - overlap
        ]
        return found[-1] if found else self._stage.initial

    def _values(self, planned: PlannedStep, batch: Batch) -> tuple[float | None, npt.NDArray[np.float32]]:
        """(explained variance, values before the update); a critic is trained on the batch besides."""
        if self._arm.baseline != "critic":
            return None, constant_values(batch, self._arm.baseline)
        assert trains_critic(planned.purpose)
        state = self.critic_state
        if critic_drops_moments(self._critic_purpose, planned.purpose):
            state = state.without_moments()
        network, train = self._stage.critic, self._config.train
        values = estimate_values(network, state, batch, train)
        updated = critic_step(
            network, state, batch, values.values_T, train, seed=self._config.run.seed, step=planned.step
        )
        self.critic_state, self._critic_purpose = updated.state, planned.purpose
        return values.explained_variance, values.values_T

    def _train_actor(self, planned: PlannedStep, batch: Batch, values_T: npt.NDArray[np.float32]) -> ActorReport | None:
        lane = actor_lane(planned.purpose)
        if lane is None:
            return None
        known = (self._stage.initial, *(version for _, _, version in self._made))
        result = actor_step(
            self._stage.policy,
            self._states.get(lane, self._stage.policy_state),
            {version.digest: version.weights for version in known},
            batch,
            values_T,
            self._config.train,
            seed=self._config.run.seed,
            step=planned.step,
        )
        self._states[lane] = result.state
        self._made.append((planned.step, lane, Version(result.report.weights_after, result.weights)))
        # Only the last two can still be sampled from or be in a batch.
        self._made = self._made[-3:]
        # Per-token streams of every step of every run would be kept for nothing.
        return replace(result.report, tokens=result.report.tokens[:0])
