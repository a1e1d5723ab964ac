"""What the Triton kernels are held to beside the contract, on the smallest sizes; run by ``test_triton_interpreter.py``, in
a process whose Triton interprets."""

from __future__ import annotations

import pytest
import torch
from t1kernels.exact import ExactRangeError, ExactSum
from t1kernels.interface import PAGE, Grains, Kernels
from t1kernels.triton_kernels import triton_kernels, vocabulary, weight_gradients
from torch import Tensor
from torch.nn import functional

BITS = 40


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return triton_kernels()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def grains(*bounds: tuple[int, int, int]) -> Grains:
    start, end, weight = (torch.tensor(column) for column in zip(*bounds, strict=True))
    return Grains(start, end, weight)


def test_rows_that_begin_at_an_odd_address_are_read_as_others_are(kernels: Kernels) -> None:
    x, weight = normal(6, 20), kernels.weight(normal(24, 20, seed=1))
    shifted = torch.zeros(6 * 20 + 1)[1:].view(6, 20).copy_(x)
    assert shifted.data_ptr() % 16
    assert torch.equal(kernels.matmul(shifted, weight), kernels.matmul(x, weight))


def test_it_changes_no_bit_how_many_programs_share_the_grains_of_a_weight(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, dy = normal(130, 20), normal(130, 70, seed=1)
    bounds = [
        (0, 40, 0),
        (40, 41, 0),
        (41, 41, 0),
        (41, 100, 1),
        (100, 130, 1),
    ]  # longer than a block, of one row, empty
    found: list[Tensor] = []
    for programs in (1, 4, 1000):
        monkeypatch.setattr(weight_gradients, "PROGRAMS", programs)
        total = ExactSum("experts", (3, 70, 20), bits=BITS)
        kernels.weight_gradient(dy, x, grains(*bounds), total)
        total.check()
        found.append(total.sum)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    for expert, rows in enumerate((slice(0, 41), slice(41, 130), slice(0, 0))):
        torch.testing.assert_close(found[0][expert], dy[rows].double().t() @ x[rows].double(), rtol=1e-5, atol=1e-5)


def test_a_partial_that_is_not_a_number_is_found_by_the_sums_check(kernels: Kernels) -> None:
    dy, total = normal(4, 8), ExactSum("weight", (8, 16), bits=BITS)
    dy[2, 3] = torch.nan
    kernels.weight_gradient(dy, normal(4, 16), grains((0, 4, 0)), total)
    assert total.largest == torch.inf
    with pytest.raises(ExactRangeError, match="not finite"):
        total.check()


def test_log_probs_of_several_tiles_and_pieces_of_the_vocabulary(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "WORDS", 64)
    monkeypatch.setattr(vocabulary, "FOLD_TILES", 2)
    rows, words, width, temperature = 5, 150, 20, 0.7
    hidden, head, up = normal(rows, width), normal(words, width, seed=1), normal(rows, seed=2)
    ids, weight = torch.tensor([0, 63, 64, 149, 100]), kernels.weight(head)
    hd, wd = hidden.double().requires_grad_(), head.double().requires_grad_()
    wanted = ((hd @ wd.t()) / temperature).log_softmax(-1)
    wanted.gather(1, ids[:, None])[:, 0].backward(up.double())
    found, entropy, saved = kernels.logprob(hidden, weight, ids, temperature)
    wanted = wanted.detach()
    torch.testing.assert_close(found.double(), wanted.gather(1, ids[:, None])[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), -(wanted.exp() * wanted).sum(-1), rtol=1e-5, atol=1e-5)
    assert torch.equal(kernels.logprob(hidden[3:4], weight, ids[3:4], temperature)[0], found[3:4])
    total = ExactSum("head", head.shape, bits=BITS)
    cut = grains((0, 2, 0), (2, 5, 0))
    dhidden = kernels.logprob_gradient(up, hidden, weight, ids, saved, temperature, cut, total)
    torch.testing.assert_close(dhidden.double(), hd.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(total.sum, wd.grad, rtol=1e-4, atol=1e-5)
    assert kernels.logprob(hidden, weight, ids - 100, temperature)[0].isnan().tolist() == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert kernels.logprob(hidden, weight, ids + 51, temperature)[0].isnan().tolist() == [
        False,
        False,
        False,
        True,
        True,
    ]


def test_what_is_drawn_has_the_trainers_log_prob_in_every_bit(kernels: Kernels) -> None:
    hidden, weight = normal(6, 20), kernels.weight(normal(150, 20, seed=1))
    logits, chances = kernels.matmul(hidden, weight), torch.tensor([0.0, 0.2, 0.5, 0.9, 1 - 2**-53, 0.4]).double()
    token, logprob, entropy = kernels.draw(logits, torch.full((6,), 0.7), chances)
    again = kernels.logprob(hidden, weight, token, 0.7)
    assert torch.equal(logprob, again[0])
    assert torch.equal(entropy, again[1])
    wanted = ((logits.double() / 0.7).softmax(-1).cumsum(-1) > chances[:, None]).int().argmax(-1)
    assert torch.equal(token[:4], wanted[:4])
    greedy, logprob, _ = kernels.draw(logits, torch.zeros(6), chances)
    assert torch.equal(greedy, logits.argmax(-1))
    assert torch.equal(logprob, kernels.logprob(hidden, weight, greedy, 1.0)[0])


def test_attention_of_a_tile_that_crosses_a_page_and_of_single_rows(kernels: Kernels) -> None:
    lengths, heads, groups, width, scale = (2, 67), 3, 1, 8, 0.3
    rows = sum(lengths)
    q, k, v, dout = (normal(rows, h, width, seed=i) for i, h in enumerate((heads, groups, groups, heads)))
    first = torch.tensor([0] * 2 + [1] * 67)
    position = torch.cat([torch.arange(n) for n in lengths])
    keys, values = torch.full((3, groups, width, PAGE), torch.nan), torch.full((3, groups, PAGE, width), torch.nan)
    kernels.store(keys, values, k, v, first, position)
    out, softmax = kernels.attend(q, keys, values, first, position, scale)
    for n in (0, 1, 65, 68):
        assert torch.equal(kernels.attend(q[n : n + 1], keys, values, first[n : n + 1], position[n : n + 1], scale)[0],
                           out[n : n + 1])  # fmt: skip
    starts, counts = torch.tensor([0, 2]), torch.tensor(lengths)
    saved = (q, k, v, out, softmax)
    found = kernels.attention_gradient(dout, *saved, starts, counts, scale)
    for start, length in zip(starts.tolist(), lengths, strict=True):
        s = slice(start, start + length)
        leaves = [t[s].double().requires_grad_() for t in (q, k, v)]
        wanted = functional.scaled_dot_product_attention(
            *(t.transpose(0, 1)[None] for t in leaves), is_causal=True, scale=scale, enable_gqa=True
        )[0].transpose(0, 1)
        wanted.backward(dout[s].double())
        torch.testing.assert_close(out[s].double(), wanted.detach(), rtol=1e-5, atol=1e-5)
        for ours, leaf in zip(found, leaves, strict=True):
            torch.testing.assert_close(ours[s].double(), leaf.grad, rtol=1e-4, atol=1e-5)
