"""Payloads and tensors: bytes that ride in an event when small and in the blob store when large.

Guarantees: what ``unpack`` returns has the digest that the payload names, or ``BlobError`` is raised; a packed payload's
blob is durable before ``pack`` returns (blob first, then the event that names it), unless it is said to be volatile: then a
lost machine may take it, and ``runtime.loss`` must know what to do about that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import blake3
import msgspec
import numpy as np
import numpy.typing as npt

from t1actors.events import INLINE_LIMIT_BYTES, AnyEvent, ChatCall, Payload, Tensor, UnknownEvent


class BlobError(Exception):
    """A blob is missing or its bytes do not have the digest that names it. Says which and where."""


class Blobs(Protocol):
    """What payloads need of a blob store (``t1actors.log.blobs``)."""

    def put(self, data: bytes | memoryview, *, volatile: bool = False) -> str:
        """Store ``data``; returns its digest once it is durable. ``volatile``: at once; it survives all but the machine."""
        ...

    def put_many(self, blobs: Sequence[bytes | memoryview]) -> list[str]:
        """``put`` for each, at the price of one flush."""
        ...

    def flush(self) -> None:
        """Make durable what was put volatile, by anybody: to be called before deleting what would be needed without it."""
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


def payload_of(data: bytes | memoryview) -> Payload:
    """``data`` as a payload: inline below 16 KiB, else the name of a blob that is still to be put."""
    inline = bytes(data) if len(data) < INLINE_LIMIT_BYTES else None
    return Payload(digest=digest_of(data), size_bytes=len(data), inline=inline)


def pack(blobs: Blobs, data: bytes, *, volatile: bool = False) -> Payload:
    """``data`` as a payload: inline below 16 KiB, else stored, ``volatile`` or not."""
    if len(data) < INLINE_LIMIT_BYTES:
        return payload_of(data)
    return Payload(digest=blobs.put(data, volatile=volatile), size_bytes=len(data))


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
    """The payloads that the event names, by field: alone, of a tensor, of a chat call, or several in a tuple."""
    if isinstance(event, UnknownEvent):
        return
    for field in msgspec.structs.fields(type(event)):
        value = getattr(event, field.name)
        if isinstance(value, Payload):
            yield field.name, value
        elif isinstance(value, Tensor):
            yield field.name, value.data
        elif isinstance(value, ChatCall):
            yield f"{field.name}.said", value.said
        elif isinstance(value, tuple):
            yield from ((field.name, v) for v in cast("tuple[object, ...]", value) if isinstance(v, Payload))


def pack_array(blobs: Blobs, array: npt.NDArray[np.generic], *, volatile: bool = False) -> Tensor:
    """``array`` (any shape) as a little-endian C-order tensor; a large one is put ``volatile`` or not."""
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return Tensor(dtype=array.dtype.name, shape=array.shape, data=pack(blobs, array.tobytes(), volatile=volatile))


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
