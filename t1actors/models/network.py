"""What policy and critic share: a trunk, canonical weights in and out, the packed forward.

Guarantees: ``weights`` are the canonical ones (tied tensors once, name order); ``load_weights`` copies into the
network's own aligned memory and casts to its dtype, and changes nothing when it raises; a network never touches
another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from t1actors.models.checkpoint import require_same_tensors, weights_digest
from t1actors.models.routing import RoutingArray, check_routing
from t1actors.models.shape import NetworkShape
from t1actors.models.trunk import Attention, Forwarded, PackedAttention, Trunk, packed_positions


class Network:
    """Base of ``Policy`` and ``ValueModel``. ``module`` is the torch module that owns every parameter."""

    def __init__(self, module: nn.Module, trunk: Trunk, shape: NetworkShape) -> None:
        self.module = module.eval()  # no dropout, no train-only branches: the sampler's forward is the trainer's
        self.shape = shape
        self.trunk = trunk
        self._parameters = dict(sorted(module.named_parameters()))

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
        self, ids_N: Tensor, lengths: Sequence[int], routing: RoutingArray | Tensor | None = None
    ) -> Forwarded:
        """Whole sequences one after another, each causal within itself and starting at position 0.

        For training, a chunk of N ids enters as its first N - 1 (the last id predicts nothing), so the slab's rows
        are the recording's rows. ``routing`` is replayed; None lets the routers choose. Raises ``RoutingError``.
        """
        if sum(lengths) != ids_N.shape[0]:
            raise ValueError(f"lengths sum to {sum(lengths)}, the slab has {ids_N.shape[0]} rows")
        checked = None if routing is None else self.check_routing(routing, rows=ids_N.shape[0])
        return self.forward(ids_N, packed_positions(lengths), PackedAttention(lengths), checked)

    def hidden_packed(
        self,
        ids_N: Tensor,
        lengths: Sequence[int],
        rows_R: Tensor,
        routing: RoutingArray | Tensor | None = None,
    ) -> Tensor:
        """As ``forward_packed``, but only the hidden states of ``rows_R``; see ``Trunk.hidden_at``."""
        if sum(lengths) != ids_N.shape[0]:
            raise ValueError(f"lengths sum to {sum(lengths)}, the slab has {ids_N.shape[0]} rows")
        checked = None if routing is None else self.check_routing(routing, rows=ids_N.shape[0])
        return self.trunk.hidden_at(ids_N, packed_positions(lengths), PackedAttention(lengths), rows_R, checked)
