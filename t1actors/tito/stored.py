"""A record as it is stored: MessagePack, with each chunk's routing in pages of 1,024 rows that are payloads of their own.

Routing is nearly all of a record, and a row is a function of the tokens up to its own: chunks and trials that begin alike
have the same first pages, and those are stored once.

Guarantees:
- The stored bytes are a function of the record's values and of ``v`` alone; their digest names the trajectory, and through
  the pages' digests all of its routing.
- A page holds rows [n * 1024, (n + 1) * 1024) of its chunk, the last one what is left; dtype and shape are stated in the
  chunk, and a page of another size is refused. A missing or damaged page is an error that names it; nothing is filled in.
- ``store`` returns when all is durable, after one flush.
- ``v`` 1, where the routing lies in the chunk, is read, and keeps its name.

The page size and the limit below which a page lies in the record are part of the form: another one is another ``v``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from t1actors.events import Payload
from t1actors.payloads import BlobError, Blobs, digest_of, payload_of, unpack
from t1actors.tito.record import Chunk, RecordError, TokenSpan, TrajectoryRecord

PAGE_ROWS = 1024


class StoredChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A ``record.Chunk`` with the pages of its routing."""

    ids: bytes
    mask: bytes
    logprobs: bytes
    pages: tuple[Payload, ...]
    routing_dtype: str
    routing_shape: tuple[int, int, int]
    versions: tuple[TokenSpan, ...]
    turns: tuple[tuple[int, int], ...]


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True, tag="TrajectoryRecord", tag_field="kind"):
    """A ``record.TrajectoryRecord`` as ``v`` 2 stores it."""

    v: int = 2
    trial: str
    index: int
    task: str
    temperature: float
    chunks: tuple[StoredChunk, ...]


class _Version(msgspec.Struct, tag="TrajectoryRecord", tag_field="kind"):
    v: int


@dataclass(frozen=True)
class Stored:
    """What an event says of a stored record: ``pages`` are those of its payloads that are blobs, each once."""

    record: Payload
    pages: tuple[Payload, ...]


_encoder = msgspec.msgpack.Encoder()
_version = msgspec.msgpack.Decoder(_Version)
_decoders = {1: msgspec.msgpack.Decoder(TrajectoryRecord), 2: msgspec.msgpack.Decoder(StoredRecord)}


def store(record: TrajectoryRecord, blobs: Blobs) -> Stored:
    """Store ``record``. Raises ``BlobError``, ``RecordError``."""
    large: dict[str, tuple[Payload, memoryview]] = {}
    raw = _encode(record, large)
    payload = payload_of(raw)
    puts: list[bytes | memoryview] = [data for _, data in large.values()]
    if payload.inline is None:
        puts.append(raw)
    if puts:
        blobs.put_many(puts)
    return Stored(payload, tuple(page for page, _ in large.values()))


def load(blobs: Blobs, payload: Payload) -> TrajectoryRecord:
    """The record that ``store`` stored; check it before use. Raises ``BlobError``, ``RecordError``."""
    return decode(unpack(blobs, payload), blobs)


def decode(raw: bytes | memoryview, blobs: Blobs) -> TrajectoryRecord:
    """The record in ``raw``, its pages from ``blobs``. As ``load``."""
    stored = _decode(raw)
    if isinstance(stored, TrajectoryRecord):
        return stored
    chunks = tuple(_chunk(blobs, f"trial {stored.trial}, chunk {n}", chunk) for n, chunk in enumerate(stored.chunks))
    return TrajectoryRecord(
        v=stored.v,
        trial=stored.trial,
        index=stored.index,
        task=stored.task,
        temperature=stored.temperature,
        chunks=chunks,
    )


def pages_in(raw: bytes | memoryview) -> tuple[Payload, ...]:
    """The pages of a stored record that are blobs, each once. Raises ``RecordError``."""
    stored = _decode(raw)
    if isinstance(stored, TrajectoryRecord):
        return ()
    pages = (page for chunk in stored.chunks for page in chunk.pages if page.inline is None)
    return tuple({page.digest: page for page in pages}.values())


