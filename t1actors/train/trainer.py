"""The working copy of a trainer state inside one step: gradients in, updates out.

Guarantees: gradients accumulate in float32, micro-batch after micro-batch in the order given; an update sees the sum, clips
it by the global norm, and never happens with a gradient that is not finite; the state it began from is not touched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from t1actors.models.network import Network
from t1actors.train.digests import tensor_digests
from t1actors.train.errors import NonFiniteError
from t1actors.train.networks import load_masters
from t1actors.train.optimizer import OptimizerConfig, adamw, clip_by_norm, global_norm
from t1actors.train.state import Tensors, TrainerState


@dataclass(frozen=True)
class Applied:
    """One optimizer update: the global norm before clipping, and a digest of each tensor's unclipped gradient."""

    gradient_norm: float
    gradients: list[bytes]


class Trainer:
    """See the module. ``what`` names the step and part in errors; ``network`` is scratch and holds the updated weights."""

    def __init__(self, network: Network, state: TrainerState, config: OptimizerConfig, *, what: str) -> None:
        load_masters(network, state.weights)
        self._network = network
        self._config = config
        self._what = what
        self._architecture = state.architecture
        self._parameters = network.parameters()
        self._masters = {name: state.weights[name].clone() for name in self._parameters}
        self._first = _moments(state.first, self._masters)
        self._second = _moments(state.second, self._masters)
        self._updates = state.updates
        self._gradients: dict[str, torch.Tensor] = {}

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of ``loss`` to the update that is being prepared."""
        torch.autograd.backward(loss)
        for name, parameter in self._parameters.items():
            gradient = parameter.grad
            parameter.grad = None
            if gradient is None:
                continue
            if name in self._gradients:
                self._gradients[name].add_(gradient)
            else:
                self._gradients[name] = gradient.to(torch.float32)

    def gradients(self) -> dict[str, torch.Tensor]:
        """Copies of the gradients that the next ``apply`` will use, before clipping."""
        return {name: gradient.clone() for name, gradient in self._summed().items()}

    def apply(self) -> Applied:
        """Update masters and network, and begin the next update. Raises ``NonFiniteError``."""
        gradients = self._summed()
        self._gradients = {}
        digests = tensor_digests(gradients)
        norm = global_norm(gradients.values())
        if not math.isfinite(norm):
            odd = next((name for name, g in gradients.items() if not bool(torch.isfinite(g).all())), "their sum")
            raise NonFiniteError(
                f"{self._what}, update {self._updates + 1}: the gradient of {odd} is not finite; nothing was updated. "
                "Lower the learning rate or look at the batch's rewards and log-probs"
            )
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
        return Applied(norm, digests)

    def _summed(self) -> dict[str, torch.Tensor]:
        return {name: self._gradients.get(name, torch.zeros_like(m)) for name, m in self._masters.items()}

    def state(self) -> TrainerState:
        """The state after the updates so far."""
        return TrainerState(self._architecture, self._masters, self._first, self._second, self._updates)


def _moments(given: Tensors, masters: Tensors) -> dict[str, torch.Tensor]:
    return {name: given[name].clone() if given else torch.zeros_like(m) for name, m in masters.items()}
