"""Every operation of an implementation on small fixed inputs: what the probe compares and the fingerprint hashes.

Inputs are made of integers, never of a random generator, so they are the same bits everywhere. Three kinds of operations:
of rows (what a row gets), of grains (what a weight's sum gets), of sequences (attention's gradient).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from t1kernels.exact import ExactSum
from t1kernels.interface import PAGE, Grains, Kernels

LENGTHS = (5, 65)
"""Sequences of the rows: one shorter than a page, one that reaches a second."""
ROWS = sum(LENGTHS)
HIDDEN, OUT, INNER, VOCABULARY = 48, 40, 24, 300
DEEP = 600
"""Inputs of a product that libraries cut into blocks."""
EXPERTS, CHOSEN = 8, 2
QUERY_HEADS, KEY_HEADS, WIDTH = 4, 2, 32
SCALE = WIDTH**-0.5
GRID_BITS = 30

OfRows: TypeAlias = Callable[[Tensor], tuple[Tensor, ...]]
"""Of the chosen rows: tensors whose first dimension is theirs."""
OfGrains: TypeAlias = Callable[[Sequence[int]], Tensor]
"""The sum that the grains of these numbers add up to."""
OfSequences: TypeAlias = Callable[[Sequence[int]], list[tuple[Tensor, ...]]]
"""For each of the sequences of these numbers its tensors."""


@dataclass(frozen=True)
class Samples:
    """The operations of one implementation in one dtype, by name."""

    rows: Mapping[str, OfRows]
    grains: Mapping[str, OfGrains]
    sequences: Mapping[str, OfSequences]


def values(*shape: int, salt: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers in [-2, 2) that look random, with all the bits that float32 has: their sums round."""
    count = torch.arange(math.prod(shape), dtype=torch.int64) + 7919 * salt
    mixed = (count * 2654435761) % 2**32
    mixed = ((mixed ^ (mixed >> 15)) * 1103515245) % 2**32
    return (((mixed >> 8) - 2**23).float() / 2**22).view(shape).to(dtype)


def samples(kernels: Kernels, dtype: torch.dtype) -> Samples:
    """The operations of ``kernels`` on activations and weights of ``dtype``."""
    made = _Inputs(kernels, dtype)
    return Samples(
        rows={**_products(made), **_rows(made), **_experts(made), **_words(made), "attend": _attend(made)},
        grains=_grains(made),
        sequences={"attention_gradient": _attention_gradient(made)},
    )


