"""The kernels under autograd: activations get their gradients through torch, weights get theirs in exact sums.

A weight is no leaf of the graph. Each function that uses one is given the sum that its gradient goes to (``into``) and
adds to it in its backward pass; None means that no gradient is wanted. So a graph's backward may run in any cut of a
batch, and twice the same forward (activation checkpointing) adds nothing twice, since only the backward adds. Where
torch records no graph, the kernels are called directly.

Shapes: see ``interface``.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from t1kernels.exact import ExactSum
from t1kernels.interface import Dispatch, Grains, Kernels, Weight


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_NK: Tensor, kernels: Kernels, weight: Weight, grains: Grains | None, into: ExactSum | None
    ) -> Tensor:
        ctx.save_for_backward(x_NK)
        ctx.rest = (kernels, weight, grains, into)
        return kernels.matmul(x_NK, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x_NK,) = ctx.saved_tensors
        kernels, weight, grains, into = ctx.rest
        if into is not None:
            kernels.weight_gradient(gradients[0], x_NK, grains, into)
        return kernels.matmul_gradient(gradients[0], weight), None, None, None, None


def matmul(kernels: Kernels, x_NK: Tensor, weight: Weight, grains: Grains | None, into: ExactSum | None) -> Tensor:
    """x W^T (N, O)."""
    if not torch.is_grad_enabled():
        return kernels.matmul(x_NK, weight)
    return cast(Tensor, _Matmul.apply(x_NK, kernels, weight, grains, into))


class _GroupedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_RK: Tensor,
        kernels: Kernels,
        weight: Weight,
        offset: Tensor,
        grains: Grains | None,
        into: ExactSum | None,
    ) -> Tensor:
        ctx.save_for_backward(x_RK)
        ctx.rest = (kernels, weight, offset, grains, into)
        return kernels.grouped_matmul(x_RK, weight, offset)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x_RK,) = ctx.saved_tensors
        kernels, weight, offset, grains, into = ctx.rest
        if into is not None:
            kernels.weight_gradient(gradients[0], x_RK, grains, into)
        return kernels.grouped_matmul_gradient(gradients[0], weight, offset), None, None, None, None, None


def grouped_matmul(
    kernels: Kernels, x_RK: Tensor, weight: Weight, offset: Tensor, grains: Grains | None, into: ExactSum | None
) -> Tensor:
    """Each row by its group's weight (R, O)."""
    if not torch.is_grad_enabled():
        return kernels.grouped_matmul(x_RK, weight, offset)
    return cast(Tensor, _GroupedMatmul.apply(x_RK, kernels, weight, offset, grains, into))


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_NH: Tensor,
        kernels: Kernels,
        weight_H: Tensor,
        eps: float,
        grains: Grains | None,
        into: ExactSum | None,
    ) -> Tensor:
        y_NH, saved_N = kernels.rms_norm(x_NH, weight_H, eps)
        ctx.save_for_backward(x_NH, saved_N)
        ctx.rest = (kernels, weight_H, grains, into)
        return y_NH

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x_NH, saved_N = ctx.saved_tensors
        kernels, weight_H, grains, into = ctx.rest
        return (
            kernels.rms_norm_gradient(gradients[0], x_NH, weight_H, saved_N, grains, into),
            None,
            None,
            None,
            None,
            None,
        )


def rms_norm(
    kernels: Kernels, x_NH: Tensor, weight_H: Tensor, eps: float, grains: Grains | None, into: ExactSum | None
) -> Tensor:
    """Normalised over the last dimension. ``grains`` cut the rows in the order of the memory."""
    if not torch.is_grad_enabled():
        return kernels.rms_norm(x_NH, weight_H, eps)[0]
    return cast(Tensor, _RmsNorm.apply(x_NH, kernels, weight_H, eps, grains, into))


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NQD: Tensor, kernels: Kernels, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
        ctx.rest = (kernels, cos_ND, sin_ND)
        return kernels.rope(x_NQD, cos_ND, sin_ND)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        kernels, cos_ND, sin_ND = ctx.rest
        return kernels.rope_gradient(gradients[0], cos_ND, sin_ND), None, None, None


