"""Which model folders this package can train, decided by reading ``config.json``: no torch, no transformers.

Guarantees: a folder that passes has a family whose forward and routing formula this package has and tests; anything
else is ``PolicyUnsupported``, which says what was found, what is missing and what is supported. Nothing is guessed.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any, cast

BUILTIN_PREFIX = "builtin:"
SUPPORTED_FAMILIES = {"qwen3_moe": "Qwen3-MoE (Qwen3MoeForCausalLM)"}
_STATIC_ROPE = frozenset({"default", "linear", "yarn", "llama3"})


class ModelFolderError(Exception):
    """A configured model is not there, or can't be used. Says which, and what there is."""


class PolicyUnsupported(ModelFolderError):
    """A model folder of a kind this package can't train: what is missing, and what is supported."""


def model_folder(policy: str) -> Path:
    """The folder of ``policy`` (a configuration value of ``model.policy``). Raises ``ModelFolderError``."""
    if policy.startswith(BUILTIN_PREFIX):
        name = policy.removeprefix(BUILTIN_PREFIX)
        root = Path(str(resources.files("t1actors"))) / "assets"
        folder = root / name
        if not (folder / "config.json").is_file():
            shipped = sorted(p.parent.name for p in root.glob("*/config.json"))
            raise ModelFolderError(
                f"model.policy = {policy!r}: no such built-in model; shipped: {', '.join(shipped) or 'none'}"
            )
        return folder
    folder = Path(policy)
    if not (folder / "config.json").is_file():
        raise ModelFolderError(
            f"model.policy = {policy!r}: no config.json in that folder; it must be a Hugging Face model folder"
        )
    return folder


def check_config(folder: Path) -> None:
    """Raise ``PolicyUnsupported`` unless ``folder/config.json`` describes a model this package runs."""
    path = folder / "config.json"
    supported = f"supported: {', '.join(SUPPORTED_FAMILIES.values())}"
    if not path.is_file():
        raise PolicyUnsupported(f"{folder}: no config.json, so not a Hugging Face model folder; {supported}")
    try:
        config = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise PolicyUnsupported(f"{path}: not JSON ({error})") from error
    if not isinstance(config, dict):
        raise PolicyUnsupported(f"{path}: not a JSON object")
    config = cast("dict[str, Any]", config)
    family = config.get("model_type")
    if family not in SUPPORTED_FAMILIES:
        raise PolicyUnsupported(
            f"{folder}: model_type {family!r} has no forward with routing record and replay here; {supported}"
        )
    rope = cast("dict[str, Any]", config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    missing: list[str] = []
    if config.get("use_sliding_window") and config.get("sliding_window"):
        missing.append(f"sliding-window attention (sliding_window = {config['sliding_window']})")
    if rope_type not in _STATIC_ROPE:
        missing.append(f"rotary embeddings that depend on the sequence's length (rope_type = {rope_type!r})")
    if config.get("attention_dropout"):
        missing.append(f"attention dropout ({config['attention_dropout']}): sampler and trainer would differ")
    if config.get("quantization_config"):
        missing.append("quantised weights (quantization_config)")
    if missing:
        raise PolicyUnsupported(f"{folder}: {SUPPORTED_FAMILIES[family]} with {'; '.join(missing)} is not supported")


def check_folder(folder: Path) -> None:
    """``check_config``, and that weights and tokenizer are there. Raises ``PolicyUnsupported``."""
    check_config(folder)
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise PolicyUnsupported(f"{folder}: no model.safetensors (nor its index); weights must be in safetensors files")
    if not (folder / "tokenizer.json").is_file():
        raise PolicyUnsupported(f"{folder}: no tokenizer.json; save the tokenizer with `save_pretrained` of a fast one")
