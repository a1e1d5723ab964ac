"""Torch's own operations behind the kernels' interface: what the package's forward and step would cost if nothing had to be
exact.

Inexact, and only here to be measured: a row's bits depend on its batch and on how a batch is cut. Against it the price of
exact operations shows by itself, without what Hugging Face's Python costs. Nothing that is left out of a run's work is done
here: no entropy, no log-prob of greedy draws; softmaxes and attention are torch's fused ones, gradients the formulas that
autograd would run. Sums of gradients stay float64, because the step around wants them so.

Shapes: as in ``t1kernels.interface``; B sequences of one length, L rows of each.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from t1kernels.exact import ExactSum
from t1kernels.interface import PAGE, Dispatch, Grains, Weight
from torch import Tensor
from torch.nn import functional

aten = torch.ops.aten


@dataclass(frozen=True)
class StockWeight:
    """A weight as it is."""

    tensor: Tensor


@dataclass(frozen=True)
class _Alike:
    """Sequences with as many rows from the same position on: ``rows_BL`` in the slab, ``first_B`` their first pages."""

    rows_BL: Tensor
    first_B: Tensor
    start: int

    @property
    def rows(self) -> Tensor:
        return self.rows_BL.reshape(-1)

    @property
    def positions(self) -> int:
        """How many the last row sees."""
        return self.start + self.rows_BL.shape[1]


def _alike(first_page_N: Tensor, position_N: Tensor) -> list[_Alike]:
    """The slab's sequences, those of one size together."""
    first, position = first_page_N.tolist(), position_N.tolist()
    borders = [0, *(n for n in range(1, len(first)) if first[n] != first[n - 1]), len(first)]
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for begin, end in itertools.pairwise(borders):
        found[end - begin, position[begin]].append(begin)
    return [
        _Alike(torch.tensor(begins)[:, None] + torch.arange(count), first_page_N[torch.tensor(begins)], start)
        for (count, start), begins in found.items()
    ]


