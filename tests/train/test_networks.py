"""Where the first states come from, and the networks that states describe."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from t1actors.config import ModelConfig
from t1actors.models.folder import PolicyUnsupported, model_folder
from t1actors.models.value import ValueModel, save_value
from t1actors.train.critic_step import critic_step, estimate_values
from t1actors.train.networks import (
    critic_for,
    initial_critic_state,
    initial_policy_state,
    policy_for,
    version_of,
    working_weights,
)
from t1actors.train.state import to_bytes
from tests.train.tiny_batches import MODEL, TRAIN, batch_of, critic_state, policy_state, tiny_policy

SHIPPED = ModelConfig()


def test_the_shipped_policy_and_a_critic_on_its_trunk_are_the_first_states():
    policy, critic = initial_policy_state(SHIPPED), initial_critic_state(SHIPPED)
    assert policy.updates == critic.updates == 0
    trunk = [name for name in critic.weights if name.startswith("model.")]
    assert trunk
    assert all(torch.equal(critic.weights[name], policy.weights[name]) for name in trunk)
    assert not any(critic.weights[name].any() for name in critic.weights if name not in trunk)
    network = policy_for(policy, SHIPPED)
    assert network.digest() == version_of(network, policy)


def test_a_critic_folder_is_taken_as_it_is(tmp_path):
    critic, _ = critic_state(tiny_policy())
    with torch.no_grad():
        critic.parameters()["value_head.bias"].fill_(0.25)
    save_value(critic, tmp_path / "critic")
    state = initial_critic_state(replace(SHIPPED, critic=str(tmp_path / "critic")))
    assert version_of(critic_for(state, SHIPPED), state) == critic.digest()


def test_a_policy_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(Exception, match="no-such-model"):
        initial_policy_state(replace(SHIPPED, policy="builtin:no-such-model"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(PolicyUnsupported):
        initial_policy_state(replace(SHIPPED, policy=str(tmp_path)))


def test_a_state_names_no_place_and_no_library_version():
    raw = to_bytes(initial_policy_state(SHIPPED))
    header = raw[: 8 + int.from_bytes(raw[:8], "little")].decode(errors="replace")
    assert str(model_folder(SHIPPED.policy)) not in header
    assert "transformers_version" not in header
    assert "_name_or_path" not in header


def test_a_bfloat16_critic_steps_on_float32_masters():
    model = replace(MODEL, train_dtype="bfloat16")
    policy = tiny_policy()
    state = critic_state(policy)[1]
    network = critic_for(state, model)
    batch = batch_of(policy)
    values = estimate_values(network, state, batch, TRAIN)
    result = critic_step(network, state, batch, values.values_T, TRAIN, seed=0, step=0)
    again = critic_step(critic_for(state, model), state, batch, values.values_T, TRAIN, seed=0, step=0)
    assert again.report == result.report
    assert all(w.dtype == torch.float32 for w in result.state.weights.values())
    dtypes = {name: w.dtype for name, w in working_weights(network, result.state.weights).items()}
    assert dtypes["model.norm.weight"] == torch.bfloat16
    assert dtypes["value_head.weight"] == torch.float32
    assert np.isfinite(result.report.losses).all()


def test_a_critic_never_shares_memory_with_the_policy_it_came_from():
    policy = tiny_policy()
    before = policy.digest()
    critic = ValueModel.from_policy(policy)
    with torch.no_grad():
        for parameter in critic.parameters().values():
            parameter.add_(1.0)
    assert policy.digest() == before
    assert policy_state(policy).weights.keys() != critic.parameters().keys()
