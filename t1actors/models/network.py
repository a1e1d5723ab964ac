"""What policy and critic share: exact kernels, a trunk, canonical weights in and out, the packed forward.

Guarantees: ``weights`` are the canonical ones (tied tensors once, name order); ``load_weights`` copies into the
network's own aligned memory and casts to its dtype, and changes nothing when it raises; a network never touches
another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from t1kernels.interface import Kernels
from torch import Tensor, nn
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeModel

from t1actors.models.checkpoint import require_same_tensors, weights_digest
from t1actors.models.cut import Cut
from t1actors.models.gradients import Gradients
from t1actors.models.prepared import Prepared
from t1actors.models.routing import RoutingArray, check_routing
from t1actors.models.shape import NetworkShape
from t1actors.models.trunk import Attention, Forwarded, PackedAttention, Trunk, packed_positions


class Network:
    """Base of ``Policy`` and ``ValueModel``. ``module`` is the torch module that owns every parameter, ``base`` its trunk."""

    def __init__(self, module: nn.Module, base: Qwen3MoeModel, kernels: Kernels) -> None:
        self.module = module.eval()
        self.kernels = kernels
        self._parameters = dict(sorted(module.named_parameters()))
        for parameter in self._parameters.values():
            parameter.requires_grad_(False)  # gradients go to exact sums, not through torch
        self.prepared = Prepared(kernels, self._parameters)
        self.trunk = Trunk(base, self.prepared)
        self.shape = shape_of(base, self.trunk)

    @property
    def dtype(self) -> torch.dtype:
        """The trunk's number type."""
        return self._parameters["model.embed_tokens.weight"].dtype

    def parameters(self) -> dict[str, nn.Parameter]:
        """Canonical name to parameter, in name order: the order of optimizer state and of digests."""
        return dict(self._parameters)

    def weights(self) -> dict[str, Tensor]:
        """The live tensors by canonical name, detached, not copied."""
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    def digest(self) -> str:
        """The content digest of the weights: the version's name."""
        return weights_digest(self.weights())

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy ``weights`` in. Raises ``CheckpointError`` when they are another network's."""
        require_same_tensors(self._parameters, weights, what=type(self).__name__)
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(weights[name])

    def gradients(self) -> Gradients:
        """Empty sums for an update of this network's weights."""
        return Gradients({name: parameter.shape for name, parameter in self._parameters.items()})

    def check_routing(self, routing: RoutingArray | Tensor, *, rows: int) -> Tensor:
        """``routing`` as this network's forwards take it. Raises ``RoutingError``."""
        return check_routing(
            routing,
            rows=rows,
            layers=self.shape.routed_layers,
            experts=self.shape.experts,
            experts_per_token=self.shape.experts_per_token,
        )

    def forward(
        self, ids_N: Tensor, positions_N: Tensor, attention: Attention, routing_NLK: Tensor | None = None
    ) -> Forwarded:
        """The trunk's forward; see ``Trunk.forward``."""
        return self.trunk.forward(ids_N, positions_N, attention, routing_NLK)

    def forward_packed(
        self,
        ids_N: Tensor,
        lengths: Sequence[int],
        routing: RoutingArray | Tensor | None = None,
        *,
        rows_R: Tensor | None = None,
        gradients: Gradients | None = None,
        recompute: bool = False,
    ) -> Forwarded:
        """Whole sequences one after another, each causal within itself and starting at position 0.

        For training, a chunk of N ids enters as its first N - 1 (the last id predicts nothing), so the slab's rows
        are the recording's rows. ``routing`` is replayed; None lets the routers choose. For the others see ``Trunk.forward``;
        ``gradients.cut`` becomes this slab's. Raises ``RoutingError``.
        """
        if sum(lengths) != ids_N.shape[0]:
            raise ValueError(f"lengths sum to {sum(lengths)}, the slab has {ids_N.shape[0]} rows")
        checked = None if routing is None else self.check_routing(routing, rows=ids_N.shape[0])
        if gradients is not None:
            gradients.cut = Cut.of(lengths)
        return self.trunk.forward(
            ids_N,
            packed_positions(lengths),
            PackedAttention(lengths),
            checked,
            rows_R=rows_R,
            gradients=gradients,
            recompute=recompute,
        )


def shape_of(base: Qwen3MoeModel, trunk: Trunk) -> NetworkShape:
    """The sizes that cache, engine and records need."""
    c = base.config
    return NetworkShape(
        vocabulary=c.vocab_size,
        hidden=c.hidden_size,
        layers=c.num_hidden_layers,
        routed_layers=len(trunk.routed_layers),
        experts=c.num_experts,
        experts_per_token=c.num_experts_per_tok,
        query_heads=c.num_attention_heads,
        key_heads=c.num_key_value_heads,
        head_width=trunk.head_width,
        max_positions=c.max_position_embeddings,
    )
