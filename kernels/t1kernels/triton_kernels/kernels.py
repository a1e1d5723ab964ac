"""``t1kernels.interface.Kernels`` by the kernels of this folder.

Tensors lie on the device, except grains, which are made where sequences are packed (any memory will do; the host's is best).
Nothing here waits for the device: what a sum's range check needs is noted on the device and read when the sum is checked.
In torch, because they are integers or copies: ``dispatch``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import triton
from torch import Tensor

from t1kernels.exact import ExactSum
from t1kernels.interface import Dispatch, Grains, Weight
from t1kernels.triton_kernels import attention, attention_gradient, mixture, rows, vocabulary
from t1kernels.triton_kernels.arithmetic import FLOAT32
from t1kernels.triton_kernels.products import BLOCKS, product
from t1kernels.triton_kernels.weight_gradients import GRADIENT_BLOCKS, embedding_gradient, weight_gradient

ALIGNMENT = 16
"""Bytes. Triton compiles a kernel once more for tensors that begin elsewhere, and the two need not agree in every bit."""


@dataclass(frozen=True)
class TritonWeight:
    """A weight, or a group, on the device."""

    tensor: Tensor


def _ready(x: Tensor) -> Tensor:
    """Without gaps, at an aligned address."""
    x = x.detach().contiguous()
    return x.clone() if x.data_ptr() % ALIGNMENT else x


class TritonKernels:
    """Made by ``triton_kernels``."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def name(self) -> str:
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "interpreter"
        return f"triton/{where}"

    @property
    def configuration(self) -> dict[str, object]:
        """What the kernels' bits depend on beside their source: versions, blocks, how float32 is multiplied."""
        blocks = {"product": BLOCKS, "weight gradient": GRADIENT_BLOCKS}
        return {
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "float32 products": FLOAT32.value,
            **{f"{of} {str(dtype)[6:]}": asdict(b) for of, made in blocks.items() for dtype, b in made.items()},
        }

    # --- products -------------------------------------------------------------------------------------------------------

    def weight(self, tensor: Tensor) -> Weight:
        return TritonWeight(_ready(tensor.to(self.device)))

    def matmul(self, x_NK: Tensor, weight: Weight) -> Tensor:
        return product(_ready(x_NK), weight.tensor, transposed=False)

    def matmul_gradient(self, dy_NO: Tensor, weight: Weight) -> Tensor:
        return product(_ready(dy_NO), weight.tensor, transposed=True)

    def grouped_matmul(self, x_RK: Tensor, weight: Weight, offset: Tensor) -> Tensor:
        return product(_ready(x_RK), weight.tensor, transposed=False, offset=offset)

    def grouped_matmul_gradient(self, dy_RO: Tensor, weight: Weight, offset: Tensor) -> Tensor:
        return product(_ready(dy_RO), weight.tensor, transposed=True, offset=offset)

    def weight_gradient(self, dy_NO: Tensor, x_NK: Tensor, grains: Grains, into: ExactSum) -> None:
        dy, x = _ready(dy_NO), _ready(x_NK)
        into.note(weight_gradient(dy, x, grains, into.sum, into.big), len(grains))

    # --- rows -----------------------------------------------------------------------------------------------------------

    def rms_norm(self, x_NH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return rows.rms_norm(_ready(x_NH), _ready(weight_H), eps)

    def rms_norm_gradient(
        self, dy_NH: Tensor, x_NH: Tensor, weight_H: Tensor, saved_N: Tensor, grains: Grains, into: ExactSum
    ) -> Tensor:
        dx_NH, largest = rows.rms_norm_gradient(
            _ready(dy_NH), _ready(x_NH), _ready(weight_H), _ready(saved_N), grains, into.sum, into.big
        )
        into.note(largest, len(grains))
        return dx_NH

    def rope(self, x_NQD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
        return rows.rope(_ready(x_NQD), _ready(cos_ND), _ready(sin_ND), back=False)

    def rope_gradient(self, dy_NQD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
        return rows.rope(_ready(dy_NQD), _ready(cos_ND), _ready(sin_ND), back=True)

    def silu_mul(self, gate_up_NI: Tensor) -> Tensor:
        return rows.silu_mul(_ready(gate_up_NI))

    def silu_mul_gradient(self, dh_NI: Tensor, gate_up_NI: Tensor) -> Tensor:
        return rows.silu_mul_gradient(_ready(dh_NI), _ready(gate_up_NI))

    def embedding_gradient(self, dx_NH: Tensor, ids_N: Tensor, into: ExactSum) -> None:
        into.note(embedding_gradient(_ready(dx_NH), _ready(ids_N), into), dx_NH.shape[0])

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
        attention.store(keys_PGDT, values_PGTD, *(_ready(t) for t in (key_NGD, value_NGD, first_page_N, position_N)))

    def attend(
        self,
        query_NQD: Tensor,
        keys_PGDT: Tensor,
        values_PGTD: Tensor,
        first_page_N: Tensor,
        position_N: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        where = (_ready(first_page_N), _ready(position_N))
        return attention.attend(_ready(query_NQD), keys_PGDT, values_PGTD, *where, scale)

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
        return attention_gradient.attention_gradient(
            _ready(dout_NQD), _ready(query_NQD), _ready(key_NGD), _ready(value_NGD), _ready(out_NQD), _ready(softmax),
            _ready(start_S), _ready(length_S), scale,
        )  # fmt: skip

    # --- experts --------------------------------------------------------------------------------------------------------

    def select_experts(self, logits_NE: Tensor, k: int) -> Tensor:
        return mixture.select_experts(_ready(logits_NE), k)

    def gate(self, logits_NE: Tensor, experts_NK: Tensor, *, normalise: bool) -> Tensor:
        return mixture.gate(_ready(logits_NE), _ready(experts_NK), normalise=normalise)

    def gate_gradient(self, dweights_NK: Tensor, logits_NE: Tensor, experts_NK: Tensor, *, normalise: bool) -> Tensor:
        given = (_ready(t) for t in (dweights_NK, logits_NE, experts_NK))
        return mixture.gate_gradient(*given, normalise=normalise)

    def dispatch(self, experts_NK: Tensor, experts: int) -> Dispatch:
        return mixture.dispatch(experts_NK, experts)

    def combine(self, rows_RH: Tensor, place_NK: Tensor, weights_NK: Tensor | None) -> Tensor:
        weights = None if weights_NK is None else _ready(weights_NK)
        return mixture.combine(_ready(rows_RH), _ready(place_NK), weights)

    def combine_gradient(
        self, dout_NH: Tensor, rows_RH: Tensor, place_NK: Tensor, weights_NK: Tensor
    ) -> tuple[Tensor, Tensor]:
        given = (_ready(t) for t in (dout_NH, rows_RH, place_NK, weights_NK))
        return mixture.combine_gradient(*given)

    # --- log-probs ------------------------------------------------------------------------------------------------------

    def logprob(
        self, hidden_RH: Tensor, head: Weight, ids_R: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        return vocabulary.logprob(_ready(hidden_RH), head.tensor, _ready(ids_R), temperature)

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
        dhidden_RH, largest = vocabulary.logprob_gradient(
            _ready(dlogprob_R).float(), _ready(hidden_RH), head.tensor, _ready(ids_R), _ready(saved), temperature,
            grains, into,
        )  # fmt: skip
        into.note(largest, len(grains))
        return dhidden_RH

    def draw(self, logits_RV: Tensor, temperature_R: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return vocabulary.draw(_ready(logits_RV), _ready(temperature_R), _ready(uniform_R))
