"""The contract of ``t1kernels.interface``, for every implementation, dtype and a few awkward sizes.

For each operation: it computes what float64 says; a row alone, in batches of other sizes and at other places has the same
bits; gradients too, and those of weights whatever the order and cut of the grains; memory that a call did not write is
never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from t1kernels.exact import ExactSum
from t1kernels.interface import PAGE, Grains, Kernels
from torch import Tensor
from torch.nn import functional

from tests.kernels.implementations import MAKERS, implementation

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
BITS = 30


@pytest.fixture(params=list(MAKERS))
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return implementation(request.param)


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def draws() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def normal(draws: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=draws).to(dtype)


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
    assert float((found.double() - wanted.double()).abs().max()) <= TOLERANCE[dtype] * scale


def subsets(rows: int) -> Iterator[Tensor]:
    """Rows alone, in small and odd batches, in another order."""
    for count in (1, 2, 3, 4, 5, 7, 16, 17):
        if count <= rows:
            yield torch.arange(rows - count, rows)
            yield torch.arange(count)
    yield torch.randperm(rows, generator=torch.Generator().manual_seed(1))


def row_independent(rows: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """``function`` of chosen rows: the same bits for a row in every subset. Returns the result of all."""
    whole = function(torch.arange(rows))
    for chosen in subsets(rows):
        assert torch.equal(function(chosen), whole[chosen]), (
            f"rows {chosen.tolist()[:6]}… have other bits in this batch"
        )
    return whole


def grains(*bounds: tuple[int, int, int]) -> Grains:
    start, end, weight = (torch.tensor(column, dtype=torch.int64) for column in zip(*bounds, strict=True))
    return Grains(start, end, weight)


def grains_of(rows: int, size: int = PAGE) -> Grains:
    return grains(*((top, min(top + size, rows), 0) for top in range(0, rows, size)))


def order_free(rows: int, shape: tuple[int, ...], add: Callable[[Tensor, Grains, ExactSum], object]) -> Tensor:
    """A weight's gradient of grains of 64 rows: in one call, grain by grain, backwards, in two sums that are merged: the
    same bits. ``add`` is given rows and how they are cut into grains."""

    def total(cuts: list[list[int]]) -> ExactSum:
        parts: list[ExactSum] = []
        for cut in cuts:
            part = ExactSum("weight", shape, bits=BITS)
            for top in cut:
                chosen = torch.arange(top, min(top + PAGE, rows))
                add(chosen, grains_of(len(chosen)), part)
            parts.append(part)
        for part in parts[1:]:
            parts[0].merge(part)
        parts[0].check()
        return parts[0]

    tops = list(range(0, rows, PAGE))
    at_once = ExactSum("weight", shape, bits=BITS)
    add(torch.arange(rows), grains_of(rows), at_once)
    for cuts in ([tops], [tops[::-1]], [tops[1::2], tops[::2]]):
        assert torch.equal(total(cuts).sum, at_once.sum), "the sum has other bits in another order"
    return at_once.sum


# --- products -----------------------------------------------------------------------------------------------------------

SIZES = [(16, 16), (128, 128), (8, 128), (130, 100), (448, 24), (1, 40)]


@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_a_product_is_right_and_no_row_depends_on_its_batch(
    kernels: Kernels, dtype: torch.dtype, draws: torch.Generator, outputs: int, inputs: int
) -> None:
    x, w = normal(draws, 40, inputs, dtype=dtype), normal(draws, outputs, inputs, dtype=dtype)
    weight = kernels.weight(w)
    close(row_independent(40, lambda rows: kernels.matmul(x[rows], weight)), x.double() @ w.double().t(), dtype)
    dy = normal(draws, 40, outputs, dtype=dtype)
    close(row_independent(40, lambda rows: kernels.matmul_gradient(dy[rows], weight)), dy.double() @ w.double(), dtype)


@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_a_weights_gradient_is_right_and_free_of_order(
    kernels: Kernels, dtype: torch.dtype, draws: torch.Generator, outputs: int, inputs: int
) -> None:
    rows = 150
    x, dy = normal(draws, rows, inputs, dtype=dtype), normal(draws, rows, outputs, dtype=dtype)
    total = order_free(
        rows,
        (outputs, inputs),
        lambda chosen, cut, into: kernels.weight_gradient(dy[chosen], x[chosen], cut, into),
    )
    close(total, dy.double().t() @ x.double(), dtype)


def test_grouped_products_equal_each_weights_own(kernels: Kernels, dtype: torch.dtype, draws: torch.Generator) -> None:
    w, counts = normal(draws, 5, 24, 40, dtype=dtype), [0, 3, 17, 0, 1]
    offset = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()])
    x, dy = normal(draws, sum(counts), 40, dtype=dtype), normal(draws, sum(counts), 24, dtype=dtype)
    group = kernels.weight(w)
    y, dx = kernels.grouped_matmul(x, group, offset), kernels.grouped_matmul_gradient(dy, group, offset)
    for expert in range(5):
        rows = slice(int(offset[expert]), int(offset[expert + 1]))
        alone = kernels.weight(w[expert])
        if counts[expert]:
            assert torch.equal(y[rows], kernels.matmul(x[rows], alone))
            assert torch.equal(dx[rows], kernels.matmul_gradient(dy[rows], alone))
    total = ExactSum("experts", w.shape, bits=BITS)
    kernels.weight_gradient(dy, x, grains((0, 3, 1), (3, 20, 2), (20, 21, 4)), total)
    for expert, rows in ((1, slice(0, 3)), (2, slice(3, 20)), (4, slice(20, 21))):
        close(total.sum[expert], dy[rows].double().t() @ x[rows].double(), dtype)
    assert not total.sum[0].any()
    assert not total.sum[3].any()


# --- rows ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [16, 128, 40])
def test_the_norm(kernels: Kernels, dtype: torch.dtype, draws: torch.Generator, width: int) -> None:
    x, w, dy = (
        normal(draws, 70, width, dtype=dtype),
        normal(draws, width, dtype=dtype),
        normal(draws, 70, width, dtype=dtype),
    )

    def plain(x: Tensor, w: Tensor) -> Tensor:
        return w * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))

    xd, wd = x.double().requires_grad_(), w.double().requires_grad_()
    wanted = plain(xd, wd)
    wanted.backward(dy.double())
    close(row_independent(70, lambda rows: kernels.rms_norm(x[rows], w, 1e-6)[0]), wanted.detach(), dtype)
    _, saved = kernels.rms_norm(x, w, 1e-6)

    def gradient(rows: Tensor, cut: Grains, into: ExactSum) -> Tensor:
        return kernels.rms_norm_gradient(dy[rows], x[rows], w, saved[rows], cut, into)

    unused = ExactSum("weight", (width,), bits=BITS)
    close(row_independent(70, lambda rows: gradient(rows, grains_of(len(rows)), unused)), xd.grad, dtype)
    close(order_free(70, (width,), gradient), wd.grad, dtype)


def test_rotary_positions(kernels: Kernels, dtype: torch.dtype, draws: torch.Generator) -> None:
    x, dy = normal(draws, 20, 3, 16, dtype=dtype), normal(draws, 20, 3, 16, dtype=dtype)
    angles = normal(draws, 20, 8).repeat(1, 2)
    cosine, sine = angles.cos(), angles.sin()

    def plain(x: Tensor) -> Tensor:
        rotated = torch.cat((-x[..., 8:], x[..., :8]), dim=-1)
        return x * cosine.double()[:, None] + rotated * sine.double()[:, None]

    xd = x.double().requires_grad_()
    plain(xd).backward(dy.double())
    close(row_independent(20, lambda rows: kernels.rope(x[rows], cosine[rows], sine[rows])), plain(x.double()), dtype)
    close(row_independent(20, lambda rows: kernels.rope_gradient(dy[rows], cosine[rows], sine[rows])), xd.grad, dtype)


@pytest.mark.parametrize("width", [8, 128, 20])
def test_the_gated_unit(kernels: Kernels, dtype: torch.dtype, draws: torch.Generator, width: int) -> None:
    x, dh = 3 * normal(draws, 20, 2 * width, dtype=dtype), normal(draws, 20, width, dtype=dtype)
    xd = x.double().requires_grad_()
    gate, up = xd.chunk(2, dim=-1)
    wanted = functional.silu(gate) * up
    wanted.backward(dh.double())
    close(row_independent(20, lambda rows: kernels.silu_mul(x[rows])), wanted.detach(), dtype)
    close(row_independent(20, lambda rows: kernels.silu_mul_gradient(dh[rows], x[rows])), xd.grad, dtype)


def test_the_embeddings_gradient_adds_every_row_exactly(
    kernels: Kernels, dtype: torch.dtype, draws: torch.Generator
) -> None:
    ids, dx = torch.randint(0, 11, (150,), generator=draws), normal(draws, 150, 16, dtype=dtype)
    total = order_free(150, (11, 16), lambda rows, _, into: kernels.embedding_gradient(dx[rows], ids[rows], into))
    close(total, torch.zeros(11, 16, dtype=torch.float64).index_add(0, ids, dx.double()), dtype)


# --- attention ----------------------------------------------------------------------------------------------------------

LENGTHS = [1, 63, 64, 65, 150]


def pages_for(lengths: list[int], heads: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Poisoned pages: what no row was stored at must never matter."""
    pages = [-(-n // PAGE) for n in lengths]
    first = torch.tensor([sum(pages[:i]) for i in range(len(pages))]).repeat_interleave(torch.tensor(lengths))
    position = torch.cat([torch.arange(n) for n in lengths])
    keys = torch.full((sum(pages), heads, width, PAGE), torch.nan)
    values = torch.full((sum(pages), heads, PAGE, width), torch.nan)
    return keys, values, first, position


@pytest.mark.parametrize("width", [8, 32, 40])
def test_attention_is_right_and_decode_prefill_and_packed_batches_agree(
    kernels: Kernels, dtype: torch.dtype, draws: torch.Generator, width: int
) -> None:
    rows, scale = sum(LENGTHS), width**-0.5
    q, k, v = (normal(draws, rows, heads, width, dtype=dtype) for heads in (4, 2, 2))
    keys, values, first, position = pages_for(LENGTHS, 2, width)
    kernels.store(keys, values, k, v, first, position)
    whole, _ = kernels.attend(q, keys, values, first, position, scale)
    start = 0
    for length in LENGTHS:
        s = slice(start, start + length)
        wanted = functional.scaled_dot_product_attention(
            *(t[s].double().transpose(0, 1)[None] for t in (q, k, v)), is_causal=True, scale=scale, enable_gqa=True
        )
        close(whole[s], wanted[0].transpose(0, 1), dtype)
        start += length
    again, fresh_values, _, _ = pages_for(LENGTHS, 2, width)
    for top in range(0, rows, 37):  # in chunks, as a prefill would; later rows are not stored yet
        s = slice(top, min(top + 37, rows))
        kernels.store(again, fresh_values, k[s], v[s], first[s], position[s])
        found, _ = kernels.attend(q[s], again, fresh_values, first[s], position[s], scale)
        assert torch.equal(found, whole[s])
    one_by_one = [
        kernels.attend(q[n : n + 1], keys, values, first[n : n + 1], position[n : n + 1], scale)[0]
        for n in (0, 64, 70, 200, rows - 1)
    ]
    assert torch.equal(torch.cat(one_by_one), whole[[0, 64, 70, 200, rows - 1]])


@pytest.mark.parametrize("width", [32, 40])
def test_attentions_gradient_is_right_and_a_sequence_depends_on_itself_alone(
    kernels: Kernels, dtype: torch.dtype, draws: torch.Generator, width: int
) -> None:
    rows, scale = sum(LENGTHS), width**-0.5
    q, k, v, dout = (normal(draws, rows, heads, width, dtype=dtype) for heads in (4, 2, 2, 4))
    keys, values, first, position = pages_for(LENGTHS, 2, width)
    kernels.store(keys, values, k, v, first, position)
    out, saved = kernels.attend(q, keys, values, first, position, scale)
    starts = [sum(LENGTHS[:i]) for i in range(len(LENGTHS))]

    def gradient(chosen: list[int]) -> list[Tensor]:
        lengths = torch.tensor([LENGTHS[i] for i in chosen])
        take = torch.cat([torch.arange(starts[i], starts[i] + LENGTHS[i]) for i in chosen])
        begin = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)[:-1]])
        return list(
            kernels.attention_gradient(
                dout[take], q[take], k[take], v[take], out[take], saved[take], begin, lengths, scale
            )
        )

    whole = gradient([0, 1, 2, 3, 4])
    for i, length in enumerate(LENGTHS):
        s = slice(starts[i], starts[i] + length)
        for found, alone in zip(whole, gradient([i]), strict=True):
            assert torch.equal(found[s], alone)
        doubles = [t[s].double().requires_grad_() for t in (q, k, v)]
        functional.scaled_dot_product_attention(
            *(t.transpose(0, 1)[None] for t in doubles), is_causal=True, scale=scale, enable_gqa=True
        ).backward(dout[s].double().transpose(0, 1)[None])
        for found, leaf in zip(whole, doubles, strict=True):
            assert leaf.grad is not None
            close(found[s], leaf.grad, dtype)
    reversed_order = gradient([4, 3, 2, 1, 0])
    assert torch.equal(reversed_order[1][: LENGTHS[4]], whole[1][starts[4] :])


