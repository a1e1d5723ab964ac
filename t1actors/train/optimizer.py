"""AdamW over named float32 masters, in place.

Guarantees: the update is elementwise, so its bits depend on the tensors and the settings alone, never on how tensors
are grouped; decay is decoupled and applied to every tensor; the rate warms up linearly over the first updates. Leaves
to others: digests, casting the masters to the network's dtype.

    m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g^2
    w = w - rate decay w - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

import torch

EPSILON = 1e-8


class OptimizerConfig(Protocol):
    """What ``ActorConfig`` and ``CriticConfig`` have in common."""

    @property
    def learning_rate(self) -> float:
        """The rate after its warm-up."""
        ...

    @property
    def betas(self) -> tuple[float, float]:
        """Decay of the first and the second moment, each in [0, 1)."""
        ...

    @property
    def weight_decay(self) -> float:
        """Decoupled: multiplied by the rate."""
        ...

    @property
    def gradient_clip(self) -> float:
        """Largest global norm; 0 turns clipping off."""
        ...

    @property
    def rate_warmup_updates(self) -> int:
        """The rate rises linearly over this many updates; 0: at once."""
        ...


def rate_at(config: OptimizerConfig, update: int) -> float:
    """The rate of update number ``update`` (1 is the first since the moments were zero)."""
    if config.rate_warmup_updates <= 0:
        return config.learning_rate
    return config.learning_rate * min(1.0, update / config.rate_warmup_updates)


def adamw(
    weight: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    *,
    config: OptimizerConfig,
    update: int,
) -> None:
    """Update number ``update`` of one tensor and its moments, all in place."""
    beta1, beta2 = config.betas
    rate = rate_at(config, update)
    weight.mul_(1.0 - rate * config.weight_decay)
    first.mul_(beta1).add_(gradient, alpha=1.0 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
    denominator = second.sqrt().div_(math.sqrt(1.0 - beta2**update)).add_(EPSILON)
    weight.addcdiv_(first, denominator, value=-rate / (1.0 - beta1**update))


def global_norm(gradients: Iterable[torch.Tensor]) -> float:
    """The norm over all tensors. Squares are exact in float64; rows are summed each by itself and the rows' sums
    exactly, so no order or sharding of whole rows changes it."""
    rows: list[float] = []
    for gradient in gradients:
        flat = gradient.double().reshape(-1, gradient.shape[-1]) if gradient.ndim else gradient.double().reshape(1, 1)
        rows += flat.square().sum(dim=-1).tolist()
    return math.sqrt(math.fsum(rows))


def clip_by_norm(gradients: Iterable[torch.Tensor], norm: float, limit: float) -> None:
    """Scales in place so that the global norm is at most ``limit``; 0 turns clipping off."""
    if limit > 0 and norm > limit:
        for gradient in gradients:
            gradient.mul_(limit / norm)
