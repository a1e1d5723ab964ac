"""The kernels in torch alone, for machines without a compiler: slower, and under the same contract as those in C.

Products are made in tiles of one shape (``products``), all else of operations that have one right result wherever an
element lies (``arithmetic``): so no row's bits depend on its batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from t1kernels.exact import ExactSum
from t1kernels.interface import Dispatch, Grains, Weight
from t1kernels.padded import attention, vocabulary
from t1kernels.padded.arithmetic import exponential, folded, in_order, on_grid, probabilities
from t1kernels.padded.products import (
    PaddedWeight,
    grouped_product,
    magnitude,
    matrices,
    rows_product,
    vector_partials,
    weight_partials,
)

__all__ = ["PaddedKernels", "PaddedWeight"]


class PaddedKernels:
    """``t1kernels.interface.Kernels`` in torch."""

    @property
    def name(self) -> str:
        return "padded"

    # --- products -------------------------------------------------------------------------------------------------------

    def weight(self, tensor: Tensor) -> Weight:
        return PaddedWeight(tensor)

    def matmul(self, x_NK: Tensor, weight: Weight) -> Tensor:
        return rows_product(x_NK, matrices(weight).t(), weight.tensor.shape[0])

    def matmul_gradient(self, dy_NO: Tensor, weight: Weight) -> Tensor:
        return rows_product(dy_NO, matrices(weight), weight.tensor.shape[1])

    def grouped_matmul(self, x_RK: Tensor, weight: Weight, offset: Tensor) -> Tensor:
        return grouped_product(x_RK, matrices(weight).transpose(1, 2), offset, weight.tensor.shape[1])

    def grouped_matmul_gradient(self, dy_RO: Tensor, weight: Weight, offset: Tensor) -> Tensor:
        return grouped_product(dy_RO, matrices(weight), offset, weight.tensor.shape[2])

    def weight_gradient(self, dy_NO: Tensor, x_NK: Tensor, grains: Grains, into: ExactSum) -> None:
        sum_WOK = into.sum.view(-1, dy_NO.shape[1], x_NK.shape[1])  # a bias (O) is a weight of one input
        into.note(weight_partials(dy_NO, x_NK, grains, sum_WOK, into.big), len(grains))

    # --- rows -----------------------------------------------------------------------------------------------------------

    def rms_norm(self, x_NH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x = x_NH.detach().float().reshape(-1, weight_H.shape[0])
        scale_N = 1.0 / (folded(x * x) / x.shape[1] + eps).sqrt()
        normed = (x * scale_N[:, None]).to(x_NH.dtype).float()
        return (weight_H.detach().float() * normed).to(x_NH.dtype).view(x_NH.shape), scale_N

    def rms_norm_gradient(
        self, dy_NH: Tensor, x_NH: Tensor, weight_H: Tensor, saved_N: Tensor, grains: Grains, into: ExactSum
    ) -> Tensor:
        width = weight_H.shape[0]
        dy, x = (t.detach().float().reshape(-1, width) for t in (dy_NH, x_NH))
        scale = saved_N[:, None]
        normed, up = x * scale, dy * weight_H.detach().float()
        mean = folded(up * normed) / width
        partial_NH = dy * normed.to(x_NH.dtype).float()
        into.note(vector_partials(partial_NH, grains, into.sum, into.big), len(grains))
        return (scale * (up - normed * mean[:, None])).to(x_NH.dtype).view(x_NH.shape)

    def rope(self, x_NQD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
        a, b = x_NQD.detach().float().chunk(2, dim=-1)
        (cos_a, cos_b), (sin_a, sin_b) = (t[:, None].chunk(2, dim=-1) for t in (cos_ND, sin_ND))
        return torch.cat((a * cos_a - b * sin_a, b * cos_b + a * sin_b), dim=-1).to(x_NQD.dtype)

    def rope_gradient(self, dy_NQD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
        a, b = dy_NQD.detach().float().chunk(2, dim=-1)
        (cos_a, cos_b), (sin_a, sin_b) = (t[:, None].chunk(2, dim=-1) for t in (cos_ND, sin_ND))
        return torch.cat((a * cos_a + b * sin_b, b * cos_b - a * sin_a), dim=-1).to(dy_NQD.dtype)

    def silu_mul(self, gate_up_NI: Tensor) -> Tensor:
        gate, up = gate_up_NI.detach().float().chunk(2, dim=-1)
        silu = (gate * (1.0 / (1.0 + exponential(-gate)))).to(gate_up_NI.dtype).float()
        return (silu * up).to(gate_up_NI.dtype)

    def silu_mul_gradient(self, dh_NI: Tensor, gate_up_NI: Tensor) -> Tensor:
        gate, up = gate_up_NI.detach().float().chunk(2, dim=-1)
        dh, dtype = dh_NI.detach().float(), gate_up_NI.dtype
        sigmoid = 1.0 / (1.0 + exponential(-gate))
        silu = gate * sigmoid
        slope = sigmoid + silu * (1.0 - sigmoid)
        return torch.cat((dh * up * slope, dh * silu.to(dtype).float()), dim=-1).to(dtype)

    def embedding_gradient(self, dx_NH: Tensor, ids_N: Tensor, into: ExactSum) -> None:
        dx = dx_NH.detach().float()
        into.sum.index_add_(0, ids_N, on_grid(dx, into.big))
        into.note(magnitude(dx), dx.shape[0])

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
        attention.store(keys_PGDT, values_PGTD, key_NGD, value_NGD, first_page_N, position_N)

    def attend(
        self,
        query_NQD: Tensor,
        keys_PGDT: Tensor,
        values_PGTD: Tensor,
        first_page_N: Tensor,
        position_N: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        return attention.attend(query_NQD, keys_PGDT, values_PGTD, first_page_N, position_N, scale)

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
        return attention.attention_gradient(
            dout_NQD, query_NQD, key_NGD, value_NGD, out_NQD, softmax, start_S, length_S, scale
        )

    # --- experts --------------------------------------------------------------------------------------------------------

    def select_experts(self, logits_NE: Tensor, k: int) -> Tensor:
        best = probabilities(logits_NE).argsort(dim=-1, descending=True, stable=True)
        return best[:, :k].sort(dim=-1).values

    def gate(self, logits_NE: Tensor, experts_NK: Tensor, *, normalise: bool) -> Tensor:
        chosen = probabilities(logits_NE).gather(1, experts_NK)
        return (chosen / in_order(chosen)[:, None] if normalise else chosen).to(logits_NE.dtype)

    def gate_gradient(self, dweights_NK: Tensor, logits_NE: Tensor, experts_NK: Tensor, *, normalise: bool) -> Tensor:
        p, slopes = probabilities(logits_NE), dweights_NK.detach().float()
        if normalise:
            chosen = p.gather(1, experts_NK)
            total = in_order(chosen)[:, None]
            slopes = (slopes - in_order(slopes * (chosen / total))[:, None]) / total
        dp = torch.zeros_like(p).scatter_(1, experts_NK, slopes)
        return (p * (dp - folded(p * dp)[:, None])).to(logits_NE.dtype)

    def dispatch(self, experts_NK: Tensor, experts: int) -> Dispatch:
        expert = experts_NK.reshape(-1)
        order = expert.argsort(stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(order.shape[0])
        offset = torch.zeros(experts + 1, dtype=torch.int64)
        offset[1:] = torch.bincount(expert, minlength=experts).cumsum(0)
        return Dispatch(offset, order // experts_NK.shape[1], place.view(experts_NK.shape))

    def combine(self, rows_RH: Tensor, place_NK: Tensor, weights_NK: Tensor | None) -> Tensor:
        rows = rows_RH.detach()
        total = torch.zeros(place_NK.shape[0], rows.shape[1])
        for slot in range(place_NK.shape[1]):
            some = rows[place_NK[:, slot]].float()
            total += some if weights_NK is None else some * weights_NK.detach()[:, slot, None].float()
        return total.to(rows.dtype)

    def combine_gradient(
        self, dout_NH: Tensor, rows_RH: Tensor, place_NK: Tensor, weights_NK: Tensor
    ) -> tuple[Tensor, Tensor]:
        dout, rows, weights = (t.detach() for t in (dout_NH, rows_RH, weights_NK))
        drows, dweights = torch.zeros_like(rows), torch.zeros_like(weights)
        for slot in range(place_NK.shape[1]):
            place = place_NK[:, slot]
            drows[place] = (dout.float() * weights[:, slot, None].float()).to(rows.dtype)
            dweights[:, slot] = folded(dout.float() * rows[place].float()).to(weights.dtype)
        return drows, dweights

    # --- log-probs ------------------------------------------------------------------------------------------------------

    def logprob(
        self, hidden_RH: Tensor, head: Weight, ids_R: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        return vocabulary.logprob(hidden_RH, head, ids_R, temperature)

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
        return vocabulary.logprob_gradient(dlogprob_R, hidden_RH, head, ids_R, saved, temperature, grains, into)

    def draw(self, logits_RV: Tensor, temperature_R: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return vocabulary.draw(logits_RV, temperature_R, uniform_R)
