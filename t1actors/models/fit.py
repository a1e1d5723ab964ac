"""Whether a model folder and a run's limits fit each other, decided from headers: no torch, no transformers.

Guarantees: what passes can be loaded, encoded for and held by this machine as far as its files and figures say; what does not
is a ``PolicyUnsupported`` that names the file or the key and the next step. Whether the family is one that can be trained is
``models.folder``'s business.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open

from t1actors.config import Config
from t1actors.models.folder import PolicyUnsupported, check_config, check_folder, model_folder
from t1actors.models.tokenizer import Tokenizer, TokenizerError
from t1actors.tito.render.choice import family_of
from t1actors.tito.render.interface import RenderError

CRITIC_FILE = "value.safetensors"
EMBEDDING = "model.embed_tokens.weight"
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
MASTERS, MOMENTS, GRADIENT = 4, 8, 4
"""Bytes of a parameter in float32: the master weight, Adam's two moments, the gradient."""


@dataclass(frozen=True)
class ModelFacts:
    """``positions``: the longest stream the model was made for. ``needed_bytes``: what its weights take in memory, in all
    processes of the run together, optimizers included; activations and caches come on top."""

    folder: Path
    parameters: int
    vocabulary: int
    positions: int
    chat_format: str
    needed_bytes: int


def check_model(config: Config) -> tuple[ModelFacts, Tokenizer]:
    """The policy (and the critic) that ``config`` names, and the policy's tokenizer. Raises ``PolicyUnsupported``,
    ``ModelFolderError``."""
    folder = model_folder(config.model.policy)
    check_folder(folder)
    policy = _described(folder)
    tokenizer = _tokenizer(folder)
    if tokenizer.largest_id >= policy["vocab_size"]:
        raise PolicyUnsupported(
            f"{folder}: its tokenizer has ids up to {tokenizer.largest_id}, its model embeds {policy['vocab_size']} "
            "(vocab_size in config.json); they do not belong together"
        )
    _check_positions(folder, policy["max_position_embeddings"], config.rollout.max_ids)
    weights = dict(_shapes(folder))
    parameters = _parameters(weights, folder, policy["vocab_size"])
    critic_parameters = _critic_parameters(config, parameters, policy["vocab_size"])
    facts = ModelFacts(
        folder=folder,
        parameters=parameters,
        vocabulary=policy["vocab_size"],
        positions=policy["max_position_embeddings"],
        chat_format=_chat_format(folder, tokenizer),
        needed_bytes=needed_bytes(config, parameters, critic_parameters),
    )
    return facts, tokenizer


def needed_bytes(config: Config, policy: int, critic: int) -> int:
    """Bytes for the weights of ``policy`` and ``critic`` (parameters each): both trainers hold masters, moments, gradient
    and a working copy, the policy's the behaviour version besides; every sampler a working copy and the one it is given."""
    train = _DTYPE_BYTES[config.model.train_dtype]
    sampler = _DTYPE_BYTES[config.model.sampler_dtype]
    trainer = MASTERS + MOMENTS + GRADIENT + train
    return policy * (trainer + train) + critic * trainer + policy * 2 * sampler * config.rollout.sampler_replicas


def _tokenizer(folder: Path) -> Tokenizer:
    try:
        return Tokenizer.from_folder(folder)
    except TokenizerError as error:
        raise PolicyUnsupported(f"{folder}: {error}") from error
    except Exception as error:  # that is all the tokenizers library raises
        raise PolicyUnsupported(f"{folder / 'tokenizer.json'}: not a tokenizer that can be read: {error}") from error


def _chat_format(folder: Path, tokenizer: Tokenizer) -> str:
    try:
        return family_of(tokenizer)
    except RenderError as error:
        raise PolicyUnsupported(f"{folder}: {error}") from error


def _described(folder: Path) -> dict[str, int]:
    """vocab_size and max_position_embeddings."""
    config = cast("dict[str, Any]", json.loads((folder / "config.json").read_text()))
    found: dict[str, int] = {}
    for key in ("vocab_size", "max_position_embeddings"):
        value = config.get(key)
        if not isinstance(value, int) or value < 1:
            raise PolicyUnsupported(f"{folder / 'config.json'}: {key} = {value!r}: expected a whole number above 0")
        found[key] = value
    return found


def _check_positions(folder: Path, positions: int, max_ids: int) -> None:
    if max_ids > positions:
        raise PolicyUnsupported(
            f"{folder}: the model has {positions:,} positions (max_position_embeddings), rollout.max_ids is {max_ids:,}; "
            f"lower it: --set rollout.max_ids={positions}"
        )


def _parameters(weights: dict[str, tuple[int, ...]], folder: Path, vocabulary: int) -> int:
    embedding = weights.get(EMBEDDING)
    if embedding is None:
        raise PolicyUnsupported(
            f"{folder}: no tensor {EMBEDDING} in its safetensors files; not the weights of this model"
        )
    if embedding[0] != vocabulary:
        raise PolicyUnsupported(
            f"{folder}: {EMBEDDING} has {embedding[0]} rows, config.json says vocab_size = {vocabulary}"
        )
    return sum(_count(shape) for shape in weights.values())


def _critic_parameters(config: Config, policy: int, vocabulary: int) -> int:
    if config.model.critic == "policy":
        return policy
    folder = model_folder(config.model.critic)
    check_config(folder)
    if not (folder / CRITIC_FILE).is_file():
        raise PolicyUnsupported(
            f"model.critic = {config.model.critic!r}: no {CRITIC_FILE} in that folder; a critic folder is written by "
            "`models.value.save_value`; leave model.critic out to start from the policy's own trunk"
        )
    described = _described(folder)
    if described["vocab_size"] != vocabulary:
        raise PolicyUnsupported(
            f"{folder}: the critic embeds {described['vocab_size']} ids, the policy {vocabulary}; both read the same stream"
        )
    _check_positions(folder, described["max_position_embeddings"], config.rollout.max_ids)
    return sum(_count(shape) for _, shape in _read(folder / CRITIC_FILE))


def _shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor in the folder's safetensors files."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        yield from _read(folder / "model.safetensors")
        return
    try:
        names = set(cast("dict[str, str]", json.loads(index.read_text())["weight_map"]).values())
    except (json.JSONDecodeError, KeyError, AttributeError) as error:
        raise PolicyUnsupported(f"{index}: not an index of safetensors files ({error})") from error
    missing = sorted(name for name in names if not (folder / name).is_file())
    if missing:
        raise PolicyUnsupported(f"{folder}: {', '.join(missing)} missing; {index.name} names {len(names)} files")
    for name in sorted(names):
        yield from _read(folder / name)


def _read(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118  (not a mapping)
                yield name, tuple(file.get_slice(name).get_shape())
    except (SafetensorError, OSError) as error:
        raise PolicyUnsupported(f"{path}: not a whole safetensors file ({error}); copy it again") from error


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
