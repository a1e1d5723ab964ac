"""One forward for a slab of tokens of any sequences, over the weights of a Hugging Face Qwen3-MoE model and exact
kernels.

The sampler's prefill and decode, the trainer's packed batches and the critic all run this code; they differ only in the
attention they pass: where keys and values of earlier positions come from.

Guarantees: what a row gets depends on its sequence up to it and on the weights alone, in every bit: not on the batch,
the chunk it came in, its place, or whether a gradient is wanted. No padding exists. Experts are combined in ascending
order, whoever chose them. On one sequence the result equals Hugging Face's own forward up to float rounding. The
gradients of weights go to exact sums (``gradients``), grain by grain (``cut``), so no packing changes them.

Left to others: logits (``policy``, ``value``), caches (``engine.cache``), checking recorded routing (``routing``).

Shapes: N rows of the slab, H hidden, L mixture-of-experts layers, K experts per token, E experts, Q query heads, G
key/value heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import torch
from t1kernels import functions
from t1kernels.exact import ExactSum
from t1kernels.interface import PAGE, Grains, Kernels
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeModel, Qwen3MoeSparseMoeBlock

from t1actors.models.cut import Cut
from t1actors.models.gradients import Gradients
from t1actors.models.prepared import Prepared

TABLE_STEP = 512
"""Rotary angles are made for whole multiples of this many positions: torch's vector loops then have no tail with
other bits."""


class Attention(Protocol):
    """What the rows of a slab attend to."""

    def __call__(
        self, kernels: Kernels, layer: int, query_NQD: Tensor, key_NGD: Tensor, value_NGD: Tensor, scale: float
    ) -> Tensor:
        """The attended values (N, Q, D)."""
        ...


class PackedAttention:
    """The slab holds whole sequences from their first token, one after another: causal within each, blind to the
    others."""

    def __init__(self, lengths: Sequence[int]) -> None:
        lengths_S = torch.tensor(list(lengths), dtype=torch.int64)
        pages_S = (lengths_S + PAGE - 1) // PAGE
        self._pages = int(pages_S.sum())
        self._rows = (torch.repeat_interleave(pages_S.cumsum(0) - pages_S, lengths_S), packed_positions(lengths))
        self._sequences = (lengths_S.cumsum(0) - lengths_S, lengths_S)

    def __call__(
        self, kernels: Kernels, layer: int, query_NQD: Tensor, key_NGD: Tensor, value_NGD: Tensor, scale: float
    ) -> Tensor:
        heads, width = key_NGD.shape[1:]
        pages = (torch.empty(self._pages, heads, width, PAGE), torch.empty(self._pages, heads, PAGE, width))
        return functions.attention(
            kernels, query_NQD, key_NGD, value_NGD, pages=pages, rows=self._rows, sequences=self._sequences, scale=scale
        )


@dataclass(frozen=True)
class Forwarded:
    """What a slab's forward gives: the final, normalised hidden states and the experts in use (int64, ascending)."""

    hidden_NH: Tensor
    routing_NLK: Tensor


@dataclass(frozen=True)
class _Places:
    """Where a weight's gradient goes, for the rows of one part of the forward; nowhere without gradients."""

    gradients: Gradients | None
    grains: Grains | None = None

    def into(self, name: str) -> ExactSum | None:
        return None if self.gradients is None else self.gradients.sums[name]


@dataclass(frozen=True)
class _Rows:
    """What every layer needs to know of the slab's rows, held by value: a layer that is run again in the backward pass is run
    with its own slab's, whatever ``Gradients`` has met since."""

    cut: Cut | None
    attention: Attention
    angles: tuple[Tensor, Tensor]
    whole: _Places
    heads: _Places
    key_heads: _Places


