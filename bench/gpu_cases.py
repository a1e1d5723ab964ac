"""Every Triton kernel as a case: what it does on a size, the floor that it works against, and torch's own operation.

The floor is the bytes that must be moved over the device's bandwidth, or the FLOPs that must be done over its rate in the
model's dtype, whichever takes longer. Sizes: a model like Qwen3-30B-A3B for a GPU, tiny ones for the interpreter, and ones
of the same divisibility as the large ones to compile without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from t1kernels.exact import ExactSum
from t1kernels.interface import PAGE, Grains, Kernels, Weight
from torch import Tensor
from torch.nn import functional

BITS = 30
MaybeRun = Callable[[], object] | None


@dataclass(frozen=True)
class Sizes:
    """``rows`` of training, ``batch`` sequences of ``context`` positions in decode, ``sequences`` of ``length`` in
    training."""

    rows: int
    batch: int
    context: int
    sequences: int
    length: int
    hidden: int
    inner: int
    vocabulary: int
    experts: int
    chosen: int
    heads: int
    groups: int
    width: int
    peaks: int
    """Rows, columns and depth of the product that measures the device's rate."""


LARGE = Sizes(8192, 64, 4096, 4, 2048, 2048, 768, 151_936, 128, 8, 32, 4, 128, 8192)
TO_COMPILE = Sizes(128, 16, 128, 2, 64, 128, 64, 512, 16, 4, 8, 2, 128, 16)
TINY = Sizes(6, 2, 70, 2, 3, 24, 8, 70, 4, 2, 4, 2, 8, 16)


@dataclass(frozen=True)
class Case:
    """``bytes_`` and ``flops``: what cannot be saved."""

    name: str
    shape: str
    bytes_: float
    flops: float
    ours: Callable[[], object]
    torch: MaybeRun


