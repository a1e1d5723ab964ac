"""What looks for faults finds them: one unit in the last place, in one operation, in batches of one size."""

from __future__ import annotations

import pytest
import torch
from t1kernels import choice
from t1kernels.fingerprint import operations
from t1kernels.hashes import differences
from t1kernels.padded import PaddedKernels
from t1kernels.probe import not_invariant
from torch.utils import deterministic

from tests.kernels import test_contract as contract
from tests.kernels.implementations import MAKERS, fastest, implementation
from tests.kernels.planted import Planted, of_one_grain, of_rows

THREE = of_rows(3)
LAST_GRAIN = of_rows(150 % 64)
ONE_SEQUENCE = of_rows(1, argument=7)
CASES = [
    ("matmul", THREE, 0, contract.test_a_product_is_right_and_no_row_depends_on_its_batch, (16, 16)),
    ("matmul_gradient", THREE, 0, contract.test_a_product_is_right_and_no_row_depends_on_its_batch, (16, 16)),
    ("grouped_matmul", of_rows(21), 0, contract.test_grouped_products_equal_each_weights_own, ()),
    ("grouped_matmul_gradient", of_rows(21), 0, contract.test_grouped_products_equal_each_weights_own, ()),
    ("weight_gradient", of_one_grain, None, contract.test_a_weights_gradient_is_right_and_free_of_order, (16, 16)),
    ("rms_norm", THREE, 0, contract.test_the_norm, (16,)),
    ("rms_norm_gradient", THREE, 0, contract.test_the_norm, (16,)),
    ("rms_norm_gradient", of_one_grain, None, contract.test_the_norm, (16,)),
    ("rope", THREE, 0, contract.test_rotary_positions, ()),
    ("rope_gradient", THREE, 0, contract.test_rotary_positions, ()),
    ("silu_mul", THREE, 0, contract.test_the_gated_unit, (8,)),
    ("silu_mul_gradient", THREE, 0, contract.test_the_gated_unit, (8,)),
    ("embedding_gradient", LAST_GRAIN, None, contract.test_the_embeddings_gradient_adds_every_row_exactly, ()),
    ("attend", of_rows(37), 0, contract.test_attention_is_right_and_decode_prefill_and_packed_batches_agree, (32,)),
    ("attend", of_rows(1), 0, contract.test_attention_is_right_and_decode_prefill_and_packed_batches_agree, (32,)),
    (
        "attention_gradient",
        ONE_SEQUENCE,
        2,
        contract.test_attentions_gradient_is_right_and_a_sequence_depends_on_itself_alone,
        (32,),
    ),
    ("gate", THREE, 0, contract.test_the_router_and_its_gate, (True,)),
    ("gate_gradient", THREE, 0, contract.test_the_router_and_its_gate, (True,)),
    ("combine", of_rows(3, argument=1), 0, contract.test_pairs_are_sorted_by_expert_and_combined_in_slot_order, ()),
    ("combine_gradient", THREE, 1, contract.test_pairs_are_sorted_by_expert_and_combined_in_slot_order, ()),
    ("logprob", THREE, 0, contract.test_selected_log_probs_and_their_gradient, (37, 1.0)),
    ("logprob_gradient", THREE, 0, contract.test_selected_log_probs_and_their_gradient, (37, 1.0)),
    ("logprob_gradient", of_one_grain, None, contract.test_selected_log_probs_and_their_gradient, (37, 1.0)),
    ("draw", of_rows(50), 1, contract.test_what_is_drawn_has_the_trainers_log_prob, ()),
]


@pytest.mark.parametrize(("operation", "when", "result", "test", "size"), CASES)
def test_the_contract_sees_one_ulp_in_one_kernel_at_one_batch_size(operation, when, result, test, size):
    planted = Planted(fastest(), operation, when, result=result)
    with pytest.raises(AssertionError):
        test(planted, torch.float32, torch.Generator().manual_seed(7), *size)


@pytest.fixture(params=list(MAKERS))
def kernels(request):
    return implementation(request.param)


