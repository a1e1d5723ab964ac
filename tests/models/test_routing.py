"""The router record where it enters a network, and the experts that rows without a loss load."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from t1actors.models.policy import Policy
from t1actors.models.routing import RoutingError, check_routing, routing_dtype
from tests.kernels.implementations import implementation
from tests.models.small import packed_gradients, random_ids, random_routing, small_policy

FOUR_ROWS = {"rows": 4, "layers": 2, "experts": 6, "experts_per_token": 2}


def valid():
    return np.array([[[0, 1], [5, 2]]] * 4, dtype=np.uint8)


def test_valid_rows_come_back_with_their_experts_in_ascending_order():
    assert check_routing(valid(), **FOUR_ROWS).tolist() == [[[0, 1], [2, 5]]] * 4
    assert check_routing(torch.from_numpy(valid()), **FOUR_ROWS).dtype == torch.int64


@pytest.mark.parametrize(
    ("routing", "message"),
    [
        (valid()[:3], "rows"),
        (valid()[:, :1], "layer"),
        (valid()[:, :, :1], "experts per token"),
        (valid().reshape(-1), "shape"),
        (valid().astype(np.float32), "integers"),
        (torch.from_numpy(valid()).float(), "integers"),
    ],
)
def test_ill_shaped_routing_is_refused_never_filled_in(routing, message):
    with pytest.raises(RoutingError, match=message):
        check_routing(routing, **FOUR_ROWS)


def test_an_expert_named_twice_is_refused_with_its_place():
    routing = valid()
    routing[2, 1] = [3, 3]
    with pytest.raises(RoutingError, match=r"row 2, layer 1 names an expert twice: \[3, 3\]"):
        check_routing(routing, **FOUR_ROWS)


@pytest.mark.parametrize("expert", [6, 255, -1])
def test_an_expert_that_does_not_exist_is_refused_with_its_place(expert):
    routing = valid().astype(np.int64)
    routing[1, 0, 1] = expert
    with pytest.raises(RoutingError, match=f"row 1, layer 0: expert {expert} does not exist; the model has 6"):
        check_routing(routing, **FOUR_ROWS)


@given(st.permutations(range(300)))
def test_expert_numbers_above_255_survive_the_round_trip(order):
    row = np.array(order[:8]).reshape(1, 1, 8).astype(routing_dtype(300))
    assert check_routing(row, rows=1, layers=1, experts=300, experts_per_token=8).flatten().tolist() == sorted(
        order[:8]
    )


def test_the_smallest_type_that_holds_every_expert_is_used():
    assert routing_dtype(256) is np.uint8
    assert routing_dtype(257) is np.uint16


def test_a_forward_refuses_a_record_with_a_row_too_few():
    policy = small_policy()
    with pytest.raises(RoutingError, match="every predicting position"):
        policy.forward_packed(random_ids(5), [5], random_routing(policy, 4))


@pytest.mark.parametrize("kernels", ["native", "padded"])
def test_rows_without_a_loss_change_no_gradient_and_what_kernels_pad_loads_no_expert(kernels):
    """One real row, alone and beside seven that fill a slab up (fault R2): the same bits of its log-prob and of every
    gradient, and nothing for an expert that no real row chose, expert 0 among them."""
    policy = Policy(small_policy().hf, implementation(kernels))
    ids_N = random_ids(8)
    chosen, others = torch.tensor([3, 5]), torch.tensor([0, 1])
    routing_NLK = torch.stack([chosen, *[others] * 7])[:, None].expand(8, policy.shape.routed_layers, 2)
    offset_E = policy.kernels.dispatch(routing_NLK[:1, 0].contiguous(), 6).offset
    assert offset_E.diff().tolist() == [0, 0, 0, 1, 0, 1]

    upstream_N = torch.tensor([0.125] + [0.0] * 7)
    alone, gradients = packed_gradients(policy, ids_N[:1], [1], routing_NLK[:1], upstream_R=upstream_N[:1])
    filled, filled_gradients = packed_gradients(policy, ids_N, [1, 7], routing_NLK, upstream_R=upstream_N)
    assert torch.equal(filled[:1], alone)
    for name, gradient in gradients.items():
        assert torch.equal(filled_gradients[name], gradient), name
        if ".experts." in name:
            assert (gradient.flatten(1).abs().amax(-1) > 0).nonzero()[:, 0].tolist() == chosen.tolist(), name
