"""The critic's network: the policy's trunk with a scalar head that starts at zero.

Guarantees: a fresh head gives value 0 everywhere (learning.md: a random head of the wrong scale is worse than no
critic); its routers choose freely (T1 section 4); values are
float32 and as exact as the trunk.

Shapes: R rows, H hidden.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import torch
from t1kernels import functions
from t1kernels.choice import default_kernels
from t1kernels.interface import Kernels
from torch import Tensor, nn
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeModel

from t1actors.models.checkpoint import CheckpointError, weights_from_bytes, weights_to_bytes
from t1actors.models.construction import constructing
from t1actors.models.folder import check_config
from t1actors.models.gradients import Gradients
from t1actors.models.network import Network
from t1actors.models.policy import Policy

WEIGHTS_FILE = "value.safetensors"


class _ValueModule(nn.Module):
    def __init__(self, base: Qwen3MoeModel, hidden: int) -> None:
        super().__init__()
        self.model = base
        self.value_head = nn.Linear(hidden, 1, dtype=torch.float32)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)


class ValueModel(Network):
    """Canonical names: the trunk's as in the policy (``model.…``), ``value_head.weight``, ``value_head.bias``."""

    def __init__(self, base: Qwen3MoeModel, kernels: Kernels | None = None) -> None:
        config = cast(Qwen3MoeConfig, base.config)
        self._module = _ValueModule(base, cast(Any, config).hidden_size)
        super().__init__(self._module, base, kernels or default_kernels())
        self.config = config

    @classmethod
    def from_policy(cls, policy: Policy) -> ValueModel:
        """A critic with a copy of the policy's trunk and a zero head."""
        return cls(copy.deepcopy(policy.hf.model), policy.kernels)

    def values(self, hidden_RH: Tensor, *, gradients: Gradients | None = None, rows_R: Tensor | None = None) -> Tensor:
        """The value of each row, float32. ``rows_R``: which rows of the slab these are, for ``gradients``; None: all
        of them."""
        grains = weight = bias = None
        if gradients is not None:
            grains = (gradients.cut if rows_R is None else gradients.cut.rows(rows_R)).dense()
            weight, bias = gradients.sums["value_head.weight"], gradients.sums["value_head.bias"]
        products_R1 = functions.matmul(
            self.kernels, hidden_RH.float(), self.prepared.matrix("value_head.weight"), grains, weight
        )
        return functions.add_bias(self.kernels, products_R1, self.prepared.vector("value_head.bias"), grains, bias)[
            :, 0
        ]

    def copy(self) -> ValueModel:
        """A critic of its own with the same weights."""
        other = ValueModel(copy.deepcopy(self._module.model), self.kernels)
        other.load_weights(self.weights())
        return other


def save_value(value: ValueModel, folder: Path) -> None:
    """A critic folder: the trunk's ``config.json`` and ``value.safetensors`` with the canonical weights."""
    folder.mkdir(parents=True, exist_ok=True)
    value.config.save_pretrained(folder)
    (folder / WEIGHTS_FILE).write_bytes(weights_to_bytes(value.weights()))


def load_value(folder: Path, *, dtype: str = "float32", kernels: Kernels | None = None) -> ValueModel:
    """The critic in ``folder`` (as ``save_value`` wrote it). Raises ``PolicyUnsupported``, ``CheckpointError``."""
    check_config(folder)
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise CheckpointError(f"{folder}: no {WEIGHTS_FILE}; a critic folder is written by `save_value`")
    config = Qwen3MoeConfig.from_pretrained(folder)
    with constructing:
        base = Qwen3MoeModel._from_config(config, dtype=getattr(torch, dtype))
    value = ValueModel(cast(Qwen3MoeModel, base), kernels)
    value.load_weights(weights_from_bytes(path.read_bytes()))
    return value
