"""The record of one trial: every token it consisted of, and four streams that say where each token came from.

Guarantees, for a record that ``check`` accepted:
- the streams of a chunk have one length N (ids, mask, log-probs) and N - 1 (routing rows; row j is the forward that
  predicts token j + 1), and a chunk ends at its last trained token;
- m = 1 exactly on the spans of the turns that the chunk trains, and every such token names the weights version it came from;
  q = 0 where m = 0, also where another chunk trains what the model sampled there;
- every routing row holds K distinct experts below E, of the *configured* geometry: shapes are stated, never inferred from
  a length;
- no wall time, path or process enters it.

How turns become a record is ``tito.stitch``; whether it was done rightly is re-checked by ``tito.audit``; how it is stored
and named is ``tito.stored``.

Shapes: N ids of a chunk, R = N - 1 routing rows, L mixture-of-experts layers, K experts per token, E experts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

_BLOCK = 1 << 15
"""Choices (one layer of one row) that are checked at a time."""

Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.uint8]
Logprobs = npt.NDArray[np.float32]
Routing = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]


class TitoError(Exception):
    """Base of this folder's errors."""


class RecordError(TitoError):
    """A record breaks one of the guarantees above. Says which trial, chunk and position."""


@dataclass(frozen=True)
class Geometry:
    """The routing shape a model is configured with: its mixture-of-experts layers, experts per token, experts."""

    layers: int
    top_k: int
    experts: int

    @property
    def dtype(self) -> str:
        """The narrowest recorded type that holds every expert id."""
        return "uint8" if self.experts <= 256 else "uint16"

    @staticmethod
    def of_model_config(text: str | bytes) -> Geometry:
        """Read from a Hugging Face ``config.json``. Dense layers have no routing and are not counted."""
        values = json.loads(text)
        # the name depends on the version of transformers that wrote the file
        values.setdefault("num_experts", values.get("num_local_experts"))
        config = msgspec.convert(values, _MoeConfig)
        dense = set(config.mlp_only_layers)
        moe = [
            i for i in range(config.num_hidden_layers) if i not in dense and (i + 1) % config.decoder_sparse_step == 0
        ]
        return Geometry(layers=len(moe), top_k=config.num_experts_per_tok, experts=config.num_experts)


class _MoeConfig(msgspec.Struct, frozen=True):
    num_hidden_layers: int
    num_experts: int
    num_experts_per_tok: int
    mlp_only_layers: tuple[int, ...] = ()
    decoder_sparse_step: int = 1


class TokenSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled positions [start, end) of a chunk came from weights ``version``."""

    version: str
    start: int
    end: int


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One contiguous token stream. The byte fields are little-endian: int32, uint8, float32, ``routing_dtype``."""

    ids: bytes
    mask: bytes
    logprobs: bytes
    routing: bytes
    routing_dtype: str
    routing_shape: tuple[int, int, int]
    versions: tuple[TokenSpan, ...]
    turns: tuple[tuple[int, int], ...]
    """Sampled positions [start, end) of each turn that this chunk trains."""

    def arrays(self) -> ChunkArrays:
        """Read-only views of the four streams. Raises ``RecordError`` when a length disagrees with the stated shape."""
        rows, layers, top_k = self.routing_shape
        if self.routing_dtype not in ("uint8", "uint16"):
            raise RecordError(f"routing dtype {self.routing_dtype!r}: only uint8 and uint16 are recorded")
        expected = rows * layers * top_k * np.dtype(self.routing_dtype).itemsize
        if len(self.routing) != expected:
            raise RecordError(
                f"routing has {len(self.routing)} bytes where "
                f"{self.routing_dtype}[{rows}, {layers}, {top_k}] takes {expected}"
            )
        if len(self.ids) % 4 or len(self.logprobs) % 4:
            raise RecordError("ids or log-probs are not a whole number of 4-byte values")
        routing: Routing
        if self.routing_dtype == "uint8":
            routing = np.frombuffer(self.routing, dtype=np.uint8).reshape(self.routing_shape)
        else:
            routing = np.frombuffer(self.routing, dtype="<u2").astype(np.uint16, copy=False).reshape(self.routing_shape)
        return ChunkArrays(
            ids_N=np.frombuffer(self.ids, dtype="<i4").astype(np.int32, copy=False),
            mask_N=np.frombuffer(self.mask, dtype=np.uint8),
            logprobs_N=np.frombuffer(self.logprobs, dtype="<f4").astype(np.float32, copy=False),
            routing_RLK=routing,
        )


@dataclass(frozen=True)
class ChunkArrays:
    """The four streams of a chunk."""

    ids_N: Ids
    mask_N: Mask
    logprobs_N: Logprobs
    routing_RLK: Routing


class TrajectoryRecord(msgspec.Struct, frozen=True, kw_only=True, tag="TrajectoryRecord", tag_field="kind"):
    """All chunks of a trial. ``temperature`` is what its tokens were sampled at; ``v`` the stored form that it was read from,
    or is to have: its name is the digest of that."""

    v: int = 2
    trial: str
    index: int
    task: str
    temperature: float
    chunks: tuple[Chunk, ...]


