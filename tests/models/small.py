"""Small networks whose routing and attention matter: weights large enough that a wrong expert or position shows."""

import torch
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

from t1actors.models.policy import Policy, new_policy

torch.set_num_threads(1)

VOCABULARY = 61


def small_config(**overrides) -> Qwen3MoeConfig:
    values = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
        "max_position_embeddings": 256,
    }
    return Qwen3MoeConfig(**(values | overrides))


def small_policy(*, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides) -> Policy:
    policy = new_policy(small_config(**overrides), seed=seed, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.parameters().items():
            if parameter.ndim >= 2:
                spread = 0.6 if "embed" in name else 1.5 * parameter.shape[-1] ** -0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return policy


def random_ids(count: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


def random_routing(policy: Policy, rows: int, *, seed: int = 0) -> torch.Tensor:
    """Valid rows that the routers would rarely choose themselves."""
    shape = policy.shape
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(rows, shape.routed_layers, shape.experts, generator=generator)
    return scores.topk(shape.experts_per_token, dim=-1).indices.sort(dim=-1).values


def packed_gradients(
    policy: Policy,
    ids_N: torch.Tensor,
    lengths: list[int],
    routing: object = None,
    *,
    rows_R: torch.Tensor | None = None,
    recompute: bool = False,
    upstream_R: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(log-probs of each row's own id, float32 gradients of their weighted sum) of one packed forward and backward."""
    gradients = policy.gradients()
    forwarded = policy.forward_packed(ids_N, lengths, routing, rows_R=rows_R, gradients=gradients, recompute=recompute)
    targets_R = ids_N if rows_R is None else ids_N[rows_R]
    logprobs_R, _ = policy.logprobs(forwarded.hidden_NH, targets_R, temperature=0.9, gradients=gradients, rows_R=rows_R)
    if upstream_R is None:
        upstream_R = torch.randn(logprobs_R.shape, generator=torch.Generator().manual_seed(9)) / 64
    torch.autograd.backward(logprobs_R, upstream_R)
    return logprobs_R.detach(), gradients.scaled(1.0)
