"""The working copy of a trainer state inside one step: gradients in, updates out.

Guarantees: an update is a function of its tokens and of nothing else: gradients are exact sums over grains
(``models.gradients``), so micro-batches, packing, recomputation and ranks change no bit of it; it never happens with
a gradient that is not finite or whose sum may be inexact; the state it began from is not touched.

The loss of an update is the sum of its tokens' losses over N. Each token enters the sums with the weight 2^-e, e the
smallest with N <= 2^e, so that no rounding depends on N; the exact sum is then multiplied by 2^e / N in float64 and
rounded once to float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from t1kernels.exact import ExactRangeError

from t1actors.models.gradients import Coarsest
from t1actors.models.network import Network
from t1actors.train.digests import tensor_digests
from t1actors.train.errors import NonFiniteError
from t1actors.train.networks import load_masters
from t1actors.train.optimizer import OptimizerConfig, adamw, clip_by_norm, global_norm
from t1actors.train.state import Tensors, TrainerState


@dataclass(frozen=True)
class Applied:
    """One optimizer update: the global norm before clipping, a digest of each tensor's unclipped gradient, and where the
    grid of the exact sums is coarsest."""

    gradient_norm: float
    gradients: list[bytes]
    coarsest: Coarsest


class Trainer:
    """See the module. ``what`` names the step and part in errors; ``network`` is scratch and holds the updated
    weights; ``loss_scale`` multiplies every loss."""

    def __init__(
        self, network: Network, state: TrainerState, config: OptimizerConfig, *, what: str, loss_scale: float = 1.0
    ) -> None:
        load_masters(network, state.weights)
        self._network = network
        self._config = config
        self._what = what
        self._loss_scale = loss_scale
        self._architecture = state.architecture
        self._masters = {name: state.weights[name].clone() for name in network.parameters()}
        self._first = _moments(state.first, self._masters)
        self._second = _moments(state.second, self._masters)
        self._updates = state.updates
        self._tokens = 1
        self.sums = network.gradients()
        """Where the forward passes of the update that is being prepared send their gradients."""

    def begin(self, tokens: int) -> None:
        """Prepare an update over ``tokens`` tokens, N of the module."""
        self._tokens = tokens
        self.sums = self._network.gradients()

    def backward(self, loss_n: torch.Tensor) -> None:
        """Add the gradients of some of the update's tokens. Raises ``NonFiniteError``."""
        try:
            torch.autograd.backward(loss_n, torch.full_like(loss_n, 0.5 ** _exponent(self._tokens)))
        except ExactRangeError as error:
            raise self._unusable(error) from error

    def gradients(self, *, checked: bool = True) -> dict[str, torch.Tensor]:
        """The gradients that ``apply`` would use now, before clipping. Raises ``NonFiniteError``; not ``checked``,
        also those that ``apply`` will refuse."""
        factor = 2.0 ** _exponent(self._tokens) / self._tokens * self._loss_scale
        try:
            return self.sums.scaled(factor, checked=checked)
        except ExactRangeError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: ExactRangeError) -> NonFiniteError:
        if error.finite:
            fix = (
                "the losses are too large for it: train on smaller rewards (a larger verify.reward_scale, which takes a new "
                "run), and look for tokens with a wild ratio or value (examples/debug_step.py)"
            )
        else:
            fix = "lower the learning rate, or look at the batch's rewards and log-probs (examples/debug_step.py)"
        return NonFiniteError(f"{self._what}, update {self._updates + 1}: {error}. Nothing was updated; {fix}")

    def apply(self) -> Applied:
        """Update masters and network. Raises ``NonFiniteError``."""
        gradients = self.gradients()
        digests, coarsest = tensor_digests(gradients), self.sums.coarsest()
        norm = global_norm(gradients.values())
        clip_by_norm(gradients.values(), norm, self._config.gradient_clip)
        self._updates += 1
        for name, gradient in gradients.items():
            adamw(
                self._masters[name],
                gradient,
                self._first[name],
                self._second[name],
                config=self._config,
                update=self._updates,
            )
        load_masters(self._network, self._masters)
        return Applied(norm, digests, coarsest)

    def state(self) -> TrainerState:
        """The state after the updates so far."""
        return TrainerState(self._architecture, self._masters, self._first, self._second, self._updates)


def _exponent(tokens: int) -> int:
    return (tokens - 1).bit_length()


def _moments(given: Tensors, masters: Tensors) -> dict[str, torch.Tensor]:
    return {name: given[name].clone() if given else torch.zeros_like(m) for name, m in masters.items()}