def chunk_of(
    *,
    ids_N: Ids,
    mask_N: Mask,
    logprobs_N: Logprobs,
    routing_RLK: npt.NDArray[np.integer] | Sequence[npt.NDArray[np.integer]],
    versions: tuple[TokenSpan, ...],
    turns: tuple[tuple[int, int], ...],
    geometry: Geometry,
) -> Chunk:
    """A chunk from its arrays, the routing (one array, or several to be laid end to end) in the geometry's narrowest type.
    Raises ``RecordError`` before an expert id could be cut to fit."""
    parts = [routing_RLK] if isinstance(routing_RLK, np.ndarray) else routing_RLK
    stored = np.dtype(geometry.dtype).newbyteorder("<")
    for part in parts:
        if part.size and ((part.dtype.kind == "i" and int(part.min()) < 0) or int(part.max()) >= geometry.experts):
            raise RecordError(
                f"an expert id lies outside [0, {geometry.experts}): {int(part.min())}..{int(part.max())}"
            )
    return Chunk(
        ids=ids_N.astype("<i4").tobytes(),
        mask=mask_N.astype(np.uint8).tobytes(),
        logprobs=logprobs_N.astype("<f4").tobytes(),
        # A part that has the type already is copied once, here.
        routing=b"".join(np.ascontiguousarray(part, dtype=stored).data.cast("B") for part in parts if part.size),
        routing_dtype=geometry.dtype,
        routing_shape=(sum(len(part) for part in parts), *parts[0].shape[1:]),
        versions=versions,
        turns=turns,
    )


def check(record: TrajectoryRecord, geometry: Geometry) -> None:
    """Raises ``RecordError`` naming the first broken guarantee; returns nothing else."""
    if not record.chunks:
        raise RecordError(f"trial {record.trial}: no chunks")
    for number, chunk in enumerate(record.chunks):
        try:
            _check_chunk(chunk, geometry)
        except RecordError as error:
            raise RecordError(f"trial {record.trial}, chunk {number}: {error}") from error


def _check_chunk(chunk: Chunk, geometry: Geometry) -> None:
    arrays = chunk.arrays()
    length = len(arrays.ids_N)
    if length < 2 or len(arrays.mask_N) != length or len(arrays.logprobs_N) != length:
        raise RecordError(
            f"streams disagree: {length} ids, {len(arrays.mask_N)} masks, {len(arrays.logprobs_N)} log-probs"
        )
    expected_shape = (length - 1, geometry.layers, geometry.top_k)
    if chunk.routing_shape != expected_shape:
        raise RecordError(
            f"routing is {list(chunk.routing_shape)}, but {length} ids of a model with {geometry.layers} mixture-of-experts "
            f"layers and {geometry.top_k} experts a token need {list(expected_shape)}"
        )
    if chunk.routing_dtype != geometry.dtype:
        raise RecordError(
            f"routing is {chunk.routing_dtype}, but {geometry.experts} experts are recorded as {geometry.dtype}"
        )
    _check_mask(chunk, arrays, length)
    _check_routing(arrays.routing_RLK, geometry)


def _check_mask(chunk: Chunk, arrays: ChunkArrays, length: int) -> None:
    mask_N = np.zeros(length, dtype=np.uint8)
    position = 1  # token 0 is predicted by nothing, so it cannot be sampled
    for start, end in chunk.turns:
        if not position <= start < end <= length:
            raise RecordError(f"turn [{start}, {end}) is empty, out of order or outside the {length} ids")
        mask_N[start:end] = 1
        position = end
    if position != length:
        raise RecordError(f"ends at token {length}, but its last trained token is {position - 1}")
    if not np.array_equal(mask_N, arrays.mask_N):
        raise RecordError(f"mask differs from the turns at token {int(np.argmax(mask_N != arrays.mask_N))}")
    covered = [np.arange(span.start, span.end) for span in chunk.versions]
    if not covered or not np.array_equal(np.concatenate(covered), np.flatnonzero(mask_N)):
        raise RecordError("version spans do not cover the sampled tokens exactly, in order")
    if not np.isfinite(arrays.logprobs_N).all():
        raise RecordError(f"log-prob of token {int(np.argmin(np.isfinite(arrays.logprobs_N)))} is not finite")
    context_q_N = np.where(mask_N == 0, arrays.logprobs_N, np.float32(0))
    if context_q_N.any():
        raise RecordError(f"token {int(np.argmax(context_q_N != 0))} is context (m = 0) and has a log-prob")


def _check_routing(routing_RLK: Routing, geometry: Geometry) -> None:
    if int(routing_RLK.max()) >= geometry.experts:
        row = int(np.argmax((routing_RLK >= geometry.experts).any(axis=(1, 2))))
        raise RecordError(f"routing row {row} names expert {int(routing_RLK[row].max())} of {geometry.experts}")
    rows, layers, top_k = routing_RLK.shape
    choices_MK = routing_RLK.reshape(rows * layers, top_k)
    for first in range(0, len(choices_MK), _BLOCK):
        # A block is turned so that each comparison runs over whole columns, in the processor's cache.
        columns_KM = np.ascontiguousarray(choices_MK[first : first + _BLOCK].T)
        for k in range(top_k - 1):
            twice_KM = columns_KM[k + 1 :] == columns_KM[k]
            if twice_KM.any():
                row = (first + int(np.flatnonzero(twice_KM.any(axis=0))[0])) // layers
                raise RecordError(f"routing row {row} names an expert twice: {routing_RLK[row].tolist()}")
