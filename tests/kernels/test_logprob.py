import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from t1kernels import logprob
from t1kernels.logprob import selected_logprob


def plain(hidden_RH, weight_VH, ids_R, temperature):
    all_RV = torch.log_softmax((hidden_RH @ weight_VH.t()).float() / temperature, dim=-1)
    return all_RV.gather(-1, ids_R[:, None])[:, 0], -(all_RV.exp() * all_RV).sum(-1)


def inputs(rows, vocabulary, hidden=16, seed=0):
    torch.manual_seed(seed)
    return (
        torch.randn(rows, hidden, requires_grad=True),
        torch.randn(vocabulary, hidden, requires_grad=True),
        torch.randint(0, vocabulary, (rows,)),
    )


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 9),
    vocabulary=st.integers(1, 40),
    temperature=st.floats(0.2, 3.0),
    block=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_equal_the_plain_log_softmax(rows, vocabulary, temperature, block, seed):
    hidden_RH, weight_VH, ids_R = inputs(rows, vocabulary, seed=seed)
    upstream_R = torch.randn(rows)
    wanted, wanted_entropy = plain(hidden_RH, weight_VH, ids_R, temperature)
    wanted_gradients = torch.autograd.grad(wanted, (hidden_RH, weight_VH), upstream_R)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprob, "BLOCK_ROWS", block)
        got, entropy = selected_logprob(hidden_RH, weight_VH, ids_R, temperature=temperature)
        gradients = torch.autograd.grad(got, (hidden_RH, weight_VH), upstream_R)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(entropy, wanted_entropy, rtol=1e-3, atol=1e-4)
    for a, b in zip(gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_bfloat16_hidden_states_give_float32_logprobs_of_the_heads_own_logits():
    hidden_RH, weight_VH, ids_R = inputs(7, 30)
    hidden_RH, weight_VH = hidden_RH.detach().bfloat16(), weight_VH.detach().bfloat16().requires_grad_()
    got, _ = selected_logprob(hidden_RH, weight_VH, ids_R)
    wanted, _ = plain(hidden_RH, weight_VH, ids_R, 1.0)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    got.sum().backward()
    assert weight_VH.grad is not None
    assert weight_VH.grad.dtype == torch.bfloat16


def test_entropy_is_a_report_outside_autograd():
    _, entropy_R = selected_logprob(*inputs(3, 5))
    assert not entropy_R.requires_grad


def test_no_rows_give_no_logprobs():
    logprob_R, entropy_R = selected_logprob(*inputs(0, 5))
    assert logprob_R.shape == entropy_R.shape == (0,)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_without_a_distribution_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        selected_logprob(*inputs(2, 5), temperature=temperature)
