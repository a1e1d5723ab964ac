"""The commit frame: one atomic write that holds what an actor consumed and what it emitted.

On disk and on the wire (little endian, 32 bytes, then the body):

    magic u32 | body length u32 | crc32c u32 | event count u32 | base sequence u64 | epoch u32 | flags u32 | body

The body is a plain MessagePack stream: the commit head, then the events, as many as the count says (none when the
frame only consumes). The one flag, 1, marks the last frame of its segment file, so that a shortened file is noticed.
The checksum covers everything behind it: the rest of the header and the body.

Guarantees: what ``decode_frame`` returns was written by ``encode_frame`` byte for byte, or ``FrameError`` says what
is wrong; encoding is deterministic; no frame is larger than ``MAX_FRAME_BYTES``, header included. What the events
mean is left to others.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from blake3 import blake3
from crc32c import crc32c

from t1actors.log.errors import FrameRefused

MAX_FRAME_BYTES = 512 * 1024
MAGIC = int.from_bytes(b"T1FR", "little")
MAGIC_BYTES = b"T1FR"

_HEADER = struct.Struct("<IIIIQII")
_LEAD = struct.Struct("<III")
_REST = struct.Struct("<IQII")
HEADER_BYTES = _HEADER.size
_FLAG_SEALS = 1
_CHECKSUM_FROM = _LEAD.size


class InputRun(msgspec.Struct, frozen=True, array_like=True):
    """Events ``first`` to ``last`` of ``journal`` were applied in this order; the decision on the *last* one emitted
    ``emitted`` events of this frame (so a run ends wherever something was emitted). When ``journal`` is the frame's
    own, they are the actor's own results in this same frame: folded in order, the last one decided on."""

    journal: str
    first: int
    last: int
    emitted: int = 0


class CommitHead(msgspec.Struct, frozen=True, kw_only=True):
    """``vector`` is transitive: {journal: highest sequence this frame rests on}, its inputs included; the frame's own
    predecessors go without saying. Times are for people: nothing is decided by them. ``previous`` is the digest of the
    journal's frame before this one (``frame_digest``), written by the journal's writer: empty for the first frame, and for
    all frames of a journal that was begun before there was a chain."""

    inputs: tuple[InputRun, ...] = ()
    vector: dict[str, int] = {}
    code: str = ""
    wall_ns: int = 0
    mono_ns: int = 0
    boot_id: str = ""
    previous: bytes = b""


@dataclass(frozen=True, slots=True)
class Frame:
    """A durable frame. Event ``i`` has sequence ``base_sequence + i``."""

    journal: str
    base_sequence: int
    epoch: int
    head: CommitHead
    events: tuple[bytes, ...]

    @property
    def next_sequence(self) -> int:
        """The sequence of the first event after this frame."""
        return self.base_sequence + len(self.events)

    def reaches(self, sequence: int) -> bool:
        """Whether a reader that starts at ``sequence`` gets this frame: it starts there or later, or reaches past
        it."""
        return self.base_sequence >= sequence or self.next_sequence > sequence


class FrameError(Exception):
    """The bytes at a place are not a whole, unharmed frame. The message is the reason alone; callers add the place."""


class Header(NamedTuple):
    """A verified frame's header. ``end`` is the offset behind its body; ``seals``: the last frame of its segment."""

    events: int
    base_sequence: int
    epoch: int
    seals: bool
    end: int

    @property
    def next_sequence(self) -> int:
        return self.base_sequence + self.events


_head_encoder = msgspec.msgpack.Encoder(order="deterministic")
_head_decoder = msgspec.msgpack.Decoder(CommitHead)
_one_value = msgspec.msgpack.Decoder(msgspec.Raw)
_items_decoder = msgspec.msgpack.Decoder(tuple[msgspec.Raw, ...])


def _items(body: bytes | memoryview, count: int) -> tuple[msgspec.Raw, ...]:
    """The stream's items, unparsed. An array header in front turns the stream into one value that msgspec can walk."""
    return _items_decoder.decode(b"".join((b"\xdd", count.to_bytes(4, "big"), body)))


