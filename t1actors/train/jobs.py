"""What the ranks of a step are told and answer: the three computations of a step as values, and the messages round
them.

A job runs on every rank alike; ``proof`` is what must be equal on all of them afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from t1actors.config import ModelConfig, TrainConfig
from t1actors.models.network import Network
from t1actors.models.policy import Policy
from t1actors.models.value import ValueModel
from t1actors.train.actor_step import ActorResult, actor_step
from t1actors.train.batch import Batch
from t1actors.train.critic_step import CriticResult, Values, critic_step, estimate_values
from t1actors.train.networks import critic_for, policy_for
from t1actors.train.ranks import Ranks
from t1actors.train.state import Tensors, TrainerState

N = TypeVar("N", bound=Network)
R = TypeVar("R")
N_contra = TypeVar("N_contra", bound=Network, contravariant=True)


class Job(Protocol[N_contra, R]):
    """One of the functions of a step, with all its arguments but network, state, batch and ranks."""

    @property
    def part(self) -> Literal["critic", "actor"]:
        """Whose network it runs on."""
        ...

    def run(self, network: N_contra, state: TrainerState, batch: Batch, ranks: Ranks) -> R:
        """This rank's share; the result is every rank's."""
        ...

    def after(self, result: R, state: TrainerState) -> TrainerState:
        """The state that the job leaves."""
        ...

    def proof(self, result: R) -> str:
        """A digest of the result: what the ranks must agree on."""
        ...


@dataclass(frozen=True)
class EstimateValues:
    """``critic_step.estimate_values``."""

    config: TrainConfig
    part: Literal["critic", "actor"] = "critic"

    def run(self, network: ValueModel, state: TrainerState, batch: Batch, ranks: Ranks) -> Values:
        """See ``Job``."""
        return estimate_values(network, state, batch, self.config, ranks=ranks)

    def after(self, result: Values, state: TrainerState) -> TrainerState:
        """See ``Job``."""
        return state

    def proof(self, result: Values) -> str:
        """See ``Job``."""
        return result.digest


@dataclass(frozen=True)
class StepCritic:
    """``critic_step.critic_step``."""

    values_T: npt.NDArray[np.float32]
    config: TrainConfig
    seed: int
    step: int
    part: Literal["critic", "actor"] = "critic"

    def run(self, network: ValueModel, state: TrainerState, batch: Batch, ranks: Ranks) -> CriticResult:
        """See ``Job``."""
        return critic_step(
            network, state, batch, self.values_T, self.config, seed=self.seed, step=self.step, ranks=ranks
        )

    def after(self, result: CriticResult, state: TrainerState) -> TrainerState:
        """See ``Job``."""
        return result.state

    def proof(self, result: CriticResult) -> str:
        """See ``Job``."""
        report = result.report
        return f"{report.optimizer_after} {report.gradient_digest} {report.loss_digest}"


@dataclass(frozen=True)
class StepActor:
    """``actor_step.actor_step``."""

    behaviours: Mapping[str, Tensors]
    values_T: npt.NDArray[np.float32]
    config: TrainConfig
    seed: int
    step: int
    part: Literal["critic", "actor"] = "actor"

    def run(self, network: Policy, state: TrainerState, batch: Batch, ranks: Ranks) -> ActorResult:
        """See ``Job``."""
        return actor_step(
            network,
            state,
            self.behaviours,
            batch,
            self.values_T,
            self.config,
            seed=self.seed,
            step=self.step,
            ranks=ranks,
        )

    def after(self, result: ActorResult, state: TrainerState) -> TrainerState:
        """See ``Job``."""
        return result.state

    def proof(self, result: ActorResult) -> str:
        """See ``Job``."""
        report = result.report
        return f"{report.optimizer_after} {report.gradient_digest} {report.loss_digest} {report.old_logprobs_digest}"


@dataclass(frozen=True)
class NetworkKind:
    """What a rank's network must share with the others' besides the state: number type, and the kernels that
    compute."""

    dtype: str
    kernels: str

    @staticmethod
    def of(network: Network) -> NetworkKind:
        """That of this network."""
        return NetworkKind(str(network.dtype).removeprefix("torch."), network.kernels.name)

    def make(self, part: Literal["critic", "actor"], state: TrainerState) -> Policy | ValueModel:
        """A network for states like this one."""
        # "native/avx2" is one of "native"; whether it is the same one is asked when it is there.
        model = ModelConfig(train_dtype=cast(Any, self.dtype), kernels=cast(Any, self.kernels.partition("/")[0]))
        return policy_for(state, model) if part == "actor" else critic_for(state, model)


# --- messages -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Join:
    """To a worker: meet the others at the file ``store``, as ``rank`` of ``size``, and forget what you hold."""

    store: str
    rank: int
    size: int
    timeout_s: float


@dataclass(frozen=True)
class Task:
    """To a worker: run the job. None: the state that the last job left, the batch that it had."""

    job: Job[Any, Any]
    network: NetworkKind
    state: TrainerState | None
    batch: Batch | None


@dataclass(frozen=True)
class Ready:
    """From a worker, once: it has loaded what it needs."""

    pid: int


@dataclass(frozen=True)
class Joined:
    """From a worker, after ``Join``."""


@dataclass(frozen=True)
class Done:
    """From a worker, after ``Task``."""

    proof: str


@dataclass(frozen=True)
class Failed:
    """From a worker, its last word. ``lost``: it could not reach the others, so the fault is one of theirs."""

    error: str
    trace: str
    lost: bool