# --- experts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalise", [True, False])
def test_the_router_and_its_gate(kernels: Kernels, dtype: torch.dtype, draws: torch.Generator, normalise: bool) -> None:
    logits = 2 * normal(draws, 60, 8, dtype=dtype)
    chosen = row_independent(60, lambda rows: kernels.select_experts(logits[rows], 3))
    assert torch.equal(chosen, chosen.sort(dim=-1).values)
    best = logits.double().softmax(-1).gather(-1, chosen).sort(-1, descending=True).values
    assert torch.equal(best, logits.double().softmax(-1).topk(3).values)
    recorded = torch.stack([torch.randperm(8, generator=draws)[:3].sort().values for _ in range(60)])
    double = logits.double().requires_grad_()
    p = double.softmax(-1).gather(-1, recorded)
    wanted = p / p.sum(-1, keepdim=True) if normalise else p
    dw = normal(draws, 60, 3, dtype=dtype)
    wanted.backward(dw.double())
    gate = row_independent(60, lambda rows: kernels.gate(logits[rows], recorded[rows], normalise=normalise))
    close(gate, wanted.detach(), dtype)
    close(
        row_independent(
            60, lambda rows: kernels.gate_gradient(dw[rows], logits[rows], recorded[rows], normalise=normalise)
        ),
        double.grad,
        dtype,
    )