def digest(record: TrajectoryRecord) -> str:
    """blake3 of the stored record: the trajectory's name."""
    return digest_of(_encode(record, {}))


def _encode(record: TrajectoryRecord, large: dict[str, tuple[Payload, memoryview]]) -> bytes:
    """The record's bytes; pages that are blobs are added to ``large``."""
    if record.v == 1:
        return _encoder.encode(record)
    if record.v != 2:
        raise RecordError(f"trial {record.trial}: records are stored as version 1 or 2, not {record.v}")
    stored = StoredRecord(
        trial=record.trial,
        index=record.index,
        task=record.task,
        temperature=record.temperature,
        chunks=tuple(_stored(chunk, large) for chunk in record.chunks),
    )
    return _encoder.encode(stored)


def _stored(chunk: Chunk, large: dict[str, tuple[Payload, memoryview]]) -> StoredChunk:
    chunk.arrays()  # refuses a length that is not the stated shape's
    routing, pages = memoryview(chunk.routing), list[Payload]()
    for start, end in _pages_of(chunk.routing_dtype, chunk.routing_shape):
        page = payload_of(routing[start:end])
        pages.append(page)
        if page.inline is None:
            large[page.digest] = page, routing[start:end]
    return StoredChunk(
        ids=chunk.ids,
        mask=chunk.mask,
        logprobs=chunk.logprobs,
        pages=tuple(pages),
        routing_dtype=chunk.routing_dtype,
        routing_shape=chunk.routing_shape,
        versions=chunk.versions,
        turns=chunk.turns,
    )


def _chunk(blobs: Blobs, where: str, stored: StoredChunk) -> Chunk:
    if stored.routing_dtype not in ("uint8", "uint16") or min(stored.routing_shape) < 0:
        shape = f"{stored.routing_dtype}{list(stored.routing_shape)}"
        raise RecordError(f"{where}: routing of {shape}; only shapes of uint8 and uint16 are recorded")
    places = list(_pages_of(stored.routing_dtype, stored.routing_shape))
    if len(places) != len(stored.pages):
        raise RecordError(
            f"{where}: {len(stored.pages)} pages of routing, {stored.routing_shape[0]} rows take {len(places)}"
        )
    parts: list[bytes | memoryview] = []
    for number, ((start, end), page) in enumerate(zip(places, stored.pages, strict=True)):
        what = f"{where}, routing from row {number * PAGE_ROWS:,}"
        if page.size_bytes != end - start:
            shape = f"{stored.routing_dtype}{list(stored.routing_shape)}"
            raise RecordError(f"{what}: a page of {page.size_bytes} bytes where {shape} takes {end - start}")
        try:
            parts.append(unpack(blobs, page))
        except BlobError as error:
            raise BlobError(f"{what}: {error}") from error
    return Chunk(
        ids=stored.ids,
        mask=stored.mask,
        logprobs=stored.logprobs,
        routing=b"".join(parts),
        routing_dtype=stored.routing_dtype,
        routing_shape=stored.routing_shape,
        versions=stored.versions,
        turns=stored.turns,
    )


def _pages_of(dtype: str, shape: tuple[int, int, int]) -> Iterator[tuple[int, int]]:
    """Bytes [start, end) of each page."""
    rows, layers, top_k = shape
    row_bytes = layers * top_k * np.dtype(dtype).itemsize
    for first in range(0, rows, PAGE_ROWS):
        yield first * row_bytes, min(first + PAGE_ROWS, rows) * row_bytes


def _decode(raw: bytes | memoryview) -> TrajectoryRecord | StoredRecord:
    try:
        version = _version.decode(raw).v
        if version not in _decoders:
            raise RecordError(
                f"a trajectory record of version {version}; another version of t1actors wrote it: use that one"
            )
        return _decoders[version].decode(raw)
    except msgspec.MsgspecError as error:
        raise RecordError(f"not a trajectory record: {error}") from error
