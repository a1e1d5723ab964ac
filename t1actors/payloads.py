"""Payloads and tensors: bytes that ride in an event when small and in the blob store when large.

Guarantees: what ``unpack`` returns has the digest that the payload names, or ``BlobError`` is raised; a packed payload's
blob is durable before ``pack`` returns (blob first, then the event that names it).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import blake3
import msgspec
import numpy as np
import numpy.typing as npt

from t1actors.events import INLINE_LIMIT_BYTES, AnyEvent, Payload, Tensor, UnknownEvent


class BlobError(Exception):
    """A blob is missing or its bytes do not have the digest that names it. Says which and where."""


class Blobs(Protocol):
    """What payloads need of a blob store (``t1actors.log.blobs``)."""

    def put(self, data: bytes | memoryview) -> str:
        """Store ``data``; returns its digest once it is durable."""
        ...

    def get(self, digest: str) -> memoryview:
        """The blob's bytes, checked against ``digest``. Raises ``BlobError``."""
        ...

    def has(self, digest: str) -> bool:
        """Whether it is there; its bytes are not read."""
        ...

    def delete(self, digest: str) -> None:
        """Idempotent."""
        ...


def digest_of(data: bytes | memoryview) -> str:
    """blake3 hex of ``data``."""
    return blake3.blake3(data).hexdigest()


def pack(blobs: Blobs, data: bytes) -> Payload:
    """``data`` as a payload: inline below 16 KiB, else stored."""
    if len(data) < INLINE_LIMIT_BYTES:
        return Payload(digest=digest_of(data), size_bytes=len(data), inline=data)
    return Payload(digest=blobs.put(data), size_bytes=len(data))


def unpack(blobs: Blobs, payload: Payload) -> bytes | memoryview:
    """The payload's bytes, verified. Raises ``BlobError``."""
    if payload.inline is None:
        data = blobs.get(payload.digest)
    else:
        data = payload.inline
        if digest_of(data) != payload.digest:
            raise BlobError(
                f"inline payload {payload.digest[:16]}…: its bytes have digest {digest_of(data)[:16]}…; the record is damaged"
            )
    if len(data) != payload.size_bytes:
        raise BlobError(
            f"payload {payload.digest[:16]}…: {len(data)} bytes where the event states {payload.size_bytes}"
        )
    return data


def payloads_of(event: AnyEvent | UnknownEvent) -> Iterator[tuple[str, Payload]]:
    """The payloads that the event names, by field; tensors' among them."""
    if isinstance(event, UnknownEvent):
        return
    for field in msgspec.structs.fields(type(event)):
        value = getattr(event, field.name)
        if isinstance(value, Payload):
            yield field.name, value
        elif isinstance(value, Tensor):
            yield field.name, value.data


def pack_array(blobs: Blobs, array: npt.NDArray[np.generic]) -> Tensor:
    """``array`` (any shape) as a little-endian C-order tensor."""
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return Tensor(dtype=array.dtype.name, shape=array.shape, data=pack(blobs, array.tobytes()))


def unpack_array(blobs: Blobs, tensor: Tensor) -> npt.NDArray[np.generic]:
    """The tensor as a read-only array of its stated dtype and shape. Raises ``BlobError``, also when sizes disagree."""
    data = unpack(blobs, tensor.data)
    dtype = np.dtype(tensor.dtype).newbyteorder("<")
    expected = dtype.itemsize * int(np.prod(tensor.shape, dtype=np.int64))
    if len(data) != expected:
        raise BlobError(
            f"tensor {tensor.data.digest[:16]}…: {len(data)} bytes for {tensor.dtype}{list(tensor.shape)} ({expected} bytes)"
        )
    return np.frombuffer(data, dtype=dtype).reshape(tensor.shape)
