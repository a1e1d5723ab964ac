"""The policy: a Hugging Face Qwen3-MoE language model behind this package's one forward.

Guarantees: see ``trunk`` (one forward for sampler and trainer, exact) and ``network`` (canonical weights). Log-probs and
entropies are float32; the trainer never has a whole row of logits in memory.

Shapes: R wanted rows, H hidden, V vocabulary.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from t1kernels import functions
from t1kernels.choice import default_kernels
from t1kernels.interface import Kernels, Weight
from torch import Tensor
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeForCausalLM

from t1actors.models.construction import constructing
from t1actors.models.gradients import Gradients
from t1actors.models.network import Network


class Policy(Network):
    """A language model. ``module`` is the ``Qwen3MoeForCausalLM`` itself, usable as such."""

    def __init__(self, module: Qwen3MoeForCausalLM, kernels: Kernels | None = None) -> None:
        super().__init__(module, module.model, kernels or default_kernels())
        self.hf = module
        tied = module.lm_head.weight is module.model.embed_tokens.weight
        self._head_name = "model.embed_tokens.weight" if tied else "lm_head.weight"

    @property
    def head(self) -> Weight:
        """The language-model head (the embedding itself when tied)."""
        return self.prepared.matrix(self._head_name)

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Logits (R, V) of the given rows, in the model's dtype. Without gradient."""
        return self.kernels.matmul(hidden_RH, self.head)

    def logprobs(
        self,
        hidden_RH: Tensor,
        ids_R: Tensor,
        *,
        temperature: float,
        gradients: Gradients | None = None,
        rows_R: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(log-prob of ``ids_R``, entropy) at ``temperature``, float32; only the log-prob is differentiable.

        ``rows_R``: which rows of the slab these are, for ``gradients``; None: all of them.
        """
        grains = into = None
        if gradients is not None:
            grains = (gradients.cut if rows_R is None else gradients.cut.rows(rows_R)).dense()
            into = gradients.sums[self._head_name]
        return functions.selected_logprob(
            self.kernels, hidden_RH, self.head, ids_R, temperature=temperature, grains=grains, into=into
        )

    def copy(self) -> Policy:
        """A policy of its own with the same weights."""
        return Policy(copy.deepcopy(self.hf), self.kernels)


def new_policy(
    config: Qwen3MoeConfig, *, seed: int, dtype: torch.dtype = torch.float32, kernels: Kernels | None = None
) -> Policy:
    """A freshly initialised policy; the same seed gives the same weights."""
    with constructing, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Qwen3MoeForCausalLM._from_config(config, dtype=dtype)
    return Policy(cast(Qwen3MoeForCausalLM, module), kernels)
