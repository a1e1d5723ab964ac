import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from t1kernels.gate import replayed_gate
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter


def random_selection(rows: int, experts: int, chosen: int) -> torch.Tensor:
    return torch.stack([torch.randperm(experts)[:chosen] for _ in range(rows)])


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_for_the_routers_own_choice_the_gate_is_the_routers_in_every_bit(normalise, dtype):
    torch.manual_seed(0)
    config = Qwen3MoeConfig(hidden_size=32, num_experts=16, num_experts_per_tok=4, norm_topk_prob=normalise)
    router = Qwen3MoeTopKRouter(config).to(dtype)
    torch.nn.init.normal_(router.weight)
    logits_NE, weights_NK, experts_NK = router(torch.randn(50, 32, dtype=dtype))
    assert torch.equal(replayed_gate(logits_NE, experts_NK, normalise=normalise), weights_NK)


@given(seed=st.integers(0, 10_000), experts=st.integers(2, 12), data=st.data())
def test_weights_are_the_softmax_over_the_recorded_experts(seed, experts, data):
    chosen = data.draw(st.integers(1, experts))
    torch.manual_seed(seed)
    logits_NE = torch.randn(5, experts) * 3
    experts_NK = random_selection(5, experts, chosen)
    weights_NK = replayed_gate(logits_NE, experts_NK, normalise=True)
    expected_NK = torch.softmax(logits_NE.double().gather(-1, experts_NK), dim=-1)
    torch.testing.assert_close(weights_NK.double(), expected_NK, rtol=1e-5, atol=1e-6)


def test_gradient_reaches_the_live_logits_of_recorded_experts_only():
    torch.manual_seed(1)
    logits_NE = torch.randn(4, 6, requires_grad=True)
    experts_NK = torch.tensor([[0, 3]] * 4)
    weights_NK = replayed_gate(logits_NE, experts_NK, normalise=True)
    (weights_NK * torch.tensor([1.0, -2.0])).sum().backward()
    gradient_NE = logits_NE.grad
    assert gradient_NE is not None
    assert (gradient_NE[:, [0, 3]].abs() > 1e-4).all()
    torch.testing.assert_close(gradient_NE[:, [1, 2, 4, 5]], torch.zeros(4, 4), rtol=0, atol=1e-6)