class Bench:
    """Makes the cases for some kernels, sizes and a dtype. Tensors are made when a case is, and go with it."""

    def __init__(self, kernels: Kernels, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> None:
        self.kernels = kernels
        self.sizes = sizes
        self.dtype = dtype
        self.device = device
        self.size = torch.empty((), dtype=dtype).element_size()

    def parts(self) -> Mapping[str, tuple[Callable[[], Case], ...]]:
        """The cases by part, most worth first."""
        return {
            "vocabulary": (self.logprob, self.logprob_decode, self.logprob_gradient, self.draw),
            "products": (
                self.matmul, self.matmul_decode, self.matmul_gradient, self.weight_gradient,
                self.grouped, self.grouped_decode, self.grouped_gradient, self.expert_gradient,
            ),
            "attention": (self.decode, self.prefill, self.attention_gradient, self.store),
            "rows": (
                self.norm, self.norm_gradient, self.rope, self.gated, self.gated_gradient, self.select, self.gate,
                self.gate_gradient, self.dispatch, self.combine, self.combine_gradient, self.embedding_gradient,
            ),
        }  # fmt: skip

    # --- making things ------------------------------------------------------------------------------------------------------

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(*shape, device=self.device).to(dtype or self.dtype)

    def weight(self, *shape: int) -> Weight:
        return self.kernels.weight(self.normal(*shape) * shape[-1] ** -0.5)

    def integers(self, below: int, *shape: int) -> Tensor:
        return torch.randint(0, below, shape, device=self.device)

    def chosen(self, rows: int) -> Tensor:
        """Distinct experts of each row, ascending."""
        s = self.sizes
        return torch.rand(rows, s.experts, device=self.device).topk(s.chosen).indices.sort(-1).values

    def sum(self, *shape: int) -> ExactSum:
        return ExactSum("weight", shape, bits=BITS, device=self.device)

    def grains(self, rows: int) -> Grains:
        start = torch.arange(0, rows, PAGE)
        return Grains(start, (start + PAGE).clamp(max=rows), torch.zeros_like(start))

    def case(self, name: str, shape: str, ours: Callable[[], object], other: MaybeRun, *, elements: float = 0,
             bytes_: float = 0, flops: float = 0) -> Case:  # fmt: skip
        """``elements`` have the model's size, ``bytes_`` come on top of them."""
        return Case(name, shape, elements * self.size + bytes_, flops, ours, other)

    # --- the vocabulary -----------------------------------------------------------------------------------------------------

    def _logprob(self, rows: int, name: str) -> Case:
        s, k = self.sizes, self.kernels
        hidden, head, ids = (
            self.normal(rows, s.hidden),
            self.weight(s.vocabulary, s.hidden),
            self.integers(s.vocabulary, rows),
        )

        def plain() -> Tensor:
            return (hidden @ head.tensor.t()).float().log_softmax(-1).gather(1, ids[:, None])

        return self.case(
            name, f"{rows} x {s.hidden} x {s.vocabulary}", lambda: k.logprob(hidden, head, ids, 1.0), plain,
            elements=(rows + s.vocabulary) * s.hidden, flops=2 * rows * s.hidden * s.vocabulary,
        )  # fmt: skip

    def logprob(self) -> Case:
        return self._logprob(self.sizes.rows // 2, "log-prob")

    def logprob_decode(self) -> Case:
        return self._logprob(self.sizes.batch, "log-prob, few rows")

    def logprob_gradient(self) -> Case:
        s, k, rows = self.sizes, self.kernels, self.sizes.rows // 2
        hidden, head, ids = (
            self.normal(rows, s.hidden),
            self.weight(s.vocabulary, s.hidden),
            self.integers(s.vocabulary, rows),
        )
        up, total, grains = self.normal(rows, dtype=torch.float32), self.sum(s.vocabulary, s.hidden), self.grains(rows)
        saved = k.logprob(hidden, head, ids, 1.0)[2]

        def plain() -> object:
            h, w = hidden.detach().requires_grad_(), head.tensor.detach().requires_grad_()
            found = (h @ w.t()).float().log_softmax(-1).gather(1, ids[:, None])[:, 0]
            return torch.autograd.grad(found, (h, w), up)

        return self.case(
            "log-prob, gradient (torch: and forward)", f"{rows} x {s.hidden} x {s.vocabulary}",
            lambda: k.logprob_gradient(up, hidden, head, ids, saved, 1.0, grains, total), plain,
            elements=2 * (rows + s.vocabulary) * s.hidden, bytes_=16 * s.vocabulary * s.hidden,
            flops=6 * rows * s.hidden * s.vocabulary,
        )  # fmt: skip

    def draw(self) -> Case:
        s, k = self.sizes, self.kernels
        logits, ones = self.normal(s.batch, s.vocabulary), torch.ones(s.batch, device=self.device)
        chances = torch.rand(s.batch, dtype=torch.float64, device=self.device)
        return self.case(
            "draw", f"{s.batch} x {s.vocabulary}", lambda: k.draw(logits, ones, chances),
            lambda: torch.multinomial(logits.float().softmax(-1), 1), elements=s.batch * s.vocabulary,
        )  # fmt: skip

    # --- products -----------------------------------------------------------------------------------------------------------

    def _matmul(self, rows: int, name: str, *, back: bool) -> Case:
        s, k, outputs = self.sizes, self.kernels, self.sizes.heads * self.sizes.width
        weight, x = self.weight(outputs, s.hidden), self.normal(rows, outputs if back else s.hidden)
        return self.case(
            name, f"{rows} x {s.hidden} x {outputs}",
            (lambda: k.matmul_gradient(x, weight)) if back else (lambda: k.matmul(x, weight)),
            (lambda: x @ weight.tensor) if back else (lambda: x @ weight.tensor.t()),
            elements=rows * (outputs + s.hidden) + outputs * s.hidden, flops=2 * rows * s.hidden * outputs,
        )  # fmt: skip

    def matmul(self) -> Case:
        return self._matmul(self.sizes.rows, "product", back=False)

    def matmul_decode(self) -> Case:
        return self._matmul(self.sizes.batch, "product, few rows", back=False)

    def matmul_gradient(self) -> Case:
        return self._matmul(self.sizes.rows, "product, gradient of rows", back=True)

    def weight_gradient(self) -> Case:
        s, k, outputs = self.sizes, self.kernels, self.sizes.heads * self.sizes.width
        x, dy, total = self.normal(s.rows, s.hidden), self.normal(s.rows, outputs), self.sum(outputs, s.hidden)
        grains = self.grains(s.rows)
        return self.case(
            "product, gradient of the weight", f"{s.rows} x {s.hidden} x {outputs}",
            lambda: k.weight_gradient(dy, x, grains, total), lambda: dy.t() @ x,
            elements=s.rows * (outputs + s.hidden), bytes_=16 * outputs * s.hidden, flops=2 * s.rows * s.hidden * outputs,
        )  # fmt: skip

    def _grouped(self, rows: int, name: str, *, back: bool) -> Case:
        s, k = self.sizes, self.kernels
        weight, offset = self.weight(s.experts, 2 * s.inner, s.hidden), k.dispatch(self.chosen(rows), s.experts).offset
        pairs = rows * s.chosen
        x = self.normal(pairs, 2 * s.inner if back else s.hidden)
        bounds = offset.tolist()

        def each() -> None:
            for one, start, end in zip(weight.tensor, bounds, bounds[1:], strict=False):
                x[start:end] @ (one if back else one.t())

        used = min(s.experts, pairs)
        return self.case(
            name, f"{pairs} x {s.hidden} x {2 * s.inner}, {s.experts} experts",
            (lambda: k.grouped_matmul_gradient(x, weight, offset)) if back
            else (lambda: k.grouped_matmul(x, weight, offset)),
            each, elements=pairs * (2 * s.inner + s.hidden) + used * 2 * s.inner * s.hidden,
            flops=2 * pairs * 2 * s.inner * s.hidden,
        )  # fmt: skip

    def grouped(self) -> Case:
        return self._grouped(self.sizes.rows, "experts (torch: a loop)", back=False)

    def grouped_decode(self) -> Case:
        return self._grouped(self.sizes.batch, "experts, few rows (torch: a loop)", back=False)

    def grouped_gradient(self) -> Case:
        return self._grouped(self.sizes.rows, "experts, gradient of rows (torch: a loop)", back=True)

    def expert_gradient(self) -> Case:
        s, k = self.sizes, self.kernels
        bounds = k.dispatch(self.chosen(s.rows), s.experts).offset.tolist()
        pairs = s.rows * s.chosen
        x, dy, total = (
            self.normal(pairs, s.hidden),
            self.normal(pairs, 2 * s.inner),
            self.sum(s.experts, 2 * s.inner, s.hidden),
        )
        cuts = [(e, top, min(top + 1024, end)) for e, (start, end) in enumerate(pairwise(bounds))
                for top in range(start, end, 1024)]  # fmt: skip
        expert, start, end = (torch.tensor(column) for column in zip(*cuts, strict=True))

        def each() -> None:
            for a, b in pairwise(bounds):
                dy[a:b].t() @ x[a:b]

        return self.case(
            "experts, gradient of the weights (torch: a loop)", f"{pairs} x {s.hidden} x {2 * s.inner}, {s.experts} experts",
            lambda: k.weight_gradient(dy, x, Grains(start, end, expert), total), each,
            elements=pairs * (2 * s.inner + s.hidden), bytes_=16 * s.experts * 2 * s.inner * s.hidden,
            flops=2 * pairs * 2 * s.inner * s.hidden,
        )  # fmt: skip

    # --- attention ----------------------------------------------------------------------------------------------------------

    def decode(self) -> Case:
        s, k, slot = self.sizes, self.kernels, -(-self.sizes.context // PAGE)
        tiles = ((s.width, PAGE), (PAGE, s.width))
        keys, values = (self.normal(s.batch * slot, s.groups, *tile, dtype=torch.float32) for tile in tiles)
        query = self.normal(s.batch, s.heads, s.width)
        first = torch.arange(s.batch, device=self.device) * slot
        position = torch.full((s.batch,), s.context - 1, device=self.device)
        other = (
            self.normal(s.batch, h, n, s.width) for h, n in ((s.heads, 1), (s.groups, s.context), (s.groups, s.context))
        )
        q, key, value = other
        return self.case(
            "attention, decode (torch: keys of half the size)",
            f"{s.batch} sequences of {s.context}, {s.heads} / {s.groups} heads",
            lambda: k.attend(query, keys, values, first, position, s.width**-0.5),
            lambda: functional.scaled_dot_product_attention(q, key, value, enable_gqa=True),
            bytes_=2 * 4 * s.batch * s.context * s.groups * s.width,
            flops=4 * s.batch * s.context * s.heads * s.width,
        )  # fmt: skip

    def _sequences(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """(query, key, value), (pages and where the rows are), (start and length of the sequences)."""
        s, slot = self.sizes, -(-self.sizes.length // PAGE)
        rows = s.sequences * s.length
        qkv = tuple(self.normal(rows, heads, s.width) for heads in (s.heads, s.groups, s.groups))
        pages = (
            torch.zeros(s.sequences * slot, s.groups, s.width, PAGE, device=self.device),
            torch.zeros(s.sequences * slot, s.groups, PAGE, s.width, device=self.device),
        )
        first = (torch.arange(s.sequences, device=self.device) * slot).repeat_interleave(s.length)
        position = torch.arange(s.length, device=self.device).repeat(s.sequences)
        start = torch.arange(s.sequences, device=self.device) * s.length
        return qkv, (*pages, first, position), (start, torch.full_like(start, s.length))

    def _batched(self, x: Tensor) -> Tensor:
        return x.view(self.sizes.sequences, self.sizes.length, *x.shape[1:]).transpose(1, 2)

    def prefill(self) -> Case:
        s, k = self.sizes, self.kernels
        (q, key, value), where, _ = self._sequences()
        k.store(*where[:2], key, value, *where[2:])
        batched = [self._batched(x) for x in (q, key, value)]
        return self.case(
            "attention, whole sequences", f"{s.sequences} sequences of {s.length}, {s.heads} / {s.groups} heads",
            lambda: k.attend(q, *where, s.width**-0.5),
            lambda: functional.scaled_dot_product_attention(*batched, is_causal=True, enable_gqa=True),
            elements=s.sequences * s.length * 2 * s.heads * s.width,
            bytes_=2 * 4 * s.sequences * s.length * s.groups * s.width,
            flops=2 * s.sequences * s.length**2 * s.heads * s.width,
        )  # fmt: skip

    def attention_gradient(self) -> Case:
        s, k = self.sizes, self.kernels
        (q, key, value), where, sequences = self._sequences()
        k.store(*where[:2], key, value, *where[2:])
        out, saved = k.attend(q, *where, s.width**-0.5)
        dout = self.normal(*out.shape)
        leaves = [self._batched(x).detach().requires_grad_() for x in (q, key, value)]
        up = self._batched(dout)

        def plain() -> object:
            found = functional.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
            return torch.autograd.grad(found, leaves, up)

        return self.case(
            "attention, gradient (torch: and forward)",
            f"{s.sequences} sequences of {s.length}, {s.heads} / {s.groups} heads",
            lambda: k.attention_gradient(dout, q, key, value, out, saved, *sequences, s.width**-0.5), plain,
            elements=s.sequences * s.length * s.width * (4 * s.heads + 4 * s.groups),
            flops=5 * s.sequences * s.length**2 * s.heads * s.width,
        )  # fmt: skip

    def store(self) -> Case:
        k = self.kernels
        (_, key, value), where, _ = self._sequences()
        elements = 2 * key.numel()
        return self.case(
            "keys and values into pages", f"{key.shape[0]} rows", lambda: k.store(*where[:2], key, value, *where[2:]),
            lambda: (key.float(), value.float()), elements=elements, bytes_=4 * elements,
        )  # fmt: skip

    # --- rows ---------------------------------------------------------------------------------------------------------------

    def norm(self) -> Case:
        s, k = self.sizes, self.kernels
        x, w = self.normal(s.rows, s.hidden), self.normal(s.hidden)
        return self.case("norm", f"{s.rows} x {s.hidden}", lambda: k.rms_norm(x, w, 1e-6),
                         lambda: functional.rms_norm(x, (s.hidden,), w, 1e-6), elements=2 * x.numel())  # fmt: skip

    def norm_gradient(self) -> Case:
        s, k = self.sizes, self.kernels
        x, w, dy = self.normal(s.rows, s.hidden), self.normal(s.hidden), self.normal(s.rows, s.hidden)
        saved, grains, total = k.rms_norm(x, w, 1e-6)[1], self.grains(s.rows), self.sum(s.hidden)
        return self.case("norm, gradient", f"{s.rows} x {s.hidden}",
                         lambda: k.rms_norm_gradient(dy, x, w, saved, grains, total), None,
                         elements=3 * x.numel())  # fmt: skip

    def rope(self) -> Case:
        s, k = self.sizes, self.kernels
        x, angles = self.normal(s.rows, s.heads, s.width), self.normal(s.rows, s.width, dtype=torch.float32)
        return self.case("rotary positions", f"{s.rows} x {s.heads} x {s.width}", lambda: k.rope(x, angles, angles), None,
                         elements=2 * x.numel(), bytes_=8 * angles.numel())  # fmt: skip

    def gated(self) -> Case:
        s, k = self.sizes, self.kernels
        x = self.normal(s.rows * s.chosen, 2 * s.inner)
        return self.case("gated unit", f"{x.shape[0]} x {s.inner}", lambda: k.silu_mul(x),
                         lambda: functional.silu(x[:, : s.inner]) * x[:, s.inner :], elements=1.5 * x.numel())  # fmt: skip

    def gated_gradient(self) -> Case:
        s, k = self.sizes, self.kernels
        x, dh = self.normal(s.rows * s.chosen, 2 * s.inner), self.normal(s.rows * s.chosen, s.inner)
        return self.case("gated unit, gradient", f"{x.shape[0]} x {s.inner}", lambda: k.silu_mul_gradient(dh, x), None,
                         elements=2.5 * x.numel())  # fmt: skip

    def select(self) -> Case:
        s, k = self.sizes, self.kernels
        logits = self.normal(s.rows, s.experts)
        return self.case("router's choice", f"{s.rows} x {s.experts}", lambda: k.select_experts(logits, s.chosen),
                         lambda: logits.float().softmax(-1).topk(s.chosen).indices.sort(-1),
                         elements=logits.numel(), bytes_=8 * s.rows * s.chosen)  # fmt: skip

    def gate(self) -> Case:
        s, k = self.sizes, self.kernels
        logits, chosen = self.normal(s.rows, s.experts), self.chosen(s.rows)
        return self.case("gate", f"{s.rows} x {s.experts}", lambda: k.gate(logits, chosen, normalise=True),
                         lambda: logits.float().softmax(-1).gather(1, chosen),
                         elements=logits.numel() + chosen.numel(), bytes_=8 * chosen.numel())  # fmt: skip

    def gate_gradient(self) -> Case:
        s, k = self.sizes, self.kernels
        logits, chosen, dw = self.normal(s.rows, s.experts), self.chosen(s.rows), self.normal(s.rows, s.chosen)
        return self.case("gate, gradient", f"{s.rows} x {s.experts}",
                         lambda: k.gate_gradient(dw, logits, chosen, normalise=True), None,
                         elements=2 * logits.numel() + chosen.numel(), bytes_=8 * chosen.numel())  # fmt: skip

    def dispatch(self) -> Case:
        s, k = self.sizes, self.kernels
        chosen = self.chosen(s.rows)
        return self.case("dispatch (in torch)", f"{s.rows} x {s.chosen}", lambda: k.dispatch(chosen, s.experts), None,
                         bytes_=3 * 8 * chosen.numel())  # fmt: skip

    def _pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """(rows of pairs, place, weights)."""
        s = self.sizes
        place = self.kernels.dispatch(self.chosen(s.rows), s.experts).place
        return self.normal(s.rows * s.chosen, s.hidden), place, self.normal(s.rows, s.chosen)

    def combine(self) -> Case:
        s, k = self.sizes, self.kernels
        rows, place, weights = self._pairs()
        return self.case("sum over experts", f"{s.rows} x {s.chosen} x {s.hidden}",
                         lambda: k.combine(rows, place, weights),
                         lambda: (rows[place] * weights[..., None]).sum(1),
                         elements=rows.numel() + s.rows * s.hidden)  # fmt: skip

    def combine_gradient(self) -> Case:
        s, k = self.sizes, self.kernels
        rows, place, weights = self._pairs()
        dout = self.normal(s.rows, s.hidden)
        return self.case("sum over experts, gradient", f"{s.rows} x {s.chosen} x {s.hidden}",
                         lambda: k.combine_gradient(dout, rows, place, weights), None,
                         elements=2 * rows.numel() + dout.numel())  # fmt: skip

    def embedding_gradient(self) -> Case:
        s, k = self.sizes, self.kernels
        dx, ids, total = (
            self.normal(s.rows, s.hidden),
            self.integers(s.vocabulary, s.rows),
            self.sum(s.vocabulary, s.hidden),
        )
        return self.case("embedding, gradient", f"{s.rows} x {s.hidden}", lambda: k.embedding_gradient(dx, ids, total),
                         lambda: torch.zeros(s.vocabulary, s.hidden, device=self.device).index_add_(0, ids, dx.float()),
                         elements=dx.numel(), bytes_=16 * dx.numel())  # fmt: skip


def all_cases(bench: Bench) -> Iterator[Callable[[], Case]]:
    """Of every part."""
    for part in bench.parts().values():
        yield from part