class Trunk:
    """The forward over a ``Qwen3MoeModel``; ``prepared`` holds its weights under ``prefix`` + Hugging Face's names."""

    def __init__(self, base: Qwen3MoeModel, prepared: Prepared, *, prefix: str = "model.") -> None:
        self._base = base
        self._prepared = prepared
        self._kernels = prepared.kernels
        self._prefix = prefix
        config = cast(Any, base.config)
        self._heads: int = config.num_attention_heads
        self._key_heads: int = config.num_key_value_heads
        self._width: int = cast(Any, base.layers[0]).self_attn.head_dim
        self._scale: float = cast(Any, base.layers[0]).self_attn.scaling
        self._eps: float = config.rms_norm_eps
        self._experts: int = config.num_experts
        self._chosen: int = config.num_experts_per_tok
        self._normalise = bool(config.norm_topk_prob)
        self._routed = [isinstance(cast(Any, layer).mlp, Qwen3MoeSparseMoeBlock) for layer in base.layers]
        self.routed_layers: tuple[str, ...] = tuple(
            f"layers.{i}.mlp.gate" for i, routed in enumerate(self._routed) if routed
        )
        """The router of each column of a recording, by module name; dense layers have none."""
        self._angles: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    @property
    def head_width(self) -> int:
        return self._width

    def forward(
        self,
        ids_N: Tensor,
        positions_N: Tensor,
        attention: Attention,
        routing_NLK: Tensor | None = None,
        *,
        rows_R: Tensor | None = None,
        gradients: Gradients | None = None,
        recompute: bool = False,
    ) -> Forwarded:
        """Run the slab. ``routing_NLK`` (int64, checked, ascending) is replayed; without it the routers choose.

        ``rows_R``: the final hidden states of these rows alone are wanted. Nothing looks at the others any more once
        the last layer has attended, so its feed-forward, and its column of the routing, has these rows only.
        ``gradients`` collects those of the weights. ``recompute``: keep a layer's input instead of all within it, and
        run it again in the backward pass.
        """
        cut = None if gradients is None else gradients.cut
        rows = _Rows(
            cut=cut,
            attention=attention,
            angles=self._rotary(positions_N),
            whole=_Places(gradients, None if cut is None else cut.dense()),
            heads=_Places(gradients, None if cut is None else cut.dense(self._heads)),
            key_heads=_Places(gradients, None if cut is None else cut.dense(self._key_heads)),
        )
        embed = f"{self._prefix}embed_tokens.weight"
        hidden_NH = functions.embedding(
            self._kernels, self._prepared.vector(embed), ids_N, None if gradients is None else gradients.sums[embed]
        )
        chosen: list[Tensor] = []
        column = 0
        for index, routed in enumerate(self._routed):
            narrowed_R = rows_R if index == len(self._routed) - 1 else None
            recorded_NK = None
            if routed and routing_NLK is not None:
                recorded_NK = routing_NLK[:, column]
                if narrowed_R is not None:
                    recorded_NK = recorded_NK.index_select(0, narrowed_R)
                recorded_NK = recorded_NK.contiguous()
            column += routed

            layer = partial(
                self._layer, index, recorded_NK=recorded_NK, narrowed_R=narrowed_R, rows=rows, gradients=gradients
            )
            if recompute and gradients is not None:
                made = checkpoint(layer, hidden_NH, use_reentrant=False, preserve_rng_state=False)
                hidden_NH, experts_NK = cast("tuple[Tensor, Tensor]", made)
            else:
                hidden_NH, experts_NK = layer(hidden_NH)
            if routed:
                chosen.append(experts_NK)
        hidden_NH = self._norm("norm", hidden_NH, self._final(rows.whole, rows_R))
        stacked = torch.stack(chosen, dim=1) if len({t.shape[0] for t in chosen}) == 1 else torch.empty(0)
        return Forwarded(hidden_NH, stacked)

    def _final(self, whole: _Places, rows_R: Tensor | None) -> _Places:
        gradients = whole.gradients
        if gradients is None or rows_R is None:
            return whole
        return _Places(gradients, gradients.cut.rows(rows_R).dense())

    def _rotary(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines (N, D), float32, from one table."""
        longest = int(positions_N.max()) + 1 if positions_N.numel() else 0
        cosine, sine = self._angles
        if cosine.shape[0] < longest:
            size = -(-longest // TABLE_STEP) * TABLE_STEP
            with torch.no_grad():
                made = self._base.rotary_emb(torch.zeros(1, dtype=torch.float32), torch.arange(size)[None])
            self._angles = cosine, sine = made[0][0].contiguous(), made[1][0].contiguous()
        return cosine.index_select(0, positions_N), sine.index_select(0, positions_N)

    def _norm(self, name: str, x: Tensor, places: _Places) -> Tensor:
        name = f"{self._prefix}{name}.weight"
        return functions.rms_norm(
            self._kernels, x, self._prepared.vector(name), self._eps, places.grains, places.into(name)
        )

    def _linear(self, name: str, x_NH: Tensor, places: _Places) -> Tensor:
        weight, bias = f"{self._prefix}{name}.weight", f"{self._prefix}{name}.bias"
        y_NO = functions.matmul(self._kernels, x_NH, self._prepared.matrix(weight), places.grains, places.into(weight))
        if bias not in self._prepared:
            return y_NO
        return functions.add_bias(self._kernels, y_NO, self._prepared.vector(bias), places.grains, places.into(bias))

    def _layer(
        self,
        index: int,
        hidden_NH: Tensor,
        *,
        recorded_NK: Tensor | None,
        narrowed_R: Tensor | None,
        rows: _Rows,
        gradients: Gradients | None,
    ) -> tuple[Tensor, Tensor]:
        """The rows after the layer (``narrowed_R`` of them alone), and the experts in use."""
        hidden_NH = hidden_NH + self._attend(index, hidden_NH, rows)
        if narrowed_R is not None:
            hidden_NH = hidden_NH.index_select(0, narrowed_R)
        return self._feed_forward(index, hidden_NH, recorded_NK, narrowed_R, rows.cut, gradients)

    def _attend(self, index: int, hidden_NH: Tensor, rows: _Rows) -> Tensor:
        whole = rows.whole
        layer = f"layers.{index}."
        block = f"{layer}self_attn."
        normed_NH = self._norm(f"{layer}input_layernorm", hidden_NH, whole)
        query_NQD = self._linear(f"{block}q_proj", normed_NH, whole).view(-1, self._heads, self._width)
        key_NGD = self._linear(f"{block}k_proj", normed_NH, whole).view(-1, self._key_heads, self._width)
        value_NGD = self._linear(f"{block}v_proj", normed_NH, whole).view(-1, self._key_heads, self._width)
        query_NQD = functions.rope(self._kernels, self._norm(f"{block}q_norm", query_NQD, rows.heads), *rows.angles)
        key_NGD = functions.rope(self._kernels, self._norm(f"{block}k_norm", key_NGD, rows.key_heads), *rows.angles)
        attended_NQD = rows.attention(self._kernels, index, query_NQD, key_NGD, value_NGD, self._scale)
        return self._linear(f"{block}o_proj", attended_NQD.reshape(attended_NQD.shape[0], -1), whole)

    def _feed_forward(
        self,
        index: int,
        hidden_NH: Tensor,
        recorded_NK: Tensor | None,
        narrowed_R: Tensor | None,
        cut: Cut | None,
        gradients: Gradients | None,
    ) -> tuple[Tensor, Tensor]:
        """The rows after the layer's feed-forward, and the experts in use (none of a dense layer)."""
        if cut is not None and narrowed_R is not None:
            cut = cut.rows(narrowed_R)
        places = _Places(gradients, None if cut is None else cut.dense())
        layer = f"layers.{index}."
        normed_NH = self._norm(f"{layer}post_attention_layernorm", hidden_NH, places)
        if not self._routed[index]:
            gate_NI = self._linear(f"{layer}mlp.gate_proj", normed_NH, places)
            up_NI = self._linear(f"{layer}mlp.up_proj", normed_NH, places)
            inner_NI = functions.silu_mul(self._kernels, torch.cat((gate_NI, up_NI), dim=-1))
            return hidden_NH + self._linear(f"{layer}mlp.down_proj", inner_NI, places), torch.empty(
                0, dtype=torch.int64
            )
        logits_NE = self._linear(f"{layer}mlp.gate", normed_NH, places)
        experts_NK = self._kernels.select_experts(logits_NE, self._chosen) if recorded_NK is None else recorded_NK
        weights_NK = functions.gate(self._kernels, logits_NE, experts_NK, normalise=self._normalise)
        dispatch = self._kernels.dispatch(experts_NK, self._experts)
        experts = _Places(gradients, None if cut is None else cut.experts(dispatch.offset, dispatch.token))
        rows_RH = functions.spread(self._kernels, normed_NH, dispatch)
        rows_RH = self._expert(f"{layer}mlp.experts.gate_up_proj", rows_RH, dispatch.offset, experts)
        rows_RH = functions.silu_mul(self._kernels, rows_RH)
        rows_RH = self._expert(f"{layer}mlp.experts.down_proj", rows_RH, dispatch.offset, experts)
        return hidden_NH + functions.combine(self._kernels, rows_RH, weights_NK, dispatch), experts_NK

    def _expert(self, name: str, rows_RH: Tensor, offset_E: Tensor, places: _Places) -> Tensor:
        name = f"{self._prefix}{name}"
        return functions.grouped_matmul(
            self._kernels, rows_RH, self._prepared.matrix(name), offset_E, places.grains, places.into(name)
        )


def packed_positions(lengths: Sequence[int]) -> Tensor:
    """0, 1, ... of each sequence, one after another."""
    return torch.cat([torch.arange(n) for n in lengths]) if lengths else torch.zeros(0, dtype=torch.int64)
