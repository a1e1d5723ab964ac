"""Digests of a step's levels, and the short ones that say where two runs of a step first differ.

A level (batch, values, old log-probs, loss, gradients, weights, optimizer) has one full digest: equality is judged by it.
Below it a ``PartDetail`` keeps 8 bytes a trial and a tensor, enough to name the first that differs and never used as proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import blake3
import msgspec
import numpy as np
import numpy.typing as npt
import torch

from t1actors.models.checkpoint import tensor_digest
from t1actors.train.batch import Batch

SHORT_BYTES = 8


class UpdateDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer update: 8 bytes for each trial of its minibatch (in index order) and for each tensor's gradient."""

    losses: bytes
    gradients: bytes


class PartDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look inside a critic's or an actor's step. ``tensors`` names the tensors, in the order of all tensor
    digests; ``trials`` are of the per-token stream that the part starts from (the actor's old log-probs)."""

    v: int = 1
    tensors: tuple[str, ...]
    trials: bytes
    updates: tuple[UpdateDetail, ...]
    weights: bytes
    first: bytes
    second: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PartDetail)


def encode_detail(detail: PartDetail) -> bytes:
    """MessagePack, deterministic."""
    return _encoder.encode(detail)


def decode_detail(raw: bytes | memoryview) -> PartDetail:
    """Raises ``msgspec.MsgspecError``."""
    return _decoder.decode(raw)


def array_digest(array: npt.NDArray[np.generic]) -> str:
    """blake3 over dtype, shape and little-endian C-order bytes."""
    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    header = f"{plain.dtype.name}\0{','.join(map(str, plain.shape))}\0".encode()
    return blake3.blake3(header + plain.tobytes()).hexdigest()


def losses_digest(losses: Sequence[float]) -> str:
    """Over the updates' losses, float64, in order."""
    return array_digest(np.array(losses, dtype=np.float64))


def tensor_digests(tensors: Mapping[str, torch.Tensor]) -> list[bytes]:
    """One digest a tensor, in name order."""
    return [tensor_digest(name, tensors[name]) for name in sorted(tensors)]


def gradient_digest(updates: Iterable[Sequence[bytes]]) -> str:
    """A digest of digests: every update's tensors in name order, updates in order."""
    node = blake3.blake3(b"t1actors gradients 1\0")
    for digests in updates:
        node.update(blake3.blake3(b"".join(digests)).digest())
    return node.hexdigest()


def short(digests: Iterable[bytes]) -> bytes:
    """The first 8 bytes of each digest, one after the other."""
    return b"".join(digest[:SHORT_BYTES] for digest in digests)


def trial_digests(stream_T: npt.NDArray[np.generic], batch: Batch) -> bytes:
    """8 bytes a trial over its part of a per-token stream of the whole batch."""
    return short(blake3.blake3(stream_T[t.first : t.first + t.sampled].tobytes()).digest() for t in batch.trials)


def first_difference(left: bytes, right: bytes) -> int | None:
    """The place of the first 8-byte digest that differs (or that one side lacks), None when there is none."""
    for start in range(0, max(len(left), len(right)), SHORT_BYTES):
        if left[start : start + SHORT_BYTES] != right[start : start + SHORT_BYTES]:
            return start // SHORT_BYTES
    return None
