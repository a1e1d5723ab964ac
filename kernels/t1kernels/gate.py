"""The gate of a replayed router: recorded selection, live weights (T1 section 4).

Guarantees: gradient flows to the router's logits and never to the selection; for the recorded selection that the router
would make itself, the weights equal the router's own in every bit (same operations in the same order).

Shapes: N rows, E experts, K experts per row.
"""

import torch
from torch import Tensor


def replayed_gate(logits_NE: Tensor, experts_NK: Tensor, *, normalise: bool) -> Tensor:
    """The weights of the recorded experts under the softmax-then-select routers (Qwen2-MoE, Qwen3-MoE, OLMoE, Mixtral).

    With ``normalise`` this is g_e = exp(s_e) / sum over the recorded e' of exp(s_e'); without, the full softmax's
    values. Softmax in float32, result in the logits' dtype. ``experts_NK`` is int64 and was checked where it entered.
    """
    probabilities_NE = torch.softmax(logits_NE, dim=-1, dtype=torch.float32)
    weights_NK = probabilities_NE.gather(-1, experts_NK)
    if normalise:
        weights_NK = weights_NK / weights_NK.sum(dim=-1, keepdim=True)
    return weights_NK.to(logits_NE.dtype)
