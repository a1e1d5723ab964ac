"""Networks for trainer states: where the first states come from, and the network that a state describes.

A network is scratch space: every function of a step first loads the weights it is about, so one network serves any number
of states of its architecture, and what a step computes depends on its arguments alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import torch
from t1kernels.choice import kernels_called
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

from t1actors.config import ModelConfig
from t1actors.models.checkpoint import CheckpointError, weights_digest
from t1actors.models.folder import model_folder
from t1actors.models.network import Network
from t1actors.models.policy import Policy, new_policy
from t1actors.models.pretrained import load_policy
from t1actors.models.value import ValueModel, load_value
from t1actors.tito.record import Geometry
from t1actors.train.errors import StateError
from t1actors.train.state import Tensors, TrainerState


def initial_policy_state(model: ModelConfig) -> TrainerState:
    """The policy that ``model.policy`` names, with a fresh optimizer. Raises ``PolicyUnsupported``."""
    return fresh_state(_loaded_policy(model))


def initial_critic_state(model: ModelConfig) -> TrainerState:
    """The critic that ``model.critic`` names: the policy's trunk with a zero head, or a critic folder.

    Raises ``PolicyUnsupported``, ``CheckpointError``.
    """
    if model.critic == "policy":
        critic = ValueModel.from_policy(_loaded_policy(model))
    else:
        critic = load_value(Path(model.critic), dtype="float32", kernels=kernels_called(model.kernels))
    return fresh_state(critic)


def _loaded_policy(model: ModelConfig) -> Policy:
    return load_policy(model_folder(model.policy), dtype="float32", kernels=kernels_called(model.kernels))


def fresh_state(network: Policy | ValueModel) -> TrainerState:
    """The weights that ``network`` holds, as float32 masters with a fresh optimizer."""
    config = network.hf.config if isinstance(network, Policy) else network.config
    return TrainerState.fresh(architecture_of(config), network.weights())


def policy_for(state: TrainerState, model: ModelConfig) -> Policy:
    """A network of the state's architecture with the training dtype and the kernels of ``model``, holding the state's
    weights. Raises ``StateError``."""
    policy = _new_policy(state, model)
    load_masters(policy, state.weights)
    return policy


def critic_for(state: TrainerState, model: ModelConfig) -> ValueModel:
    """As ``policy_for``, for a critic's state."""
    trunk = _new_policy(state, model)
    critic = ValueModel(trunk.hf.model, trunk.kernels)
    load_masters(critic, state.weights)
    return critic


def _new_policy(state: TrainerState, model: ModelConfig) -> Policy:
    dtype, kernels = getattr(torch, model.train_dtype), kernels_called(model.kernels)
    return new_policy(_config(state), seed=0, dtype=dtype, kernels=kernels)


def geometry_of(network: Network) -> Geometry:
    """The routing that a record for this network must have."""
    shape = network.shape
    return Geometry(layers=shape.routed_layers, top_k=shape.experts_per_token, experts=shape.experts)


def working_weights(network: Network, masters: Tensors) -> dict[str, torch.Tensor]:
    """The masters in the network's own dtypes: what is published and digested as the version."""
    wanted = network.parameters()
    if wanted.keys() != masters.keys():
        odd = sorted(wanted.keys() ^ masters.keys())
        raise StateError(f"the state is of another network: {', '.join(odd[:3])} on one side only")
    return {name: masters[name].to(parameter.dtype) for name, parameter in wanted.items()}


def version_of(network: Network, state: TrainerState) -> str:
    """The content digest of the weights that the state publishes."""
    return weights_digest(working_weights(network, state.weights))


def load_masters(network: Network, masters: Tensors) -> None:
    """Copy the masters into the network. Raises ``StateError``."""
    try:
        network.load_weights(working_weights(network, masters))
    except CheckpointError as error:
        raise StateError(f"the state is of another network: {error}") from error


def architecture_of(config: object) -> str:
    """The Hugging Face configuration as JSON, every value written out (another version of the library may have other
    defaults), without what says where it came from."""
    values = json.loads(cast(Qwen3MoeConfig, config).to_json_string(use_diff=False))
    for name in ("transformers_version", "dtype", "_name_or_path"):
        values.pop(name, None)
    return json.dumps(values)


def _config(state: TrainerState) -> Qwen3MoeConfig:
    try:
        return Qwen3MoeConfig.from_dict(json.loads(state.architecture))
    except (ValueError, TypeError) as error:
        raise StateError(f"the state's architecture is no Qwen3-MoE configuration ({error})") from error
