"""Kernels under autograd, and against what Hugging Face's modules compute."""

from __future__ import annotations

import pytest
import torch
from t1kernels import functions
from t1kernels.exact import ExactSum
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from tests.kernels.implementations import MAKERS, implementation
from tests.kernels.test_contract import grains_of, normal


@pytest.fixture(params=list(MAKERS))
def kernels(request):
    return implementation(request.param)


@pytest.fixture
def draws():
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("normalise", [True, False])
def test_experts_and_weights_are_hugging_faces_routers(kernels, draws, normalise):
    config = Qwen3MoeConfig(hidden_size=32, num_experts=16, num_experts_per_tok=4, norm_topk_prob=normalise)
    router = Qwen3MoeTopKRouter(config)
    with torch.no_grad():
        router.weight.copy_(normal(draws, 16, 32))
        logits_NE, weights_NK, experts_NK = router(normal(draws, 50, 32))
        order = experts_NK.argsort(dim=-1)
        chosen_NK = kernels.select_experts(logits_NE, 4)
        assert torch.equal(chosen_NK, experts_NK.gather(1, order))
        gate_NK = functions.gate(kernels, logits_NE, chosen_NK, normalise=normalise)
    torch.testing.assert_close(gate_NK, weights_NK.gather(1, order), rtol=1e-5, atol=1e-7)


def test_a_replayed_gates_gradient_reaches_the_live_logits_of_recorded_experts_only(kernels, draws):
    logits_NE = normal(draws, 4, 6).requires_grad_()
    experts_NK = torch.tensor([[0, 3]] * 4)
    weights_NK = functions.gate(kernels, logits_NE, experts_NK, normalise=True)
    (weights_NK * torch.tensor([1.0, -2.0])).sum().backward()
    assert logits_NE.grad is not None
    assert (logits_NE.grad[:, [0, 3]].abs() > 1e-4).all()
    torch.testing.assert_close(logits_NE.grad[:, [1, 2, 4, 5]], torch.zeros(4, 4), rtol=0, atol=1e-6)


def test_a_bias_is_a_weight_of_one_input(kernels, draws):
    x_NO, up_NO, into = normal(draws, 150, 3).requires_grad_(), normal(draws, 150, 3), ExactSum("bias", (3,), bits=30)
    functions.add_bias(kernels, x_NO, normal(draws, 3), grains_of(150), into).backward(up_NO)
    assert torch.equal(x_NO.grad, up_NO)
    torch.testing.assert_close(into.sum, up_NO.double().sum(0), rtol=0, atol=1e-4)


def log_probs_of(kernels, draws, rows=7, vocabulary=30, **more):
    hidden_RH, head = normal(draws, rows, 16).requires_grad_(), kernels.weight(normal(draws, vocabulary, 16))
    ids_R = torch.randint(0, vocabulary, (rows,), generator=draws)
    return hidden_RH, functions.selected_logprob(kernels, hidden_RH, head, ids_R, **{"temperature": 1.0, **more})


def test_entropy_is_a_report_outside_autograd(kernels, draws):
    _, (logprob_R, entropy_R) = log_probs_of(kernels, draws)
    assert logprob_R.requires_grad
    assert not entropy_R.requires_grad


def test_no_rows_give_no_log_probs(kernels, draws):
    _, (logprob_R, entropy_R) = log_probs_of(kernels, draws, rows=0)
    assert logprob_R.shape == entropy_R.shape == (0,)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_without_a_distribution_is_refused(kernels, draws, temperature):
    with pytest.raises(ValueError, match="temperature"):
        log_probs_of(kernels, draws, temperature=temperature)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation made."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


def test_a_whole_row_of_logits_is_never_in_memory_in_either_direction(kernels, draws):
    rows, vocabulary = 192, 20_000
    hidden_RH, head = normal(draws, rows, 16).requires_grad_(), kernels.weight(normal(draws, vocabulary, 16))
    ids_R, into = torch.arange(rows), ExactSum("head", (vocabulary, 16), bits=30)
    with Largest() as largest:
        logprob_R, _ = functions.selected_logprob(
            kernels, hidden_RH, head, ids_R, temperature=1.0, grains=grains_of(rows), into=into
        )
        torch.autograd.backward(logprob_R, torch.ones(rows))
    assert hidden_RH.grad is not None
    assert 0 < largest.elements < rows * vocabulary / 10
