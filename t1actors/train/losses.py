"""The two losses of T1 section 7, per sampled token, and what is measured beside them. Pure tensor functions.

Shapes: n sampled tokens of a micro-batch. The caller sums a loss over n and divides by N, the number of sampled
tokens of the whole optimizer step, fixed before the step began.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

LANES = 64
"""Elementwise functions run on multiples of this many elements: torch computes the rest of a vector loop with other
code and, for exp, with other bits."""


@dataclass(frozen=True)
class PolicyTerms:
    """``loss_n`` carries gradient; the others are detached: ``ratio_n`` = pi_t / pi_b, and ``clipped_n`` says where the
    clip decides the loss (so that the token gives no gradient)."""

    loss_n: torch.Tensor
    ratio_n: torch.Tensor
    clipped_n: torch.Tensor


def policy_terms(
    current_n: torch.Tensor, behaviour_n: torch.Tensor, advantage_n: torch.Tensor, *, clip: float
) -> PolicyTerms:
    """-min(ratio A, clip(ratio, 1 - c, 1 + c) A) with ratio = exp(log pi_t - log pi_b), both by the trainer.

    ``current_n`` and ``behaviour_n`` are log-probabilities at the sampling temperature with the same replayed routing.
    """
    ratio_n = _exp(current_n - behaviour_n)
    free_n = ratio_n * advantage_n
    bound_n = ratio_n.clamp(1.0 - clip, 1.0 + clip) * advantage_n
    return PolicyTerms(
        loss_n=-torch.minimum(free_n, bound_n),
        ratio_n=ratio_n.detach(),
        clipped_n=(bound_n < free_n).detach(),
    )


def value_loss(
    value_n: torch.Tensor, old_n: torch.Tensor, return_n: torch.Tensor, *, value_clip: float
) -> torch.Tensor:
    """max((V - R)^2, (V_clip - R)^2) with V_clip = V_old + clip(V - V_old, -c, c); c = 0 turns the clip off."""
    free_n = (value_n - return_n).square()
    if value_clip == 0:
        return free_n
    bound_n = old_n + (value_n - old_n).clamp(-value_clip, value_clip)
    return torch.maximum(free_n, (bound_n - return_n).square())


def kl_estimate(log_ratio_n: torch.Tensor) -> torch.Tensor:
    """ratio - 1 - log ratio: per token, never negative; its mean over tokens sampled from pi_b estimates KL(pi_b,
    pi_t)."""
    return _exp(log_ratio_n) - 1.0 - log_ratio_n


def _exp(x_n: torch.Tensor) -> torch.Tensor:
    """e^x, an element's bits independent of its place."""
    count = x_n.shape[0]
    return torch.exp(functional.pad(x_n, (0, -count % LANES)))[:count]