def test_of_equally_probable_experts_the_lowest_are_chosen(kernels: Kernels) -> None:
    assert kernels.select_experts(torch.zeros(2, 6), 2).tolist() == [[0, 1], [0, 1]]


def test_pairs_are_sorted_by_expert_and_combined_in_slot_order(
    kernels: Kernels, dtype: torch.dtype, draws: torch.Generator
) -> None:
    chosen = torch.stack([torch.randperm(6, generator=draws)[:2].sort().values for _ in range(30)])
    chosen[chosen == 4] = 5  # an expert without rows; rows that name one twice do not matter to the sorting
    found = kernels.dispatch(chosen, 6)
    flat = chosen.reshape(-1)
    order = torch.argsort(flat, stable=True)
    assert torch.equal(found.token, order // 2)
    assert torch.equal(found.offset, torch.tensor([0, *torch.bincount(flat, minlength=6).cumsum(0).tolist()]))
    assert torch.equal(flat[order][found.place.reshape(-1)], flat)
    rows, w, dout = (
        normal(draws, 60, 20, dtype=dtype),
        normal(draws, 30, 2, dtype=dtype),
        normal(draws, 30, 20, dtype=dtype),
    )
    rd, wd = rows.double().requires_grad_(), w.double().requires_grad_()
    wanted = (rd[found.place] * wd[..., None]).sum(1)
    wanted.backward(dout.double())
    close(row_independent(30, lambda n: kernels.combine(rows, found.place[n], w[n])), wanted.detach(), dtype)
    drows, dw = kernels.combine_gradient(dout, rows, found.place, w)
    close(drows, rd.grad, dtype)
    close(dw, wd.grad, dtype)
    row_independent(30, lambda n: kernels.combine_gradient(dout[n], rows, found.place[n], w[n])[1])
    close(kernels.combine(rows, found.place, None), rows.double()[found.place].sum(1), dtype)


# --- log-probs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vocabulary", "temperature"), [(448, 1.0), (1000, 0.7), (37, 1.0)])
def test_selected_log_probs_and_their_gradient(
    kernels: Kernels, dtype: torch.dtype, draws: torch.Generator, vocabulary: int, temperature: float
) -> None:
    rows, width = 150, 24
    hidden, head = normal(draws, rows, width, dtype=dtype), normal(draws, vocabulary, width, dtype=dtype)
    ids, up = torch.randint(0, vocabulary, (rows,), generator=draws), normal(draws, rows)
    weight = kernels.weight(head)
    hd, wd = hidden.double().requires_grad_(), head.double().requires_grad_()
    distribution = ((hd @ wd.t()) / temperature).log_softmax(-1)
    wanted = distribution.gather(-1, ids[:, None])[:, 0]
    wanted.backward(up.double())
    found = row_independent(rows, lambda r: kernels.logprob(hidden[r], weight, ids[r], temperature)[0])
    assert float((found.double() - wanted.detach()).abs().max()) < (1e-4 if dtype == torch.float32 else 0.2)
    _, entropy, saved = kernels.logprob(hidden, weight, ids, temperature)
    assert float((entropy.double() + (distribution.exp() * distribution).sum(-1).detach()).abs().max()) < (
        1e-4 if dtype == torch.float32 else 0.2
    )

    def gradient(chosen: Tensor, cut: Grains, into: ExactSum) -> Tensor:
        return kernels.logprob_gradient(
            up[chosen], hidden[chosen], weight, ids[chosen], saved[chosen], temperature, cut, into
        )

    unused = ExactSum("head", head.shape, bits=BITS)
    close(row_independent(rows, lambda r: gradient(r, grains_of(len(r)), unused)), hd.grad, dtype)
    close(order_free(rows, tuple(head.shape), gradient), wd.grad, dtype)


def test_what_is_drawn_has_the_trainers_log_prob(kernels: Kernels, dtype: torch.dtype, draws: torch.Generator) -> None:
    hidden, head = normal(draws, 50, 24, dtype=dtype), normal(draws, 300, 24, dtype=dtype)
    weight = kernels.weight(head)
    logits = kernels.matmul(hidden, weight)
    for temperature in (1.0, 0.7):
        chances = torch.rand(50, generator=draws, dtype=torch.float64)
        token, logprob, _ = kernels.draw(logits, torch.full((50,), temperature), chances)
        assert torch.equal(logprob, kernels.logprob(hidden, weight, token, temperature)[0])
        alone = [kernels.draw(logits[i : i + 1], torch.tensor([temperature]), chances[i : i + 1])[0] for i in range(50)]
        assert torch.equal(torch.cat(alone), token)
    greedy, logprob, _ = kernels.draw(logits, torch.zeros(50), torch.zeros(50, dtype=torch.float64))
    assert torch.equal(greedy, logits.float().argmax(-1))
    assert torch.equal(logprob, kernels.logprob(hidden, weight, greedy, 1.0)[0])


def test_draws_follow_the_distribution(kernels: Kernels) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]]).repeat(4000, 1)
    even = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    token, _, _ = kernels.draw(logits, torch.ones(4000), even)
    share = torch.bincount(token, minlength=4) / 4000
    wanted = functional.pad(torch.tensor([0.0, 1.0, 2.0]).softmax(0), (0, 1))
    assert float((share - wanted).abs().max()) < 1e-3