def frame_bytes(head: CommitHead, events_bytes: int) -> int:
    """The size of a frame with this head and events of ``events_bytes`` in all: at most ``MAX_FRAME_BYTES`` is
    allowed."""
    return HEADER_BYTES + len(_head_encoder.encode(head)) + events_bytes


def encode_frame(
    head: CommitHead, events: Sequence[bytes], *, base_sequence: int, epoch: int, seals: bool = False
) -> bytes:
    """The frame's bytes. Raises ``FrameRefused``."""
    body = b"".join((_head_encoder.encode(head), *events))
    if HEADER_BYTES + len(body) > MAX_FRAME_BYTES:
        raise FrameRefused(
            f"a frame of {len(events)} events would be {HEADER_BYTES + len(body):,} bytes; at most {MAX_FRAME_BYTES:,} "
            "are allowed. Commit fewer decisions at once, and keep large payloads in blobs"
        )
    try:
        for event in events:
            _one_value.decode(event)
    except msgspec.DecodeError as error:
        raise FrameRefused(
            f"one of {len(events)} events (base sequence {base_sequence}) is not one MessagePack value ({error})"
        ) from error
    rest = _REST.pack(len(events), base_sequence, epoch, _FLAG_SEALS if seals else 0)
    return b"".join((_LEAD.pack(MAGIC, len(body), crc32c(body, crc32c(rest))), rest, body))


def verify_frame(data: bytes | memoryview, offset: int, limit: int) -> Header:
    """The header of the frame at ``offset``, which must end at or before ``limit``; checksummed. Raises
    ``FrameError``."""
    if limit - offset < HEADER_BYTES:
        raise FrameError(f"{limit - offset} bytes where a frame's header needs {HEADER_BYTES}")
    magic, length, checksum, count, base_sequence, epoch, flags = _HEADER.unpack_from(data, offset)
    if magic != MAGIC:
        raise FrameError("no frame starts here")
    end = offset + HEADER_BYTES + length
    if length > MAX_FRAME_BYTES - HEADER_BYTES or end > limit:
        raise FrameError(f"a frame of {length + HEADER_BYTES:,} bytes where at most {limit - offset:,} follow")
    if crc32c(memoryview(data)[offset + _CHECKSUM_FROM : end]) != checksum:
        raise FrameError("checksum mismatch")
    if flags & ~_FLAG_SEALS:
        raise FrameError(f"flags {flags:#x} are not known to this version")
    return Header(count, base_sequence, epoch, bool(flags & _FLAG_SEALS), end)


def frame_digest(data: bytes | memoryview) -> bytes:
    """The 32 bytes by which the next frame names the frame that is the whole of ``data``. A frame names the one before it, so
    the digest of a journal's last frame stands for all of the journal."""
    return blake3(data).digest()


def frame_length(data: bytes | memoryview, offset: int) -> int:
    """How long the frame at ``offset`` says it is, unverified: only to find its end. At most ``MAX_FRAME_BYTES``;
    raises ``FrameError`` when not even a header is there."""
    if len(data) - offset < HEADER_BYTES:
        raise FrameError(f"{len(data) - offset} bytes where a frame's header needs {HEADER_BYTES}")
    return min(HEADER_BYTES + _HEADER.unpack_from(data, offset)[1], MAX_FRAME_BYTES)


def decode_body(journal: str, data: bytes | memoryview, offset: int, header: Header) -> Frame:
    """The frame at ``offset``, whose ``header`` was verified. Raises ``FrameError``."""
    try:
        items = _items(memoryview(data)[offset + HEADER_BYTES : header.end], 1 + header.events)
        head = _head_decoder.decode(items[0])
    except msgspec.DecodeError as error:
        raise FrameError(f"the body is not a commit head and {header.events} events ({error})") from error
    return Frame(journal, header.base_sequence, header.epoch, head, tuple(map(bytes, items[1:])))


def decode_frame(journal: str, data: bytes | memoryview) -> Frame:
    """The frame that is the whole of ``data``. Raises ``FrameError``."""
    header = verify_frame(data, 0, len(data))
    if header.end != len(data):
        raise FrameError(f"{len(data) - header.end} bytes follow the frame")
    return decode_body(journal, data, 0, header)
