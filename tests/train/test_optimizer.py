"""AdamW, the rate's warm-up and the gradient clip."""

import math

import pytest
import torch

from t1actors.config import ActorConfig
from t1actors.train.optimizer import adamw, clip_by_norm, global_norm, rate_at

CONFIG = ActorConfig(learning_rate=1e-2, betas=(0.9, 0.98), weight_decay=0.1)


def test_ten_updates_follow_the_formula_in_float64():
    torch.manual_seed(0)
    w = [torch.randn(5, 3), torch.randn(7)]
    m, v = [torch.zeros_like(t) for t in w], [torch.zeros_like(t) for t in w]
    W, M, V = [t.double() for t in w], [t.double() for t in m], [t.double() for t in v]
    for update in range(1, 11):
        g = [torch.randn_like(t) for t in w]
        for i in range(2):
            adamw(w[i], g[i], m[i], v[i], config=CONFIG, update=update)
        for i, gradient in enumerate(g):
            G = gradient.double()
            M[i] = 0.9 * M[i] + 0.1 * G
            V[i] = 0.98 * V[i] + 0.02 * G * G
            step = (M[i] / (1 - 0.9**update)) / ((V[i] / (1 - 0.98**update)).sqrt() + 1e-8)
            W[i] = W[i] * (1 - 1e-2 * 0.1) - 1e-2 * step
    for got, expected in zip(w, W, strict=True):
        assert torch.allclose(got.double(), expected, atol=1e-6, rtol=0)


def test_it_agrees_with_torchs_own_adamw():
    torch.manual_seed(1)
    ours = torch.randn(64)
    theirs = torch.nn.Parameter(ours.clone())
    reference = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.98), weight_decay=0.1, foreach=True)
    m, v = torch.zeros(64), torch.zeros(64)
    for update in range(1, 6):
        g = torch.randn(64)
        theirs.grad = g.clone()
        reference.step()
        adamw(ours, g, m, v, config=CONFIG, update=update)
    assert torch.allclose(ours, theirs.detach(), atol=1e-7, rtol=0)


def test_the_bits_of_an_update_do_not_depend_on_how_a_tensor_is_cut():
    torch.manual_seed(2)
    w, g = torch.randn(33, 8), torch.randn(33, 8)
    whole, parts = w.clone(), w.clone()
    adamw(whole, g, torch.zeros_like(w), torch.zeros_like(w), config=CONFIG, update=1)
    for part, gradient in zip(parts.split(11), g.split(11), strict=True):
        adamw(part, gradient, torch.zeros_like(part), torch.zeros_like(part), config=CONFIG, update=1)
    assert torch.equal(whole, parts)


def test_the_rate_warms_up_linearly_and_then_stays():
    config = ActorConfig(learning_rate=6.0, rate_warmup_updates=3)
    assert [rate_at(config, u) for u in (1, 2, 3, 4, 100)] == pytest.approx([2.0, 4.0, 6.0, 6.0, 6.0])
    assert rate_at(ActorConfig(learning_rate=6.0), 1) == 6.0


def test_the_gradient_is_clipped_by_the_norm_over_all_tensors():
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    norm = global_norm(gradients)
    assert norm == 5.0
    clip_by_norm(gradients, norm, 1.0)
    assert gradients[0].tolist() == pytest.approx([0.6, 0.0])
    assert gradients[1].tolist() == [[pytest.approx(0.8)]]
    assert math.isclose(global_norm(gradients), 1.0, rel_tol=1e-6)
    before = [t.clone() for t in gradients]
    clip_by_norm(gradients, 0.9, 1.0)
    clip_by_norm(gradients, 100.0, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(gradients, before, strict=True))
