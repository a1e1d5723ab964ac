import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from t1actors.models.checkpoint import (
    BLOCK_ROWS,
    CheckpointError,
    tensor_digest,
    weights_digest,
    weights_from_bytes,
    weights_to_bytes,
)
from tests.models.small import small_policy


def some_weights():
    generator = torch.Generator().manual_seed(0)
    return {
        "b": torch.randn(5, 3, generator=generator),
        "a": torch.randn(7, generator=generator).bfloat16(),
        "c": torch.arange(4, dtype=torch.float32),
    }


def test_the_digest_is_a_format_that_never_changes():
    """Versions in old logs are named by it."""
    weights = {
        "x": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "long": torch.arange(2 * BLOCK_ROWS + 5, dtype=torch.float32)[:, None],
        "half": torch.ones(4, dtype=torch.bfloat16),
    }
    assert weights_digest(weights) == "f3eb5b39880671080bc127a2590a34e070d5a6ac612ecbe69e0ad444d32521d5"


def test_the_digest_depends_on_values_not_on_layout():
    weights = some_weights()
    moved = {name: tensor.clone() for name, tensor in reversed(weights.items())}
    moved["b"] = moved["b"].t().contiguous().t()
    assert not moved["b"].is_contiguous()
    assert weights_digest(moved) == weights_digest(weights)


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w["b"].__setitem__((4, 2), torch.nextafter(w["b"][4, 2], torch.tensor(9.0))),
        lambda w: w.update(b=w["b"].reshape(3, 5)),
        lambda w: w.update(c=w["c"].view(torch.int32)),
        lambda w: w.update(d=w.pop("c")),
        lambda w: w.pop("c"),
        lambda w: w.update(c=-w["c"]),  # 0.0 and -0.0 are different weights
    ],
)
def test_the_digest_tells_any_change(change):
    weights, changed = some_weights(), some_weights()
    change(changed)
    assert weights_digest(changed) != weights_digest(weights)


def test_rows_of_a_long_tensor_are_all_covered():
    tensor = torch.zeros(3 * BLOCK_ROWS + 1, 2)
    seen = {tensor_digest("t", tensor)}
    for row in (0, BLOCK_ROWS - 1, BLOCK_ROWS, 3 * BLOCK_ROWS):
        changed = tensor.clone()
        changed[row, 1] = 1
        seen.add(tensor_digest("t", changed))
    assert len(seen) == 5


@given(st.dictionaries(st.text("abc.", min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=3), max_size=4))
def test_bytes_round_trip_to_the_same_digest(shapes):
    weights = {name: torch.randn(shape) for name, shape in shapes.items()}
    version = weights_digest(weights)
    again = weights_from_bytes(weights_to_bytes(weights), version=version)
    assert list(again) == sorted(weights)
    assert weights_digest(again) == version


def test_order_of_the_mapping_does_not_change_the_bytes():
    weights = some_weights()
    assert weights_to_bytes(weights) == weights_to_bytes(dict(reversed(weights.items())))


def test_damaged_bytes_and_other_weights_are_refused():
    data = weights_to_bytes(some_weights())
    with pytest.raises(CheckpointError, match="safetensors"):
        weights_from_bytes(data[:-3])
    flipped = bytearray(data)
    flipped[-1] ^= 1
    with pytest.raises(CheckpointError, match="digest"):
        weights_from_bytes(bytes(flipped), version=weights_digest(some_weights()))


def test_tied_weights_appear_once_and_load_into_both_places():
    policy, other = small_policy(seed=0), small_policy(seed=1)
    assert "lm_head.weight" not in policy.weights()
    assert "lm_head.weight" in small_policy(tie_word_embeddings=False).weights()
    other.load_weights(policy.weights())
    assert other.digest() == policy.digest()
    assert torch.equal(other.hf.lm_head.weight, policy.hf.lm_head.weight)


def test_weights_of_another_model_change_nothing():
    policy = small_policy()
    before = policy.digest()
    other = small_policy(seed=1, num_experts=4)
    with pytest.raises(CheckpointError, match="shape"):
        policy.load_weights(other.weights())
    with pytest.raises(CheckpointError, match="missing"):
        policy.load_weights({name: t for name, t in small_policy(seed=1).weights().items() if "norm" not in name})
    assert policy.digest() == before


def test_float32_weights_load_into_a_bfloat16_sampler():
    policy, half = small_policy(), small_policy(seed=1, dtype=torch.bfloat16)
    half.load_weights(policy.weights())
    assert torch.equal(half.hf.lm_head.weight, policy.hf.lm_head.weight.bfloat16())


def test_a_copy_shares_nothing():
    policy = small_policy()
    copy = policy.copy()
    with torch.no_grad():
        copy.hf.lm_head.weight.zero_()
    assert policy.hf.lm_head.weight.abs().max() > 0
    assert list(copy.parameters()) == list(policy.parameters())


def test_how_much_is_checked_is_told_in_bytes_up_to_all_of_them():
    weights, told = some_weights(), []
    weights_from_bytes(
        weights_to_bytes(weights), version=weights_digest(weights), progress=lambda *far: told.append(far)
    )
    assert told == [(14, 90), (74, 90), (90, 90)]