class _Inputs:
    """Tensors that several operations share. ``of(salt, ...)`` has one row a row of the sample."""

    def __init__(self, kernels: Kernels, dtype: torch.dtype) -> None:
        self.kernels, self.dtype = kernels, dtype
        self.x, self.dy = self.of(1, HIDDEN), self.of(2, OUT)
        self.weight = values(OUT, HIDDEN, salt=3, dtype=dtype)
        self.vector = values(HIDDEN, salt=4, dtype=dtype)
        self.head = kernels.weight(values(VOCABULARY, HIDDEN, salt=5, dtype=dtype))
        self.ids = (torch.arange(ROWS) * 37) % VOCABULARY
        self.position = torch.cat([torch.arange(n) for n in LENGTHS])
        pages = [-(-n // PAGE) for n in LENGTHS]
        self.pages = sum(pages)
        first = torch.tensor([sum(pages[:n]) for n in range(len(LENGTHS))])
        self.first_page = torch.repeat_interleave(first, torch.tensor(LENGTHS))
        self.starts = [sum(LENGTHS[:n]) for n in range(len(LENGTHS))]
        self.query = self.of(6, QUERY_HEADS, WIDTH)
        self.key, self.value = self.of(7, KEY_HEADS, WIDTH), self.of(8, KEY_HEADS, WIDTH)

    def of(self, salt: int, *shape: int) -> Tensor:
        return values(ROWS, *shape, salt=salt, dtype=self.dtype)


def _products(made: _Inputs) -> dict[str, OfRows]:
    kernels, x, dy = made.kernels, made.x, made.dy
    weight = kernels.weight(made.weight)
    narrow = kernels.weight(made.weight[:1].clone())
    deep, deep_x = kernels.weight(values(OUT, DEEP, salt=25, dtype=made.dtype)), made.of(26, DEEP)
    group = kernels.weight(values(EXPERTS, OUT, HIDDEN, salt=9, dtype=made.dtype))
    expert = (torch.arange(ROWS)[:, None] * 5) % EXPERTS

    def grouped(product: Callable[[Tensor, Tensor], Tensor], x_NK: Tensor, rows: Tensor) -> tuple[Tensor]:
        sorted_rows = kernels.dispatch(expert[rows], EXPERTS)
        y = product(x_NK[rows][sorted_rows.token], sorted_rows.offset)
        return (y[sorted_rows.place[:, 0]],)

    return {
        "matmul": lambda rows: (
            kernels.matmul(x[rows], weight),
            kernels.matmul(x[rows], narrow),
            kernels.matmul(deep_x[rows], deep),
        ),
        "matmul_gradient": lambda rows: (kernels.matmul_gradient(dy[rows], weight),),
        "grouped_matmul": lambda rows: grouped(lambda some, at: kernels.grouped_matmul(some, group, at), x, rows),
        "grouped_matmul_gradient": lambda rows: grouped(
            lambda some, at: kernels.grouped_matmul_gradient(some, group, at), dy, rows
        ),
    }


def _rows(made: _Inputs) -> dict[str, OfRows]:
    kernels, x = made.kernels, made.x
    _, saved = kernels.rms_norm(x, made.vector, 1e-6)
    dx, heads = made.of(10, HIDDEN), made.of(11, QUERY_HEADS, WIDTH)
    angles = values(ROWS, WIDTH, salt=12)
    cosine, sine = angles, values(ROWS, WIDTH, salt=13)
    gate_up, dh = made.of(14, 2 * INNER), made.of(15, INNER)

    def norm_gradient(rows: Tensor) -> tuple[Tensor]:
        into = ExactSum("norm", (HIDDEN,), bits=GRID_BITS)
        whole = _one_grain(rows.shape[0])
        return (kernels.rms_norm_gradient(dx[rows], x[rows], made.vector, saved[rows], whole, into),)

    return {
        "rms_norm": lambda rows: kernels.rms_norm(x[rows], made.vector, 1e-6),
        "rms_norm_gradient": norm_gradient,
        "rope": lambda rows: (kernels.rope(heads[rows], cosine[rows], sine[rows]),),
        "rope_gradient": lambda rows: (kernels.rope_gradient(heads[rows], cosine[rows], sine[rows]),),
        "silu_mul": lambda rows: (kernels.silu_mul(gate_up[rows]),),
        "silu_mul_gradient": lambda rows: (kernels.silu_mul_gradient(dh[rows], gate_up[rows]),),
    }


def _experts(made: _Inputs) -> dict[str, OfRows]:
    kernels = made.kernels
    logits, dw = made.of(16, EXPERTS), made.of(17, CHOSEN)
    first = (torch.arange(ROWS) * 3) % (EXPERTS - 1)
    chosen = torch.stack((first, first + 1), dim=1)
    pairs, dout = values(ROWS * CHOSEN, HIDDEN, salt=18, dtype=made.dtype), made.of(19, HIDDEN)
    place = kernels.dispatch(chosen, EXPERTS).place

    def combine_gradient(rows: Tensor) -> tuple[Tensor, Tensor]:
        dpairs, dweights = kernels.combine_gradient(dout[rows], pairs, place[rows], dw[rows])
        return dpairs[place[rows]], dweights

    return {
        "select_experts": lambda rows: (kernels.select_experts(logits[rows], CHOSEN),),
        "gate": lambda rows: tuple(kernels.gate(logits[rows], chosen[rows], normalise=n) for n in (True, False)),
        "gate_gradient": lambda rows: tuple(
            kernels.gate_gradient(dw[rows], logits[rows], chosen[rows], normalise=n) for n in (True, False)
        ),
        "combine": lambda rows: tuple(kernels.combine(pairs, place[rows], w) for w in (dw[rows], None)),
        "combine_gradient": combine_gradient,
    }


def _words(made: _Inputs) -> dict[str, OfRows]:
    kernels, x, ids, head = made.kernels, made.x, made.ids, made.head
    saved, up = kernels.logprob(x, head, ids, 1.0)[2], values(ROWS, salt=20)
    logits = made.of(21, VOCABULARY)
    temperature = torch.tensor([0.0, 0.7, 1.0]).repeat(ROWS)[:ROWS]
    chance = (torch.arange(ROWS, dtype=torch.float64) + 0.5) / ROWS

    def gradient(rows: Tensor) -> tuple[Tensor]:
        into = ExactSum("head", (VOCABULARY, HIDDEN), bits=GRID_BITS)
        whole = _one_grain(rows.shape[0])
        return (kernels.logprob_gradient(up[rows], x[rows], head, ids[rows], saved[rows], 1.0, whole, into),)

    return {
        "logprob": lambda rows: kernels.logprob(x[rows], head, ids[rows], 0.7),
        "logprob_gradient": gradient,
        "draw": lambda rows: kernels.draw(logits[rows], temperature[rows], chance[rows]),
    }


def _attend(made: _Inputs) -> OfRows:
    keys = torch.full((made.pages, KEY_HEADS, WIDTH, PAGE), math.nan)
    store = keys, torch.full((made.pages, KEY_HEADS, PAGE, WIDTH), math.nan)
    made.kernels.store(*store, made.key, made.value, made.first_page, made.position)
    return lambda rows: made.kernels.attend(made.query[rows], *store, made.first_page[rows], made.position[rows], SCALE)


def _attention_gradient(made: _Inputs) -> OfSequences:
    out, softmax = _attend(made)(torch.arange(ROWS))
    dout = made.of(22, QUERY_HEADS, WIDTH)

    def gradient(chosen: Sequence[int]) -> list[tuple[Tensor, ...]]:
        lengths = [LENGTHS[n] for n in chosen]
        rows = torch.cat([torch.arange(made.starts[n], made.starts[n] + LENGTHS[n]) for n in chosen])
        length = torch.tensor(lengths)
        query, key, value = made.query[rows], made.key[rows], made.value[rows]
        found = made.kernels.attention_gradient(
            dout[rows], query, key, value, out[rows], softmax[rows], length.cumsum(0) - length, length, SCALE
        )
        return list(zip(*(t.split(lengths) for t in found), strict=True))

    return gradient


def _one_grain(rows: int) -> Grains:
    return Grains(torch.zeros(1, dtype=torch.int64), torch.tensor([rows]), torch.zeros(1, dtype=torch.int64))


BOUNDS = (0, 5, 69, 70)
"""Grains of the rows: one of each sequence's pages."""
GRAINS = len(BOUNDS) - 1


def _grains(made: _Inputs) -> dict[str, OfGrains]:
    kernels, x, dy, ids = made.kernels, made.x, made.dy, made.ids
    _, saved = kernels.rms_norm(x, made.vector, 1e-6)
    softmax, up = kernels.logprob(x, made.head, ids, 1.0)[2], values(ROWS, salt=23)
    dx = made.of(24, HIDDEN)

    def summed(shape: tuple[int, ...], add: Callable[[Grains, ExactSum], object]) -> OfGrains:
        def total(chosen: Sequence[int]) -> Tensor:
            into = ExactSum("sample", shape, bits=GRID_BITS)
            start, end = (torch.tensor([BOUNDS[n + after] for n in chosen]) for after in (0, 1))
            add(Grains(start, end, torch.zeros_like(start)), into)
            return into.sum

        return total

    def embedding(grains: Grains, into: ExactSum) -> None:
        for start, end in zip(grains.start.tolist(), grains.end.tolist(), strict=True):
            kernels.embedding_gradient(dx[start:end], ids[start:end], into)

    return {
        "weight_gradient": summed((OUT, HIDDEN), lambda g, into: kernels.weight_gradient(dy, x, g, into)),
        "rms_norm_gradient of the weight": summed(
            (HIDDEN,), lambda g, into: kernels.rms_norm_gradient(dx, x, made.vector, saved, g, into)
        ),
        "embedding_gradient": summed((VOCABULARY, HIDDEN), embedding),
        "logprob_gradient of the head": summed(
            (VOCABULARY, HIDDEN),
            lambda g, into: kernels.logprob_gradient(up, x, made.head, ids, softmax, 1.0, g, into),
        ),
    }
