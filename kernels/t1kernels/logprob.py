"""Log-probabilities of chosen tokens straight from hidden states, without keeping a row of logits.

Guarantees: memory beyond inputs and outputs is one block of logits, in the forward and in the backward pass (which
recomputes it); blocks are taken in row order, so one thread gives the same bits on every run; results are float32.

Shapes: R rows, H hidden width, V vocabulary.
"""

from typing import Any, cast

import torch
from torch import Tensor

BLOCK_ROWS = 1024


def _scaled_logits(hidden_BH: Tensor, weight_VH: Tensor, temperature: float) -> Tensor:
    """Logits in the weights' dtype, as the model's own head makes them, then float32 over the temperature."""
    logits_BV = torch.mm(hidden_BH, weight_VH.t()).float()
    return logits_BV if temperature == 1.0 else logits_BV / temperature


class _SelectedLogprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_RH: Tensor, weight_VH: Tensor, ids_R: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, normalisers = [], [], []
        for hidden_BH, ids_B in zip(hidden_RH.split(BLOCK_ROWS), ids_R.split(BLOCK_ROWS), strict=True):
            logits_BV = _scaled_logits(hidden_BH, weight_VH, temperature)
            normaliser_B = torch.logsumexp(logits_BV, dim=-1)
            selected_B = logits_BV.gather(-1, ids_B[:, None])[:, 0]
            # From log-probs, not as normaliser minus mean logit: two large numbers would cancel.
            all_BV = logits_BV - normaliser_B[:, None]
            logprobs.append(selected_B - normaliser_B)
            entropies.append(-(torch.exp(all_BV) * all_BV).sum(-1))
            normalisers.append(normaliser_B)
        logprob_R, entropy_R = torch.cat(logprobs), torch.cat(entropies)
        ctx.save_for_backward(hidden_RH, weight_VH, ids_R, torch.cat(normalisers))
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy_R)
        return logprob_R, entropy_R

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden_RH, weight_VH, ids_R, normaliser_R = ctx.saved_tensors
        scaled_R = gradients[0] / ctx.temperature
        hidden_grads: list[Tensor] = []
        weight_grad_VH = torch.zeros(weight_VH.shape, dtype=torch.float32, device=weight_VH.device)
        blocks = zip(
            *(t.split(BLOCK_ROWS) for t in (hidden_RH, ids_R, normaliser_R, scaled_R)),
            strict=True,
        )
        for hidden_BH, ids_B, normaliser_B, scaled_B in blocks:
            logits_BV = _scaled_logits(hidden_BH, weight_VH, ctx.temperature)
            # d logprob / d logits = onehot - softmax, times the incoming gradient of its row
            slope_BV = torch.exp(logits_BV - normaliser_B[:, None]).mul_(-scaled_B[:, None])
            slope_BV.scatter_add_(1, ids_B[:, None], scaled_B[:, None])
            slope_BV = slope_BV.to(weight_VH.dtype)
            hidden_grads.append(torch.mm(slope_BV, weight_VH))
            weight_grad_VH += torch.mm(slope_BV.t(), hidden_BH)
        return torch.cat(hidden_grads), weight_grad_VH.to(weight_VH.dtype), None, None


def selected_logprob(
    hidden_RH: Tensor, weight_VH: Tensor, ids_R: Tensor, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(log-prob, entropy) of each row's distribution softmax(hidden weight^T / temperature), float32.

    The log-prob of ``ids_R[i]`` is differentiable in hidden and weight; the entropy is a report, outside autograd.
    """
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature}: log-probabilities need one above 0")
    result = _SelectedLogprob.apply(hidden_RH, weight_VH, ids_R, temperature)
    return cast("tuple[Tensor, Tensor]", result)
