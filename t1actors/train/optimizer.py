"""AdamW over named float32 masters, in place.

Guarantees: the update is elementwise and made of single operations that IEEE 754 rounds correctly (multiply, add,
divide, root), so its bits depend on the tensors and the settings alone: not on how tensors are grouped or cut, nor on
the processor. (``addcmul_``, ``addcdiv_`` and ``add_(alpha=)`` are fused on some processors and not on others.) Decay is
decoupled and applied to every tensor; the rate warms up linearly over the first updates. Leaves to others: digests,
casting the masters to the network's dtype.

    m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g^2
    w = w - rate decay w - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

import torch

EPSILON = 1e-8
AT_ONCE = 1 << 16
"""Elements worked on at a time; decides no bit."""


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
    for w, g, m, v in _pieces(weight, gradient, first, second):
        w.mul_(1.0 - rate * config.weight_decay)
        m.mul_(beta1).add_(g * (1.0 - beta1))
        v.mul_(beta2).add_(g.square().mul_(1.0 - beta2))
        denominator = v.sqrt().div_(math.sqrt(1.0 - beta2**update)).add_(EPSILON)
        w.sub_((m / denominator).mul_(rate / (1.0 - beta1**update)))


def _pieces(*tensors: torch.Tensor) -> Iterable[tuple[torch.Tensor, ...]]:
    """The same elements of each, ``AT_ONCE`` at a time: what is made in between stays in the processor's cache."""
    if not all(tensor.is_contiguous() for tensor in tensors):
        return [tensors]
    return zip(*(tensor.view(-1).split(AT_ONCE) for tensor in tensors), strict=True)


def global_norm(gradients: Iterable[torch.Tensor]) -> float:
    """The norm over all tensors. Squares are exact in float64; each row is summed by itself over a fixed tree, and the
    rows' sums exactly, so no order, no sharding of whole rows and no processor changes it."""
    rows: list[float] = []
    for gradient in gradients:
        flat = gradient.reshape(-1, gradient.shape[-1]) if gradient.ndim else gradient.reshape(1, 1)
        for some in flat.split(max(1, AT_ONCE // max(1, flat.shape[1]))):
            rows += _row_sums(some.double().square()).tolist()
    return math.sqrt(math.fsum(rows))


def _row_sums(rows_NK: torch.Tensor) -> torch.Tensor:
    """Float64 sums (N,): the second half of the columns is added to the first until one is left."""
    while (width := rows_NK.shape[-1]) > 1:
        half = (width + 1) // 2
        folded = rows_NK[:, :half].clone()
        folded[:, : width - half] += rows_NK[:, half:]
        rows_NK = folded
    return rows_NK[:, 0]


def clip_by_norm(gradients: Iterable[torch.Tensor], norm: float, limit: float) -> None:
    """Scales in place so that the global norm is at most ``limit``; 0 turns clipping off."""
    if limit > 0 and norm > limit:
        for gradient in gradients:
            gradient.mul_(limit / norm)
