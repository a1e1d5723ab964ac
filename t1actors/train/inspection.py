"""A look inside the step of the actor and of the critic: what each optimizer update is about to do, handed to a caller's
function.

Guarantees: the view is copies, so a function that looks (or changes what it was given, or raises) decides no bit of the step;
it is called with gradients that are not finite too, before the step refuses them. What it costs is paid only when there is
one.

Shapes: n sampled tokens of the update's minibatch, trial after trial in index order, chunk after chunk, by position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from t1actors.train.batch import Batch, TokenPlace

FloatsN: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class ActorUpdateView:
    """One update of the actor after its backward passes and before the optimizer. Log-probs are in nats, at the batch's
    temperature; every token here has m = 1."""

    step: int
    update: int
    """From 1, over the epochs of the step."""
    epoch: int
    """From 0."""
    batch: Batch
    places: tuple[int, ...]
    """Where the minibatch's trials are in ``batch.trials``."""
    tokens_n: npt.NDArray[np.int64]
    """Where the tokens are among the batch's T; ``place`` says more of one."""
    current_n: FloatsN
    """log pi under the weights of this update."""
    behaviour_n: FloatsN
    """log pi_b: of the version that sampled the token, run by the trainer. The ratio is exp(current - behaviour)."""
    sampler_n: FloatsN
    """q: the log-prob that the sampler recorded. It decides nothing; behaviour - sampler is the engine gap."""
    advantage_n: FloatsN
    value_n: FloatsN
    """V_old."""
    loss_n: FloatsN
    """-min(ratio A, clip(ratio) A); the update's loss is its mean over n."""
    clipped_n: npt.NDArray[np.bool_]
    """Where the clip decides the loss, so that the token gives no gradient."""
    gradients: Mapping[str, torch.Tensor]
    """Float32 gradient of each tensor, before clipping by the global norm."""
    gradient_norm: float
    """The global norm before clipping; may be infinite or NaN, and then the step ends with ``NonFiniteError``."""

    @property
    def log_ratio_n(self) -> FloatsN:
        """log pi - log pi_b, from the float32 log-probs."""
        return self.current_n - self.behaviour_n

    @property
    def kl(self) -> float:
        """Mean of ratio - 1 - log ratio over the update's tokens: an estimate of KL(pi_b, pi)."""
        log_ratio_n = self.log_ratio_n.astype(np.float64)
        return float((np.exp(log_ratio_n) - 1.0 - log_ratio_n).mean())

    def place(self, n: int) -> TokenPlace:
        """Trial, chunk, position and turn of the view's token ``n``."""
        return self.batch.place_of_token(int(self.tokens_n[n]))


@dataclass(frozen=True, kw_only=True)
class CriticUpdateView:
    """One update of the critic after its backward passes and before the optimizer."""

    step: int
    update: int
    """From 1, over the epochs of the step."""
    epoch: int
    """From 0."""
    batch: Batch
    places: tuple[int, ...]
    """Where the minibatch's trials are in ``batch.trials``."""
    tokens_n: npt.NDArray[np.int64]
    """Where the tokens are among the batch's T; ``place`` says more of one."""
    value_n: FloatsN
    """V under the weights of this update."""
    old_value_n: FloatsN
    """V_old, from before the step; in the first update of a step the same as V."""
    return_n: FloatsN
    """R, what V is drawn towards: reward to come by lambda-returns over V_old."""
    value_clip: float
    """c; 0: no clip."""
    loss_n: FloatsN
    """max((V - R)^2, (V_clip - R)^2), times the configured loss scale; the update's loss is its mean over n."""
    gradients: Mapping[str, torch.Tensor]
    """Float32 gradient of each tensor, before clipping by the global norm."""
    gradient_norm: float
    """The global norm before clipping; may be infinite or NaN, and then the step ends with ``NonFiniteError``."""

    @property
    def error_n(self) -> FloatsN:
        """V - R."""
        return self.value_n - self.return_n

    @property
    def clipped_n(self) -> npt.NDArray[np.bool_]:
        """Where the clip decides the loss, so that the token gives no gradient."""
        if self.value_clip == 0:
            return np.zeros(len(self.value_n), dtype=np.bool_)
        moved_n = np.clip(self.value_n - self.old_value_n, -self.value_clip, self.value_clip)
        return np.square(self.old_value_n + moved_n - self.return_n) > np.square(self.error_n)

    def place(self, n: int) -> TokenPlace:
        """Trial, chunk, position and turn of the view's token ``n``."""
        return self.batch.place_of_token(int(self.tokens_n[n]))


Inspect: TypeAlias = Callable[[ActorUpdateView], None]
"""Called once an update. What it raises leaves the step, so that a debugger can stop in it."""
InspectCritic: TypeAlias = Callable[[CriticUpdateView], None]
"""The same of the critic."""
