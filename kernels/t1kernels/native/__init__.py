"""The kernels in C (``portable.c``, ``avx2.c``), compiled when the package is installed, where a compiler is.

Every output is one fixed fold of fused multiply-adds, so bits do not depend on how many rows there are, and not on the
instruction set either: the AVX2 build and the portable one agree (tested). One thread.

``library`` finds the compiled file or says why there is none; ``t1kernels.choice`` decides what happens then.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from t1kernels.exact import ExactSum, refuse_inexact
from t1kernels.interface import PAGE, Dispatch, Grains, Weight
from t1kernels.native.library import Functions, NativeUnavailable, has_avx2_and_fma, library

__all__ = ["NativeKernels", "NativeUnavailable", "NativeWeight", "library"]

TILE_WORDS = 256
TILE_ROWS = 96
SUPER_ROWS = 512
PANEL = 16


def _f32(x: Tensor) -> Tensor:
    """As float32 rows, without gaps."""
    return x.detach().to(torch.float32).contiguous()


def _flat(x: Tensor) -> Tensor:
    return x.detach().contiguous()


def _at(x: Tensor) -> int:
    """The address of a tensor that is handed on as it is, which must then have no gaps. Raises ``ValueError``."""
    if not x.is_contiguous():
        raise ValueError(f"a tensor of shape {tuple(x.shape)} and strides {x.stride()} has gaps: pass it .contiguous()")
    return x.data_ptr()


def _type(x: Tensor) -> int:
    if x.dtype == torch.float32:
        return 0
    if x.dtype == torch.bfloat16:
        return 1
    raise TypeError(f"activations of {x.dtype}; the kernels have float32 and bfloat16")


class NativeWeight:
    """A weight with its panels, each direction packed when it is first wanted. The tensor must not change afterwards."""

    def __init__(self, kernels: NativeKernels, tensor: Tensor) -> None:
        self.tensor = tensor.detach()
        self._kernels = kernels
        self._forward: Tensor | None = None
        self._backward: Tensor | None = None

    @property
    def forward(self) -> Tensor:
        """Panels for x W^T."""
        if self._forward is None:
            self._forward = self._packed(transposed=True)
        return self._forward

    @property
    def backward(self) -> Tensor:
        """Panels for dy W."""
        if self._backward is None:
            self._backward = self._packed(transposed=False)
        return self._backward

    def _packed(self, *, transposed: bool) -> Tensor:
        tensor = _f32(self.tensor)
        group = tensor[None] if tensor.dim() == 2 else tensor
        outputs, inputs = group.shape[1:]
        columns, depth = (outputs, inputs) if transposed else (inputs, outputs)
        panels = torch.empty(group.shape[0], -(-columns // PANEL) * PANEL * depth)
        pack = self._kernels.c.pack_transposed if transposed else self._kernels.c.pack
        for one, into in zip(group, panels, strict=True):
            pack(columns, depth, one.data_ptr(), into.data_ptr())
        return panels


def _packed(weight: Weight) -> NativeWeight:
    assert isinstance(weight, NativeWeight), f"{type(weight).__name__} was made by other kernels"
    return weight


class NativeKernels:
    """``t1kernels.interface.Kernels`` in C. ``instructions``: ``avx2`` or ``portable``, by default the best that this
    processor has. Raises ``NativeUnavailable``."""

    def __init__(self, instructions: str | None = None) -> None:
        has_avx2 = has_avx2_and_fma()
        self.instructions = instructions or ("avx2" if has_avx2 else "portable")
        if self.instructions == "avx2" and not has_avx2:
            raise NativeUnavailable("this processor has no AVX2 with FMA")
        self.c: Any = Functions(self.instructions)

    @property
    def name(self) -> str:
        return f"native/{self.instructions}"

    # --- products -------------------------------------------------------------------------------------------------------

    def weight(self, tensor: Tensor) -> Weight:
        return NativeWeight(self, tensor)

    def matmul(self, x_NK: Tensor, weight: Weight) -> Tensor:
        outputs, inputs = weight.tensor.shape
        return self._matmul(x_NK, _packed(weight).forward, outputs, inputs)

    def matmul_gradient(self, dy_NO: Tensor, weight: Weight) -> Tensor:
        outputs, inputs = weight.tensor.shape
        return self._matmul(dy_NO, _packed(weight).backward, inputs, outputs)

    def _matmul(self, x: Tensor, panels: Tensor, columns: int, depth: int) -> Tensor:
        rows = _f32(x)
        assert rows.shape[-1] == depth, (rows.shape, depth)
        y = torch.empty(rows.shape[0], columns)
        self.c.matmul(rows.shape[0], columns, depth, depth, rows.data_ptr(), panels.data_ptr(), y.data_ptr(), 0)
        return y.to(x.dtype)

    def grouped_matmul(self, x_RK: Tensor, weight: Weight, offset: Tensor) -> Tensor:
        _, outputs, inputs = weight.tensor.shape
        return self._grouped(x_RK, _packed(weight).forward, offset, outputs, inputs)

    def grouped_matmul_gradient(self, dy_RO: Tensor, weight: Weight, offset: Tensor) -> Tensor:
        _, outputs, inputs = weight.tensor.shape
        return self._grouped(dy_RO, _packed(weight).backward, offset, inputs, outputs)

    def _grouped(self, x: Tensor, panels: Tensor, offset: Tensor, columns: int, depth: int) -> Tensor:
        rows = _f32(x)
        y = torch.empty(rows.shape[0], columns)
        self.c.grouped_matmul(
            panels.shape[0], _at(offset), columns, depth, rows.data_ptr(), panels.data_ptr(), y.data_ptr()
        )
        return y.to(x.dtype)

    def weight_gradient(self, dy_NO: Tensor, x_NK: Tensor, grains: Grains, into: ExactSum) -> None:
        dy, x = _f32(dy_NO), _f32(x_NK)
        strip = torch.empty(_most_rows(grains) * PANEL)
        largest = self.c.weight_gradient(
            dy.shape[1], x.shape[1], dy.data_ptr(), x.data_ptr(), len(grains), _at(grains.start),
            _at(grains.end), _at(grains.weight), _at(into.sum), into.big, strip.data_ptr(),
        )  # fmt: skip
        into.note(largest, len(grains))

    # --- rows -----------------------------------------------------------------------------------------------------------

    def rms_norm(self, x_NH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x, weight = _flat(x_NH), _flat(weight_H)
        width = weight.shape[0]
        y, saved = torch.empty_like(x), torch.empty(x.numel() // width)
        self.c.rms_norm(
            _type(x), saved.shape[0], width, x.data_ptr(), weight.data_ptr(), eps, y.data_ptr(), saved.data_ptr()
        )
        return y, saved

    def rms_norm_gradient(
        self, dy_NH: Tensor, x_NH: Tensor, weight_H: Tensor, saved_N: Tensor, grains: Grains, into: ExactSum
    ) -> Tensor:
        dy, x, weight = _flat(dy_NH), _flat(x_NH), _flat(weight_H)
        dx, work = torch.empty_like(x), torch.empty(weight.shape[0] + 7)
        largest = self.c.rms_norm_gradient(
            _type(x), weight.shape[0], dy.data_ptr(), x.data_ptr(), weight.data_ptr(), _at(saved_N),
            len(grains), _at(grains.start), _at(grains.end), into.big, dx.data_ptr(), _at(into.sum),
            work.data_ptr(),
        )  # fmt: skip
        into.note(largest, len(grains))
        return dx

    def rope(self, x_NQD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
        return self._rope(x_NQD, cos_ND, sin_ND, 1.0)

    def rope_gradient(self, dy_NQD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
        return self._rope(dy_NQD, cos_ND, sin_ND, -1.0)

    def _rope(self, x_NQD: Tensor, cos_ND: Tensor, sin_ND: Tensor, sign: float) -> Tensor:
        x = _flat(x_NQD)
        y = torch.empty_like(x)
        rows, heads, width = x.shape
        self.c.rope(_type(x), rows, heads, width, x.data_ptr(), _at(cos_ND), _at(sin_ND), sign, y.data_ptr())
        return y

    def silu_mul(self, gate_up_NI: Tensor) -> Tensor:
        gate_up = _flat(gate_up_NI)
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        h = gate_up.new_empty(rows, width)
        self.c.silu_mul(_type(h), rows, width, gate_up.data_ptr(), h.data_ptr())
        return h

    def silu_mul_gradient(self, dh_NI: Tensor, gate_up_NI: Tensor) -> Tensor:
        dh, gate_up = _flat(dh_NI), _flat(gate_up_NI)
        dgate_up = torch.empty_like(gate_up)
        self.c.silu_mul_gradient(_type(dh), *dh.shape, dh.data_ptr(), gate_up.data_ptr(), dgate_up.data_ptr())
        return dgate_up

    def embedding_gradient(self, dx_NH: Tensor, ids_N: Tensor, into: ExactSum) -> None:
        dx, ids = _flat(dx_NH), _flat(ids_N)
        largest = self.c.embedding_gradient(
            _type(dx), *dx.shape, dx.data_ptr(), ids.data_ptr(), into.big, _at(into.sum)
        )
        into.note(largest, dx.shape[0])

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
        key, value = _f32(key_NGD), _f32(value_NGD)
        self.c.store_rows(
            *key.shape, key.data_ptr(), value.data_ptr(), _at(first_page_N), _at(position_N),
            _at(keys_PGDT), _at(values_PGTD),
        )  # fmt: skip

    def attend(
        self,
        query_NQD: Tensor,
        keys_PGDT: Tensor,
        values_PGTD: Tensor,
        first_page_N: Tensor,
        position_N: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        query = _f32(query_NQD)
        rows, heads, width = query.shape
        assert width in range(8, 257, 8), f"heads of width {width}: a multiple of 8 up to 256 is needed"
        out, softmax = torch.empty_like(query), torch.empty(rows, heads, 2)
        self.c.attend(
            rows, heads, keys_PGDT.shape[1], width, query.data_ptr(), _at(keys_PGDT), _at(values_PGTD),
            _at(first_page_N), _at(position_N), scale, out.data_ptr(), softmax.data_ptr(),
        )  # fmt: skip
        return out.to(query_NQD.dtype), softmax

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
        *,
        bits: int = 48,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dout, query, key, value, out = (_f32(t) for t in (dout_NQD, query_NQD, key_NGD, value_NGD, out_NQD))
        _, heads, width = query.shape
        longest = -(-int(length_S.max()) // PAGE) * PAGE if length_S.numel() else 0
        largest_S = torch.empty(length_S.shape[0])
        dquery, dkey, dvalue = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        work = torch.empty(10 * longest * width)
        tiles = ExactSum("keys and values", (), bits=bits)
        self.c.attention_gradient(
            length_S.shape[0], _at(start_S), _at(length_S), heads, key.shape[1], width, longest,
            query.data_ptr(), key.data_ptr(), value.data_ptr(), out.data_ptr(), _at(softmax), dout.data_ptr(),
            scale, tiles.big, dquery.data_ptr(), dkey.data_ptr(), dvalue.data_ptr(), largest_S.data_ptr(), work.data_ptr(),
        )  # fmt: skip
        refuse_inexact(tiles, largest_S, -(-length_S // PAGE), start_S, length_S, (dkey, dvalue))
        return tuple(t.to(query_NQD.dtype) for t in (dquery, dkey, dvalue))  # type: ignore[return-value]

    # --- experts --------------------------------------------------------------------------------------------------------

    def select_experts(self, logits_NE: Tensor, k: int) -> Tensor:
        logits = _flat(logits_NE)
        rows, experts = logits.shape
        chosen, work = torch.empty(rows, k, dtype=torch.int64), torch.empty(experts)
        self.c.select_experts(_type(logits), rows, experts, k, logits.data_ptr(), chosen.data_ptr(), work.data_ptr())
        return chosen

    def gate(self, logits_NE: Tensor, experts_NK: Tensor, *, normalise: bool) -> Tensor:
        logits, chosen = _flat(logits_NE), _flat(experts_NK)
        weights, work = logits.new_empty(chosen.shape), torch.empty(logits.shape[1])
        self.c.gate(
            _type(logits),
            *logits.shape,
            chosen.shape[1],
            logits.data_ptr(),
            chosen.data_ptr(),
            normalise,
            weights.data_ptr(),
            work.data_ptr(),
        )
        return weights

    def gate_gradient(self, dweights_NK: Tensor, logits_NE: Tensor, experts_NK: Tensor, *, normalise: bool) -> Tensor:
        dweights, logits, chosen = _flat(dweights_NK), _flat(logits_NE), _flat(experts_NK)
        dlogits, work = torch.empty_like(logits), torch.empty(2 * logits.shape[1])
        self.c.gate_gradient(
            _type(logits), *logits.shape, chosen.shape[1], logits.data_ptr(), chosen.data_ptr(), normalise,
            dweights.data_ptr(), dlogits.data_ptr(), work.data_ptr(),
        )  # fmt: skip
        return dlogits

    def dispatch(self, experts_NK: Tensor, experts: int) -> Dispatch:
        chosen = _flat(experts_NK)
        found = Dispatch(
            offset=torch.empty(experts + 1, dtype=torch.int64),
            token=torch.empty(chosen.numel(), dtype=torch.int64),
            place=torch.empty_like(chosen),
        )
        self.c.dispatch(
            *chosen.shape,
            experts,
            chosen.data_ptr(),
            found.offset.data_ptr(),
            found.token.data_ptr(),
            found.place.data_ptr(),
        )
        return found

    def combine(self, rows_RH: Tensor, place_NK: Tensor, weights_NK: Tensor | None) -> Tensor:
        rows = _flat(rows_RH)
        weights = None if weights_NK is None else _flat(weights_NK)
        place, factors = _at(place_NK), None if weights is None else weights.data_ptr()
        out = rows.new_empty(place_NK.shape[0], rows.shape[1])
        self.c.combine(_type(rows), *place_NK.shape, rows.shape[1], rows.data_ptr(), place, factors, out.data_ptr())
        return out

    def combine_gradient(
        self, dout_NH: Tensor, rows_RH: Tensor, place_NK: Tensor, weights_NK: Tensor
    ) -> tuple[Tensor, Tensor]:
        dout, rows, weights = _flat(dout_NH), _flat(rows_RH), _flat(weights_NK)
        drows, dweights = torch.empty_like(rows), torch.empty_like(weights)
        self.c.combine_gradient(
            _type(rows), *place_NK.shape, rows.shape[1], dout.data_ptr(), rows.data_ptr(), _at(place_NK),
            weights.data_ptr(), drows.data_ptr(), dweights.data_ptr(),
        )  # fmt: skip
        return drows, dweights

    # --- log-probs ------------------------------------------------------------------------------------------------------

    def logprob(
        self, hidden_RH: Tensor, head: Weight, ids_R: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden, ids = _f32(hidden_RH), _flat(ids_R)
        vocabulary, width = head.tensor.shape
        panels = _packed(head)
        rows = hidden.shape[0]
        logprob, entropy, softmax = torch.empty(rows), torch.empty(rows), torch.empty(rows, 2)
        work = torch.empty(TILE_ROWS * TILE_WORDS)
        self.c.logprob(
            rows, vocabulary, width, hidden.data_ptr(), panels.forward.data_ptr(), ids.data_ptr(), temperature,
            _type(hidden_RH), logprob.data_ptr(), entropy.data_ptr(), softmax.data_ptr(), work.data_ptr(),
        )  # fmt: skip
        return logprob, entropy, softmax

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
        hidden, ids, upstream = _f32(hidden_RH), _flat(ids_R), _f32(dlogprob_R)
        vocabulary, width = head.tensor.shape
        panels = _packed(head)
        most = _most_rows(grains)
        dhidden, work = torch.empty_like(hidden), torch.empty(most * (TILE_WORDS + PANEL))
        zero = torch.zeros(len(grains), dtype=torch.int64)
        largest = self.c.logprob_gradient(
            vocabulary, width, hidden.data_ptr(), panels.forward.data_ptr(), panels.backward.data_ptr(), ids.data_ptr(),
            saved.data_ptr(), upstream.data_ptr(), temperature, _type(hidden_RH), len(grains),
            _at(grains.start), _at(grains.end), zero.data_ptr(), into.big, dhidden.data_ptr(),
            _at(into.sum), most, work.data_ptr(),
        )  # fmt: skip
        into.note(largest, len(grains))
        return dhidden.to(hidden_RH.dtype)

    def draw(self, logits_RV: Tensor, temperature_R: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = _f32(logits_RV)
        rows, vocabulary = logits.shape
        token, logprob, entropy = torch.empty(rows, dtype=torch.int64), torch.empty(rows), torch.empty(rows)
        work = torch.empty(vocabulary)
        self.c.draw(
            rows, vocabulary, logits.data_ptr(), _at(temperature_R), _at(uniform_R), _type(logits_RV),
            token.data_ptr(), logprob.data_ptr(), entropy.data_ptr(), work.data_ptr(),
        )  # fmt: skip
        return token, logprob, entropy


def _most_rows(grains: Grains) -> int:
    """Rows that a kernel holds at a time: ``SUPER_ROWS``, or the longest grain."""
    if not len(grains):
        return SUPER_ROWS
    return max(SUPER_ROWS, int((grains.end - grains.start).max()))