class StockKernels:
    """``t1kernels.interface.Kernels`` without its promise."""

    def __init__(self) -> None:
        self._slab: tuple[Tensor, list[_Alike]] = (torch.empty(0), [])

    @property
    def name(self) -> str:
        return "stock"

    # --- products -------------------------------------------------------------------------------------------------------

    def weight(self, tensor: Tensor) -> Weight:
        return StockWeight(tensor.detach())

    def matmul(self, x_NK: Tensor, weight: Weight) -> Tensor:
        return functional.linear(x_NK.detach(), weight.tensor)

    def matmul_gradient(self, dy_NO: Tensor, weight: Weight) -> Tensor:
        return dy_NO @ weight.tensor

    def grouped_matmul(self, x_RK: Tensor, weight: Weight, offset: Tensor) -> Tensor:
        return _grouped(x_RK.detach(), weight.tensor.transpose(1, 2), offset)

    def grouped_matmul_gradient(self, dy_RO: Tensor, weight: Weight, offset: Tensor) -> Tensor:
        return _grouped(dy_RO, weight.tensor, offset)

    def weight_gradient(self, dy_NO: Tensor, x_NK: Tensor, grains: Grains, into: ExactSum) -> None:
        sum_WOK = into.sum.view(-1, dy_NO.shape[1], x_NK.shape[1])
        weights, counts = grains.weight.unique_consecutive(return_counts=True)
        last = counts.cumsum(0) - 1
        starts, ends = grains.start[last - counts + 1].tolist(), grains.end[last].tolist()
        for weight, start, end in zip(weights.tolist(), starts, ends, strict=True):
            sum_WOK[weight] += dy_NO[start:end].t() @ x_NK[start:end]

    # --- rows -----------------------------------------------------------------------------------------------------------

    def rms_norm(self, x_NH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x = x_NH.detach()
        scale = x.float().square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        return weight_H * (x.float() * scale).to(x.dtype), scale

    def rms_norm_gradient(
        self, dy_NH: Tensor, x_NH: Tensor, weight_H: Tensor, saved_N: Tensor, grains: Grains, into: ExactSum
    ) -> Tensor:
        dy, normed = dy_NH.float(), x_NH.float() * saved_N
        into.sum += (dy * normed).view(-1, weight_H.shape[0]).sum(0)
        up = dy * weight_H.float()
        return (saved_N * (up - normed * (up * normed).mean(-1, keepdim=True))).to(x_NH.dtype)

    def rope(self, x_NQD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
        x = x_NQD.detach()
        a, b = x.chunk(2, dim=-1)
        cos, sin = cos_ND[:, None].to(x.dtype), sin_ND[:, None].to(x.dtype)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    def rope_gradient(self, dy_NQD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
        return self.rope(dy_NQD, cos_ND, -sin_ND)

    def silu_mul(self, gate_up_NI: Tensor) -> Tensor:
        gate, up = gate_up_NI.detach().chunk(2, dim=-1)
        return functional.silu(gate) * up

    def silu_mul_gradient(self, dh_NI: Tensor, gate_up_NI: Tensor) -> Tensor:
        gate, up = gate_up_NI.chunk(2, dim=-1)
        return torch.cat((aten.silu_backward(dh_NI * up, gate), dh_NI * functional.silu(gate)), dim=-1)

    def embedding_gradient(self, dx_NH: Tensor, ids_N: Tensor, into: ExactSum) -> None:
        into.sum.index_add_(0, ids_N, dx_NH.double())

    # --- attention ------------------------------------------------------------------------------------------------------

    def store(
        self,
        keys_PGDT: Tensor,
        values_PGTD: Tensor,
        key_NGD: Tensor,
        value_NGD: Tensor,
        first_page_N: Tensor,
        position_N: Tensor,
    ) -> None:
        page, place = first_page_N + position_N // PAGE, position_N % PAGE
        keys_PGDT[page, :, :, place] = key_NGD.detach().float()
        values_PGTD[page, :, place] = value_NGD.detach().float()

    def attend(
        self,
        query_NQD: Tensor,
        keys_PGDT: Tensor,
        values_PGTD: Tensor,
        first_page_N: Tensor,
        position_N: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        query = query_NQD.detach()
        heads = query.shape[1]
        out, saved = torch.empty_like(query), torch.empty(query.shape[0], heads)
        if self._slab[0] is not position_N:  # every layer of a slab has the same rows
            self._slab = (position_N, _alike(first_page_N, position_N))
        for some in self._slab[1]:
            pages = some.first_B[:, None] + torch.arange(-(-some.positions // PAGE))
            key = keys_PGDT[pages].permute(0, 2, 1, 4, 3).flatten(2, 3)[:, :, : some.positions]
            value = values_PGTD[pages].transpose(1, 2).flatten(2, 3)[:, :, : some.positions]
            share = heads // key.shape[1]
            key, value = (t.to(query.dtype).repeat_interleave(share, dim=1) for t in (key, value))
            count, mask = some.rows_BL.shape[1], None
            if some.start and count > 1:
                mask = torch.zeros(count, some.positions, dtype=query.dtype)
                mask.masked_fill_(torch.ones_like(mask, dtype=torch.bool).triu_(some.start + 1), -torch.inf)
            attended, logsum = aten._scaled_dot_product_flash_attention_for_cpu(
                _heads(query, some.rows_BL), key, value, 0.0, mask is None and count > 1, attn_mask=mask, scale=scale
            )
            out[some.rows] = attended.transpose(1, 2).flatten(0, 1)
            saved[some.rows] = logsum.transpose(1, 2).flatten(0, 1)
        return out, saved

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
        groups = key_NGD.shape[1]
        share = query_NQD.shape[1] // groups
        found = torch.empty_like(query_NQD), torch.empty_like(key_NGD), torch.empty_like(value_NGD)
        for length in length_S.unique().tolist():
            rows_BL = start_S[length_S == length][:, None] + torch.arange(length)
            dout, query, out = (_heads(t, rows_BL) for t in (dout_NQD, query_NQD, out_NQD))
            key, value = (_heads(t, rows_BL).repeat_interleave(share, dim=1) for t in (key_NGD, value_NGD))
            logsum = softmax[rows_BL].transpose(1, 2)
            dquery, dkey, dvalue = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                dout, query, key, value, out, logsum, 0.0, True, scale=scale
            )
            dkey, dvalue = (t.unflatten(1, (groups, share)).sum(2) for t in (dkey, dvalue))
            for into, made in zip(found, (dquery, dkey, dvalue), strict=True):
                into[rows_BL.reshape(-1)] = made.transpose(1, 2).flatten(0, 1)
        return found

    # --- experts --------------------------------------------------------------------------------------------------------

    def select_experts(self, logits_NE: Tensor, k: int) -> Tensor:
        return logits_NE.detach().topk(k, dim=-1).indices.sort(dim=-1).values

    def gate(self, logits_NE: Tensor, experts_NK: Tensor, *, normalise: bool) -> Tensor:
        chosen = logits_NE.detach().float().softmax(-1).gather(1, experts_NK)
        return (chosen / chosen.sum(-1, keepdim=True) if normalise else chosen).to(logits_NE.dtype)

    def gate_gradient(self, dweights_NK: Tensor, logits_NE: Tensor, experts_NK: Tensor, *, normalise: bool) -> Tensor:
        p, slopes = logits_NE.float().softmax(-1), dweights_NK.float()
        if normalise:
            chosen = p.gather(1, experts_NK)
            total = chosen.sum(-1, keepdim=True)
            slopes = (slopes - (slopes * chosen / total).sum(-1, keepdim=True)) / total
        dp = torch.zeros_like(p).scatter_(1, experts_NK, slopes)
        return (p * (dp - (p * dp).sum(-1, keepdim=True))).to(logits_NE.dtype)

    def dispatch(self, experts_NK: Tensor, experts: int) -> Dispatch:
        expert = experts_NK.reshape(-1)
        order = expert.argsort(stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(order.shape[0])
        offset = functional.pad(torch.bincount(expert, minlength=experts).cumsum(0), (1, 0))
        return Dispatch(offset, order // experts_NK.shape[1], place.view(experts_NK.shape))

    def combine(self, rows_RH: Tensor, place_NK: Tensor, weights_NK: Tensor | None) -> Tensor:
        rows_NKH = rows_RH.detach()[place_NK]
        return (rows_NKH if weights_NK is None else rows_NKH * weights_NK.detach()[..., None]).sum(1)

    def combine_gradient(
        self, dout_NH: Tensor, rows_RH: Tensor, place_NK: Tensor, weights_NK: Tensor
    ) -> tuple[Tensor, Tensor]:
        drows, place = torch.empty_like(rows_RH), place_NK.reshape(-1)
        drows[place] = (dout_NH[:, None] * weights_NK[..., None]).flatten(0, 1)
        return drows, (rows_RH[place_NK] * dout_NH[:, None]).sum(-1)

    # --- log-probs ------------------------------------------------------------------------------------------------------

    def logprob(
        self, hidden_RH: Tensor, head: Weight, ids_R: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        logs_RV = (self.matmul(hidden_RH, head).float() / temperature).log_softmax(-1)
        return logs_RV.gather(1, ids_R[:, None])[:, 0], torch.zeros(ids_R.shape[0]), logs_RV

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
        up = dlogprob_R / temperature
        slope_RV = saved.exp().mul_(-up[:, None])
        slope_RV[torch.arange(ids_R.shape[0]), ids_R] += up
        slope_RV = slope_RV.to(hidden_RH.dtype)
        self.weight_gradient(slope_RV, hidden_RH, grains, into)
        return self.matmul_gradient(slope_RV, head)

    def draw(self, logits_RV: Tensor, temperature_R: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logs_RV = (logits_RV.float() / temperature_R[:, None]).log_softmax(-1)
        cumulative = logs_RV.exp().cumsum(-1)
        below = (uniform_R.float() * cumulative[:, -1])[:, None]
        token = torch.searchsorted(cumulative, below, right=True).clamp_(max=logs_RV.shape[1] - 1)
        return token[:, 0], logs_RV.gather(1, token)[:, 0], torch.zeros(logits_RV.shape[0])


def _heads(x_NQD: Tensor, rows_BL: Tensor) -> Tensor:
    """(B, Q, L, D)."""
    return x_NQD[rows_BL].transpose(1, 2)


def _grouped(x_RK: Tensor, matrices_WKO: Tensor, offset: Tensor) -> Tensor:
    borders: Sequence[int] = offset.tolist()
    out = x_RK.new_empty(x_RK.shape[0], matrices_WKO.shape[2])
    for matrix_KO, (start, end) in zip(matrices_WKO, itertools.pairwise(borders), strict=True):
        if end > start:
            torch.mm(x_RK[start:end], matrix_KO, out=out[start:end])
    return out
