"""One forward over the modules of a Hugging Face mixture-of-experts model, for a slab of tokens of any sequences.

The sampler's prefill and decode, the trainer's packed batches and the critic all run this code; they differ only in the
attention they pass: what a row of the slab may look at, and where keys and values come from.

Guarantees: on one sequence the result equals Hugging Face's own forward up to float rounding, with the same routing; no
padding exists, so every row is a real token; no state is kept between calls; with one thread the same inputs give
the same bits, and the gradients too.

Left to others: logits (``policy``, ``value``), caches (``engine.cache``), checking recorded routing (``routing``).

Shapes: N rows of the slab, H hidden, L mixture-of-experts layers, K experts per token, Q query heads, G key/value
heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.qwen3_moe.modeling_qwen3_moe import (
    Qwen3MoeModel,
    Qwen3MoeSparseMoeBlock,
    apply_rotary_pos_emb,
)

from t1actors.models.routing import route


class Attention(Protocol):
    """What the rows of a slab attend to."""

    def __call__(self, layer: int, query_NQD: Tensor, key_NGD: Tensor, value_NGD: Tensor, scale: float) -> Tensor:
        """The attended values (N, Q, D). Called once a layer, in layer order."""
        ...


class PackedAttention:
    """The slab holds whole sequences from their first token, one after another: causal within each, blind to the
    others."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = list(lengths)

    def __call__(self, layer: int, query_NQD: Tensor, key_NGD: Tensor, value_NGD: Tensor, scale: float) -> Tensor:
        attended = [
            functional.scaled_dot_product_attention(
                query.transpose(0, 1)[None],
                key.transpose(0, 1)[None],
                value.transpose(0, 1)[None],
                is_causal=True,
                scale=scale,
                enable_gqa=True,
            )[0].transpose(0, 1)
            for query, key, value in zip(
                *(t.split(self._lengths) for t in (query_NQD, key_NGD, value_NGD)), strict=True
            )
        ]
        return torch.cat(attended)


@dataclass(frozen=True)
class Forwarded:
    """What a slab's forward gives: the final, normalised hidden states and the experts in use (int64)."""

    hidden_NH: Tensor
    routing_NLK: Tensor


class Trunk:
    """The forward over a ``Qwen3MoeModel``. Holds no weights of its own."""

    def __init__(self, base: Qwen3MoeModel) -> None:
        self._base = base
        self._layers = list(base.layers)
        config = cast(Any, base.config)
        self._normalise = bool(config.norm_topk_prob)
        self.routed_layers: tuple[str, ...] = tuple(
            f"layers.{i}.mlp.gate"
            for i, layer in enumerate(self._layers)
            if isinstance(cast(Any, layer).mlp, Qwen3MoeSparseMoeBlock)
        )
        """The router of each column of a recording, by module name; dense layers have none."""

    def forward(
        self, ids_N: Tensor, positions_N: Tensor, attention: Attention, routing_NLK: Tensor | None = None
    ) -> Forwarded:
        """Run the slab. ``routing_NLK`` (int64, checked) is replayed; without it the routers choose."""
        hidden_NH, chosen = self._run(ids_N, positions_N, attention, routing_NLK, None)
        return Forwarded(hidden_NH, torch.stack(chosen, dim=1))

    def hidden_at(
        self,
        ids_N: Tensor,
        positions_N: Tensor,
        attention: Attention,
        rows_R: Tensor,
        routing_NLK: Tensor | None = None,
    ) -> Tensor:
        """The final hidden states of ``rows_R`` alone. Nothing looks at the others any more once the last layer has
        attended, so its feed-forward runs on these rows only."""
        hidden_RH, _ = self._run(ids_N, positions_N, attention, routing_NLK, rows_R)
        return hidden_RH

    def _run(
        self,
        ids_N: Tensor,
        positions_N: Tensor,
        attention: Attention,
        routing_NLK: Tensor | None,
        rows_R: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:
        hidden_NH = self._base.embed_tokens(ids_N)
        cos_1ND, sin_1ND = self._base.rotary_emb(hidden_NH, positions_N[None])
        cos_ND, sin_ND = cos_1ND[0], sin_1ND[0]
        chosen: list[Tensor] = []
        for index, module in enumerate(self._layers):
            layer = cast(Any, module)
            hidden_NH = hidden_NH + self._attend(
                layer.self_attn, index, layer.input_layernorm(hidden_NH), cos_ND, sin_ND, attention
            )
            narrowed_R = rows_R if index == len(self._layers) - 1 else None
            if narrowed_R is not None:
                hidden_NH = hidden_NH.index_select(0, narrowed_R)
            normed_NH = layer.post_attention_layernorm(hidden_NH)
            if isinstance(layer.mlp, Qwen3MoeSparseMoeBlock):
                recorded_NK = None if routing_NLK is None else routing_NLK[:, len(chosen)]
                if narrowed_R is not None and recorded_NK is not None:
                    recorded_NK = recorded_NK.index_select(0, narrowed_R)
                weights_NK, experts_NK = route(layer.mlp.gate, normed_NH, recorded_NK, normalise=self._normalise)
                chosen.append(experts_NK)
                hidden_NH = hidden_NH + layer.mlp.experts(normed_NH, experts_NK, weights_NK)
            else:
                hidden_NH = hidden_NH + layer.mlp(normed_NH)
        return self._base.norm(hidden_NH), chosen

    @staticmethod
    def _attend(
        block: Any, index: int, hidden_NH: Tensor, cos_ND: Tensor, sin_ND: Tensor, attention: Attention
    ) -> Tensor:
        rows = hidden_NH.shape[0]
        query_NQD = block.q_norm(block.q_proj(hidden_NH).view(rows, -1, block.head_dim))
        key_NGD = block.k_norm(block.k_proj(hidden_NH).view(rows, -1, block.head_dim))
        value_NGD = block.v_proj(hidden_NH).view(rows, -1, block.head_dim)
        query_NQD, key_NGD = apply_rotary_pos_emb(query_NQD, key_NGD, cos_ND, sin_ND)
        attended_NQD = attention(index, query_NQD, key_NGD, value_NGD, block.scaling)
        return cast(nn.Module, block.o_proj)(attended_NQD.reshape(rows, -1))


def packed_positions(lengths: Sequence[int]) -> Tensor:
    """0, 1, ... of each sequence, one after another."""
    return torch.cat([torch.arange(n) for n in lengths]) if lengths else torch.zeros(0, dtype=torch.int64)
