"""The numbers of a network that others need (rows of routing, vocabulary), read from its configuration, without
torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NetworkShape:
    """``routed_layers`` counts mixture-of-experts layers: the L of a recording (N - 1, L, K)."""

    vocabulary: int
    hidden: int
    layers: int
    routed_layers: int
    experts: int
    experts_per_token: int
    query_heads: int
    key_heads: int
    head_width: int
    max_positions: int
