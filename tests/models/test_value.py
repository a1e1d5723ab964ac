import pytest
import torch

from t1actors.models.checkpoint import CheckpointError
from t1actors.models.value import ValueModel, load_value, save_value
from tests.models.small import random_ids, small_policy


def test_a_fresh_critic_values_everything_at_zero_and_its_first_gradient_is_the_heads():
    critic = ValueModel.from_policy(small_policy())
    ids_N = random_ids(9)
    sums = critic.gradients()
    values = critic.values(critic.forward_packed(ids_N, [9], gradients=sums).hidden_NH, gradients=sums)
    assert values.dtype == torch.float32
    assert values.tolist() == [0.0] * 9
    (values - 1).square().sum().backward()
    gradients = [name for name, gradient in sums.scaled(1.0).items() if gradient.abs().max() > 0]
    assert sorted(gradients) == ["value_head.bias", "value_head.weight"]


def test_the_trunk_is_a_copy_of_the_policys_under_the_same_names():
    policy = small_policy()
    critic = ValueModel.from_policy(policy)
    ids_N = random_ids(14)
    with torch.no_grad():
        ours, theirs = (n.forward_packed(ids_N, [10, 4]) for n in (critic, policy))
        assert torch.equal(ours.hidden_NH, theirs.hidden_NH)
        critic.parameters()["model.norm.weight"].zero_()
    assert policy.hf.model.norm.weight.abs().max() > 0
    assert set(critic.weights()) == set(policy.weights()) | {"value_head.weight", "value_head.bias"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_saved_critic_comes_back_with_the_same_values(tmp_path, dtype):
    critic = ValueModel.from_policy(small_policy(dtype=getattr(torch, dtype)))
    with torch.no_grad():
        critic.parameters()["value_head.weight"].normal_()
    save_value(critic, tmp_path)
    again = load_value(tmp_path, dtype=dtype)
    assert again.digest() == critic.digest()
    ids_N = random_ids(6)
    with torch.no_grad():
        a, b = (c.values(c.forward_packed(ids_N, [6]).hidden_NH) for c in (critic, again))
    assert torch.equal(a, b)


def test_a_copy_of_a_critic_is_its_own():
    critic = ValueModel.from_policy(small_policy())
    with torch.no_grad():
        critic.parameters()["value_head.bias"].fill_(0.5)
    copy = critic.copy()
    assert copy.digest() == critic.digest()
    with torch.no_grad():
        copy.parameters()["value_head.bias"].fill_(0.25)
    assert copy.digest() != critic.digest()


def test_a_folder_without_critic_weights_is_refused(tmp_path):
    save_value(ValueModel.from_policy(small_policy()), tmp_path)
    (tmp_path / "value.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no value.safetensors"):
        load_value(tmp_path)
