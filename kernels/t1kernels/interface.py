"""The kernels of the exact forward and backward: one signature, several implementations.

An implementation (``native``: C, ``padded``: torch alone) is a set of functions on tensors, without autograd and
without state. Their contract, which the tests hold every implementation to:

- *Row independence.* What a row gets depends on that row's inputs (and, for attention, on what its sequence stored)
  alone: the same bits alone, in a batch, at another place, in decode or in a packed batch.
- *Grain independence.* Gradients of weights are sums of partials, one a grain; a partial is a function of the grain's
  rows in their order, and partials are added exactly (``exact.ExactSum``): the same bits in whatever order,
  micro-batch or process grains come.
- *Fresh outputs.* Nothing is read from memory that was not written by this call or given to it.

Implementations need not agree with each other in the last bit: a run uses one, and records which.

Shapes: N rows, K and O input and output widths of a weight, W weights of a group (experts), H hidden, Q query heads,
G key/value heads, D head width, E experts, R rows of pairs (row, expert), V vocabulary, P pages. Activations have the
model's dtype (float32 or bfloat16); sums are made in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from t1kernels.exact import ExactSum

PAGE = 64
"""Positions of a page of keys and values, rows of a grain of a dense weight's gradient, rows of a tile of attention's
backward."""


@dataclass(frozen=True)
class Grains:
    """Rows ``start_g .. end_g`` form grain g of weight ``weight_g`` (int64, in row order)."""

    start: Tensor
    end: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return self.start.shape[0]


@dataclass(frozen=True)
class Dispatch:
    """Pairs (row, expert) sorted by expert, then row: ``offset`` (E + 1) where each expert's rows begin, ``token`` (R)
    the row of each pair, ``place`` (N, K) where each row's pairs are."""

    offset: Tensor
    token: Tensor
    place: Tensor


class Weight(Protocol):
    """A weight (O, K), or a group of them (W, O, K), as an implementation wants to have it. Made by ``Kernels.weight``
    once a version."""

    @property
    def tensor(self) -> Tensor:
        """The weight itself."""
        ...


class Kernels(Protocol):
    """See the module. Gradients named ``…_gradient`` return gradients of activations and add those of weights to an
    ``ExactSum``."""

    @property
    def name(self) -> str:
        """What the fingerprint of a run says of it."""
        ...

    # products
    def weight(self, tensor: Tensor) -> Weight:
        """``tensor``, a weight or a group of them, made ready. It must not change afterwards."""
        ...

    def matmul(self, x_NK: Tensor, weight: Weight) -> Tensor:
        """x W^T (N, O)."""
        ...

    def matmul_gradient(self, dy_NO: Tensor, weight: Weight) -> Tensor:
        """dy W (N, K)."""
        ...

    def grouped_matmul(self, x_RK: Tensor, weight: Weight, offset: Tensor) -> Tensor:
        """Rows ``offset[w] .. offset[w + 1]`` by weight w (R, O)."""
        ...

    def grouped_matmul_gradient(self, dy_RO: Tensor, weight: Weight, offset: Tensor) -> Tensor:
        """The same rows' dy by W (R, K)."""
        ...

    def weight_gradient(self, dy_NO: Tensor, x_NK: Tensor, grains: Grains, into: ExactSum) -> None:
        """``into`` has the weight's shape; a group's grains name the weight they belong to."""
        ...

    # rows
    def rms_norm(self, x_NH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(normalised rows, what the gradient needs)."""
        ...

    def rms_norm_gradient(
        self, dy_NH: Tensor, x_NH: Tensor, weight_H: Tensor, saved_N: Tensor, grains: Grains, into: ExactSum
    ) -> Tensor:
        """The gradient of the rows; that of the weight goes into ``into``."""
        ...

    def rope(self, x_NQD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
        """x cos + rotated(x) sin: the halves swapped, the first of them negated."""
        ...

    def rope_gradient(self, dy_NQD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
        """The rotation's transpose."""
        ...

    def silu_mul(self, gate_up_NI: Tensor) -> Tensor:
        """silu(gate) * up of rows (N, 2 I), the gate first."""
        ...

    def silu_mul_gradient(self, dh_NI: Tensor, gate_up_NI: Tensor) -> Tensor:
        """The gradient of gate and up (N, 2 I)."""
        ...

    def embedding_gradient(self, dx_NH: Tensor, ids_N: Tensor, into: ExactSum) -> None:
        """Add every row of dx to the row of ``into`` that its id names."""
        ...

    # attention
    def store(
        self,
        keys_PGDT: Tensor,
        values_PGTD: Tensor,
        key_NGD: Tensor,
        value_NGD: Tensor,
        first_page_N: Tensor,
        position_N: Tensor,
    ) -> None:
        """Put rows into the pages of their sequences; pages hold float32."""
        ...

    def attend(
        self,
        query_NQD: Tensor,
        keys_PGDT: Tensor,
        values_PGTD: Tensor,
        first_page_N: Tensor,
        position_N: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        """(attended (N, Q, D), each row's softmax for the gradient). A row sees its sequence's positions up to its own."""
        ...

    def attention_gradient(
        self,
        dout_NQD: Tensor,
        query_NQD: Tensor,
        key_NGD: Tensor,
        value_NGD: Tensor,
        out_NQD: Tensor,
        softmax: Tensor,
        start_S: Tensor,
        length_S: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value of whole sequences."""
        ...

    # experts
    def select_experts(self, logits_NE: Tensor, k: int) -> Tensor:
        """The k of highest probability (of equals the lowest number), ascending: (N, k) int64."""
        ...

    def gate(self, logits_NE: Tensor, experts_NK: Tensor, *, normalise: bool) -> Tensor:
        """Weights of the given experts: the softmax's, over the given ones alone with ``normalise`` (T1 section 4)."""
        ...

    def gate_gradient(self, dweights_NK: Tensor, logits_NE: Tensor, experts_NK: Tensor, *, normalise: bool) -> Tensor:
        """The gradient of the logits (N, E)."""
        ...

    def dispatch(self, experts_NK: Tensor, experts: int) -> Dispatch:
        """The pairs of the chosen experts, sorted."""
        ...

    def combine(self, rows_RH: Tensor, place_NK: Tensor, weights_NK: Tensor | None) -> Tensor:
        """Sum over a row's pairs in slot order, folded in float32; without weights each counts once."""
        ...

    def combine_gradient(
        self, dout_NH: Tensor, rows_RH: Tensor, place_NK: Tensor, weights_NK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(gradient of the rows, of the weights)."""
        ...

    # log-probs
    def logprob(
        self, hidden_RH: Tensor, head: Weight, ids_R: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(log-prob of the ids, entropy, saved), float32; never a whole row of logits in memory."""
        ...

    def logprob_gradient(
        self,
        dlogprob_R: Tensor,
        hidden_RH: Tensor,
        head: Weight,
        ids_R: Tensor,
        saved: Tensor,
        temperature: float,
        grains: Grains,
        into: ExactSum,
    ) -> Tensor:
        """The gradient of the hidden states; that of the head goes into ``into``."""
        ...

    def draw(self, logits_RV: Tensor, temperature_R: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(token, its log-prob, entropy): one token a row by inverting the cumulative distribution at ``uniform_R``
        (float64); temperature 0 takes the highest, with log-prob and entropy of temperature 1. The log-prob has the
        bits of ``logprob``."""
        ...