def rope(kernels: Kernels, x_NQD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
    """Rotated by each row's angles."""
    if not torch.is_grad_enabled():
        return kernels.rope(x_NQD, cos_ND, sin_ND)
    return cast(Tensor, _Rope.apply(x_NQD, kernels, cos_ND, sin_ND))


class _SiluMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up_NI: Tensor, kernels: Kernels) -> Tensor:
        ctx.save_for_backward(gate_up_NI)
        ctx.kernels = kernels
        return kernels.silu_mul(gate_up_NI)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.kernels.silu_mul_gradient(gradients[0], *ctx.saved_tensors), None


def silu_mul(kernels: Kernels, gate_up_NI: Tensor) -> Tensor:
    """silu(gate) * up."""
    if not torch.is_grad_enabled():
        return kernels.silu_mul(gate_up_NI)
    return cast(Tensor, _SiluMul.apply(gate_up_NI, kernels))


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NE: Tensor, kernels: Kernels, experts_NK: Tensor, normalise: bool) -> Tensor:
        ctx.save_for_backward(logits_NE)
        ctx.rest = (kernels, experts_NK, normalise)
        return kernels.gate(logits_NE, experts_NK, normalise=normalise)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        kernels, experts_NK, normalise = ctx.rest
        return (
            kernels.gate_gradient(gradients[0], *ctx.saved_tensors, experts_NK, normalise=normalise),
            None,
            None,
            None,
        )


def gate(kernels: Kernels, logits_NE: Tensor, experts_NK: Tensor, *, normalise: bool) -> Tensor:
    """Weights of the given experts; gradient goes to the logits and never to the selection (T1 section 4)."""
    if not torch.is_grad_enabled():
        return kernels.gate(logits_NE, experts_NK, normalise=normalise)
    return cast(Tensor, _Gate.apply(logits_NE, kernels, experts_NK, normalise))


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NH: Tensor, kernels: Kernels, dispatch: Dispatch) -> Tensor:
        ctx.rest = (kernels, dispatch)
        return x_NH.index_select(0, dispatch.token)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        kernels, dispatch = ctx.rest
        return kernels.combine(gradients[0], dispatch.place, None), None, None


def spread(kernels: Kernels, x_NH: Tensor, dispatch: Dispatch) -> Tensor:
    """A copy of each row for each of its experts, sorted by expert (R, H)."""
    if not torch.is_grad_enabled():
        return x_NH.index_select(0, dispatch.token)
    return cast(Tensor, _Spread.apply(x_NH, kernels, dispatch))


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_RH: Tensor, weights_NK: Tensor, kernels: Kernels, place_NK: Tensor) -> Tensor:
        ctx.save_for_backward(rows_RH, weights_NK)
        ctx.rest = (kernels, place_NK)
        return kernels.combine(rows_RH, place_NK, weights_NK)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        rows_RH, weights_NK = ctx.saved_tensors
        kernels, place_NK = ctx.rest
        return *kernels.combine_gradient(gradients[0], rows_RH, place_NK, weights_NK), None, None


def combine(kernels: Kernels, rows_RH: Tensor, weights_NK: Tensor, dispatch: Dispatch) -> Tensor:
    """The weighted sum of each row's experts, in ascending order of expert (N, H)."""
    if not torch.is_grad_enabled():
        return kernels.combine(rows_RH, dispatch.place, weights_NK)
    return cast(Tensor, _Combine.apply(rows_RH, weights_NK, kernels, dispatch.place))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query_NQD: Tensor,
        key_NGD: Tensor,
        value_NGD: Tensor,
        kernels: Kernels,
        pages: tuple[Tensor, Tensor],
        rows: tuple[Tensor, Tensor],
        sequences: tuple[Tensor, Tensor],
        scale: float,
    ) -> Tensor:
        kernels.store(*pages, key_NGD, value_NGD, *rows)
        out_NQD, softmax = kernels.attend(query_NQD, *pages, *rows, scale)
        ctx.save_for_backward(query_NQD, key_NGD, value_NGD, out_NQD, softmax)
        ctx.rest = (kernels, sequences, scale)
        return out_NQD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        kernels, sequences, scale = ctx.rest
        found = kernels.attention_gradient(gradients[0], *ctx.saved_tensors, *sequences, scale)
        return *found, None, None, None, None, None