@pytest.mark.parametrize("word", [0, 5, 255, 256, 299, 511, 512, 599])
def test_a_word_that_is_not_a_number_makes_every_log_prob_none(kernels: Kernels, dtype: torch.dtype, word: int) -> None:
    """Wherever in the vocabulary it is: or a sampler would go on with a broken model."""
    head = torch.randn(600, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    head[word, 3] = torch.nan
    hidden = torch.randn(3, 16, generator=torch.Generator().manual_seed(2)).to(dtype)
    found, entropy, _ = kernels.logprob(hidden, kernels.weight(head), torch.tensor([1, 300, 598]), 1.0)
    assert found.isnan().all()
    assert entropy.isnan().all()
    logits = hidden @ head.T
    _, drawn, _ = kernels.draw(logits, torch.tensor([1.0, 0.0, 0.5]), torch.full((3,), 0.5, dtype=torch.float64))
    assert drawn.isnan().all()


def test_attentions_gradient_of_a_sequence_is_refused_for_its_own_size_alone(kernels: Kernels) -> None:
    """Tiles near the grid's range beside a long sequence of small ones: the product of both is nobody's."""
    draw = torch.Generator().manual_seed(3)
    query, key, value, dout = (torch.randn(660, heads, 8, generator=draw) for heads in (4, 2, 2, 4))
    dout[:20] *= 1.2
    dout[20:] *= 1e-3

    def gradient(start: int, end: int, lengths: list[int]) -> tuple[Tensor, ...]:
        q, k, v, d = (x[start:end] for x in (query, key, value, dout))
        keys, values, first, position = pages_for(lengths, 2, 8)
        kernels.store(keys, values, k, v, first, position)
        out, saved = kernels.attend(q, keys, values, first, position, 0.3)
        begin = torch.tensor([sum(lengths[:n]) for n in range(len(lengths))], dtype=torch.int64)
        return kernels.attention_gradient(d, q, k, v, out, saved, begin, torch.tensor(lengths), 0.3)

    together, first, second = gradient(0, 660, [20, 640]), gradient(0, 20, [20]), gradient(20, 660, [640])
    for whole, one, other in zip(together, first, second, strict=True):
        assert torch.equal(whole, torch.cat([one, other]))  # so none is NaN
    # One that is too large for the grid is refused, where there is one, and no other.
    dout[:20] *= 1e6
    refused, alone = gradient(0, 660, [20, 640]), gradient(0, 20, [20])
    for whole, one, other in zip(refused, alone, second, strict=True):
        assert torch.equal(whole[:20].isnan(), one.isnan())
        assert torch.equal(whole[20:], other)


def test_no_sequences_have_no_gradients(kernels: Kernels) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    q, kv = torch.zeros(0, 4, 8), torch.zeros(0, 2, 8)
    saved = torch.zeros(0, 4, 2)
    assert [x.shape[0] for x in kernels.attention_gradient(q, q, kv, kv, q, saved, none, none, 0.3)] == [0, 0, 0]