# --- the probe ----------------------------------------------------------------------------------------------------------

ONE = (torch.float32,)


def test_the_probe_finds_every_implementation_invariant_here(kernels):
    assert not_invariant(kernels) == ()


@pytest.mark.parametrize(
    ("operation", "when", "result", "found"),
    [
        ("matmul", of_rows(5), 0, ("float32 matmul",)),
        ("grouped_matmul", of_rows(1), 0, ("float32 grouped_matmul",)),
        ("rms_norm", of_rows(17), 0, ("float32 rms_norm",)),
        ("attend", of_rows(64), 0, ("float32 attend",)),
        ("gate", of_rows(2), 0, ("float32 gate",)),
        ("logprob", of_rows(16), 0, ("float32 logprob",)),
        ("weight_gradient", of_one_grain, None, ("float32 weight_gradient",)),
        ("attention_gradient", ONE_SEQUENCE, 0, ("float32 attention_gradient",)),
    ],
)
def test_the_probe_names_the_operation_that_is_not(operation, when, result, found):
    assert not_invariant(Planted(fastest(), operation, when, result=result), ONE) == found


@pytest.fixture
def makers(monkeypatch):
    """A table of implementations to change, and nothing chosen yet."""
    makers = {"native": Probed, "padded": Probed}
    monkeypatch.setattr(choice, "IMPLEMENTATIONS", makers)
    monkeypatch.setattr(choice, "not_invariant", lambda kernels: kernels.faults)
    for cached in (choice.choose, choice.named_kernels):
        cached.cache_clear()
    yield makers
    for cached in (choice.choose, choice.named_kernels):
        cached.cache_clear()


class Probed(PaddedKernels):
    faults = ()


class Inexact(PaddedKernels):
    faults = ("float32 gate",)


def test_kernels_that_fail_the_probe_are_passed_over_and_the_reason_is_kept(makers):
    makers["native"] = Inexact
    chosen = choice.choose()
    assert isinstance(chosen.kernels, Probed)
    assert choice.default_kernels() is choice.kernels_called("auto") is chosen.kernels
    assert "float32 gate" in chosen.passed_over["native"]


def test_without_exact_kernels_there_are_none(makers):
    makers["native"] = makers["padded"] = Inexact
    with pytest.raises(choice.KernelsInexact, match=r"(?s)native: .*float32 gate.*padded: .*float32 gate.*install"):
        choice.default_kernels()


def test_kernels_asked_for_by_name_are_these_or_none(makers):
    assert isinstance(choice.named_kernels("padded"), Probed)
    assert choice.kernels_called("padded") is choice.named_kernels("padded")
    makers["native"] = Inexact
    with pytest.raises(choice.KernelsInexact, match="float32 gate"):
        choice.named_kernels("native")
    with pytest.raises(ValueError, match="no kernels called 'triton'; there are native, padded"):
        choice.named_kernels("triton")


# --- memory that nobody wrote -------------------------------------------------------------------------------------------


class Surrounded:
    """``kernels``, given its arguments in memory with NaN before and after them."""

    def __init__(self, kernels):
        self._kernels = kernels

    def __getattr__(self, name):
        real = getattr(self._kernels, name)
        if not callable(real) or name == "store":
            return real
        return lambda *given, **named: real(*map(surrounded, given), **named)


def surrounded(x):
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return x
    around = torch.full((x.numel() + 128,), torch.nan, dtype=x.dtype)
    inside = around[64 : 64 + x.numel()]
    inside.copy_(x.reshape(-1))
    return inside.view(x.shape)


def test_no_result_depends_on_memory_that_the_call_did_not_write_or_was_not_given(kernels):
    found = operations(kernels)
    assert deterministic.fill_uninitialized_memory
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")  # fresh memory is filled with NaN, and integers with the largest
    try:
        assert torch.empty(3).isnan().all()
        assert differences(found, operations(Surrounded(kernels))) == []
    finally:
        torch.set_deterministic_debug_mode(mode)