def attention(
    kernels: Kernels,
    query_NQD: Tensor,
    key_NGD: Tensor,
    value_NGD: Tensor,
    *,
    pages: tuple[Tensor, Tensor],
    rows: tuple[Tensor, Tensor],
    sequences: tuple[Tensor, Tensor],
    scale: float,
) -> Tensor:
    """Causal attention of whole sequences. ``pages``: scratch for keys and values; ``rows``: first page and position of
    each row; ``sequences``: first row and length of each."""
    return cast(Tensor, _Attention.apply(query_NQD, key_NGD, value_NGD, kernels, pages, rows, sequences, scale))


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, kernels: Kernels, table_VH: Tensor, ids_N: Tensor, into: ExactSum | None
    ) -> Tensor:
        ctx.rest = (kernels, ids_N, into)
        return table_VH.detach().index_select(0, ids_N)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        kernels, ids_N, into = ctx.rest
        kernels.embedding_gradient(gradients[0], ids_N, into)
        return None, None, None, None, None


def embedding(kernels: Kernels, table_VH: Tensor, ids_N: Tensor, into: ExactSum | None) -> Tensor:
    """The rows of ``ids_N``. With a sum to fill, the result is where the graph of a forward begins."""
    if into is None:
        return table_VH.detach().index_select(0, ids_N)
    anchor = torch.zeros((), requires_grad=True)
    return cast(Tensor, _Embedding.apply(anchor, kernels, table_VH, ids_N, into))


class _Logprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_RH: Tensor,
        kernels: Kernels,
        head: Weight,
        ids_R: Tensor,
        temperature: float,
        grains: Grains | None,
        into: ExactSum | None,
    ) -> tuple[Tensor, Tensor]:
        logprob_R, entropy_R, saved = kernels.logprob(hidden_RH, head, ids_R, temperature)
        ctx.save_for_backward(hidden_RH, saved)
        ctx.rest = (kernels, head, ids_R, temperature, grains, into)
        ctx.mark_non_differentiable(entropy_R)
        return logprob_R, entropy_R

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        hidden_RH, saved = ctx.saved_tensors
        kernels, head, ids_R, temperature, grains, into = ctx.rest
        dhidden_RH = kernels.logprob_gradient(gradients[0], hidden_RH, head, ids_R, saved, temperature, grains, into)
        return dhidden_RH, None, None, None, None, None, None


def selected_logprob(
    kernels: Kernels,
    hidden_RH: Tensor,
    head: Weight,
    ids_R: Tensor,
    *,
    temperature: float,
    grains: Grains | None = None,
    into: ExactSum | None = None,
) -> tuple[Tensor, Tensor]:
    """(log-prob of the ids, entropy) of softmax(hidden W^T / temperature), float32; the entropy is a report, outside
    autograd.

    Raises ``ValueError``: a temperature that is not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature}: log-probabilities need one above 0")
    if not torch.is_grad_enabled():
        return kernels.logprob(hidden_RH, head, ids_R, temperature)[:2]
    result = _Logprob.apply(hidden_RH, kernels, head, ids_R, temperature, grains, into)
    return cast("tuple[Tensor, Tensor]", result)


class _AddBias(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_NO: Tensor, kernels: Kernels, bias_O: Tensor, grains: Grains | None, into: ExactSum | None
    ) -> Tensor:
        ctx.rest = (kernels, grains, into)
        return x_NO + bias_O

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        kernels, grains, into = ctx.rest
        if into is not None:
            ones_N1 = gradients[0].new_ones(gradients[0].shape[0], 1)
            kernels.weight_gradient(gradients[0], ones_N1, grains, into)
        return gradients[0], None, None, None, None


def add_bias(kernels: Kernels, x_NO: Tensor, bias_O: Tensor, grains: Grains | None, into: ExactSum | None) -> Tensor:
    """x + b, b's gradient summed as that of a weight of one input."""
    if not torch.is_grad_enabled():
        return x_NO + bias_O
    return cast(Tensor, _AddBias.apply(x_NO, kernels, bias_O, grains, into))
