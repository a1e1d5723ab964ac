"""A trainer's state between steps: float32 masters, Adam's moments, the count of updates, and what network they are of.

Guarantees: ``from_bytes(to_bytes(s))`` equals s in every bit and the same state gives the same bytes; a state without moments
(fresh) is shorter and digests otherwise than one with moments of zero; the bytes are one safetensors file, readable by
anyone's tools. Which state a step begins from is said in ``lanes``.

A state is a value: nothing here or in a step changes its tensors in place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import blake3
import msgspec
import safetensors
import safetensors.torch
import torch

from t1actors.models.checkpoint import tensor_digest
from t1actors.train.errors import StateError

Tensors = Mapping[str, torch.Tensor]

_METADATA = "t1actors"


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    v: int = 1
    architecture: str
    updates: int


@dataclass(frozen=True)
class TrainerState:
    """``architecture`` is the network's Hugging Face configuration as JSON; ``first`` and ``second`` moments are empty until
    the first update; ``updates`` counts updates since the moments were empty."""

    architecture: str
    weights: Tensors
    first: Tensors
    second: Tensors
    updates: int

    @staticmethod
    def fresh(architecture: str, weights: Tensors) -> TrainerState:
        """These weights as float32 masters, no moments."""
        masters = {name: weights[name].detach().to(torch.float32).clone() for name in sorted(weights)}
        return TrainerState(canonical_json(architecture), masters, {}, {}, 0)

    def without_moments(self) -> TrainerState:
        """The same weights with a fresh optimizer."""
        return replace(self, first={}, second={}, updates=0)

    def optimizer_digest(self) -> str:
        """Covers masters, moments and the count of updates: whatever decides the next update besides gradient and rate."""
        node = blake3.blake3(b"t1actors optimizer 1\0" + self.updates.to_bytes(8, "little"))
        for tensors in (self.weights, self.first, self.second):
            node.update(len(tensors).to_bytes(8, "little"))
            for name in sorted(tensors):
                node.update(tensor_digest(name, tensors[name]))
        return node.hexdigest()


def canonical_json(text: str) -> str:
    """The same JSON with sorted keys and no spaces."""
    return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


def to_bytes(state: TrainerState) -> bytes:
    """The state as a safetensors file. One metadata entry, since several would come in no fixed order."""
    head = _Head(architecture=state.architecture, updates=state.updates)
    parts = (("weights", state.weights), ("first", state.first), ("second", state.second))
    tensors = {f"{part}/{name}": tensor.contiguous() for part, named in parts for name, tensor in sorted(named.items())}
    return safetensors.torch.save(tensors, metadata={_METADATA: msgspec.json.encode(head).decode()})


def from_bytes(data: bytes | memoryview) -> TrainerState:
    """The state in ``data``. Raises ``StateError``."""
    raw = bytes(data)
    try:
        loaded = safetensors.torch.load(raw)
        # the header is JSON behind an 8-byte length; safetensors gives metadata only for files on disk
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        head = msgspec.json.decode(header["__metadata__"][_METADATA], type=_Head)
    except (safetensors.SafetensorError, msgspec.MsgspecError, KeyError, ValueError) as error:
        raise StateError(
            f"{len(raw)} bytes are no trainer state ({error}); it was not written by this program"
        ) from error

    def part(kind: str) -> dict[str, torch.Tensor]:
        prefix = f"{kind}/"
        # memory of its own, aligned as torch likes it: products may differ in the last bit with alignment
        return {n.removeprefix(prefix): loaded[n].clone() for n in sorted(loaded) if n.startswith(prefix)}

    state = TrainerState(head.architecture, part("weights"), part("first"), part("second"), head.updates)
    for moments in (state.first, state.second):
        if moments and moments.keys() != state.weights.keys():
            raise StateError(
                f"moments of {len(moments)} tensors for {len(state.weights)} weights; the state is incomplete"
            )
    return state
