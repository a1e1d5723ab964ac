"""The policy: a Hugging Face Qwen3-MoE language model behind this package's one forward.

Guarantees: see ``trunk`` (one forward for sampler and trainer) and ``network`` (canonical weights). Log-probs and
entropies are float32; the logits of a row are only made where they are wanted.

Shapes: R wanted rows, H hidden, V vocabulary.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from t1kernels.logprob import selected_logprob
from torch import Tensor
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeForCausalLM

from t1actors.models.construction import constructing
from t1actors.models.network import Network
from t1actors.models.shape import NetworkShape
from t1actors.models.trunk import Trunk


def shape_of(config: Qwen3MoeConfig, trunk: Trunk) -> NetworkShape:
    """The sizes that cache, engine and records need."""
    c = cast(Any, config)
    return NetworkShape(
        vocabulary=c.vocab_size,
        hidden=c.hidden_size,
        layers=c.num_hidden_layers,
        routed_layers=len(trunk.routed_layers),
        experts=c.num_experts,
        experts_per_token=c.num_experts_per_tok,
        query_heads=c.num_attention_heads,
        key_heads=c.num_key_value_heads,
        head_width=c.head_dim,
        max_positions=c.max_position_embeddings,
    )


class Policy(Network):
    """A language model. ``module`` is the ``Qwen3MoeForCausalLM`` itself, usable as such."""

    def __init__(self, module: Qwen3MoeForCausalLM) -> None:
        trunk = Trunk(module.model)
        super().__init__(module, trunk, shape_of(cast(Qwen3MoeConfig, module.config), trunk))
        self.hf = module

    @property
    def head_VH(self) -> Tensor:
        """The language-model head's weight (the embedding itself when tied)."""
        return self.hf.lm_head.weight

    @property
    def dtype(self) -> torch.dtype:
        return self.head_VH.dtype

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Logits (R, V) of the given rows, in the model's dtype."""
        return self.hf.lm_head(hidden_RH)

    def logprobs(self, hidden_RH: Tensor, ids_R: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
        """(log-prob of ``ids_R``, entropy) at ``temperature``, float32; only the log-prob is differentiable."""
        return selected_logprob(hidden_RH, self.head_VH, ids_R, temperature=temperature)

    def copy(self) -> Policy:
        """A policy of its own with the same weights."""
        return Policy(copy.deepcopy(self.hf))


def new_policy(config: Qwen3MoeConfig, *, seed: int, dtype: torch.dtype = torch.float32, experts: str) -> Policy:
    """A freshly initialised policy; the same seed gives the same weights."""
    with constructing, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Qwen3MoeForCausalLM._from_config(config, dtype=dtype, experts_implementation=experts)
    return Policy(cast(Qwen3MoeForCausalLM, module))
