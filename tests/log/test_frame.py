"""The frame's bytes."""

from __future__ import annotations

import struct

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from t1actors.log.frame import (
    HEADER_BYTES,
    CommitHead,
    Frame,
    FrameError,
    InputRun,
    decode_frame,
    encode_frame,
    verify_frame,
)
from tests.log.support import event

HEAD = CommitHead(
    inputs=(InputRun("pool", 3, 5, 2), InputRun("me", 41, 41)),
    vector={"pool": 5, "a": 1},
    code="abc",
    wall_ns=1,
    mono_ns=2,
    boot_id="b",
)

SEQUENCES = st.integers(min_value=0, max_value=2**63 - 1)
NAMES = st.text(min_size=1, max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
HEADS = st.builds(
    CommitHead,
    inputs=st.lists(st.builds(InputRun, NAMES, SEQUENCES, SEQUENCES, st.integers(0, 1000)), max_size=4).map(tuple),
    vector=st.dictionaries(NAMES, SEQUENCES, max_size=4),
    code=st.text(max_size=10),
    wall_ns=SEQUENCES,
    mono_ns=SEQUENCES,
    boot_id=st.text(max_size=10),
)


@settings(max_examples=200, deadline=None)
@given(HEADS, st.lists(VALUES, max_size=6), SEQUENCES, st.integers(0, 2**32 - 1), st.booleans())
def test_any_frame_decodes_to_what_was_encoded(
    head: CommitHead, values: list[object], base: int, epoch: int, seals: bool
):
    events = [event(value) for value in values]
    data = encode_frame(head, events, base_sequence=base, epoch=epoch, seals=seals)
    assert decode_frame("a", data) == Frame("a", base, epoch, head, tuple(events))
    header = verify_frame(data, 0, len(data))
    assert (header.seals, header.end, header.events) == (seals, len(data), len(events))


@settings(max_examples=100, deadline=None)
@given(st.lists(VALUES, max_size=6))
def test_msgpack_reads_a_body_as_a_plain_stream(values: list[object]):
    events = [event(value) for value in values]
    body = encode_frame(HEAD, events, base_sequence=0, epoch=1)[HEADER_BYTES:]
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
    unpacker.feed(body)
    head, *decoded = list(unpacker)
    assert head["inputs"] == [["pool", 3, 5, 2], ["me", 41, 41, 0]]
    assert head["vector"] == {"pool": 5, "a": 1}
    assert (head["code"], head["wall_ns"], head["mono_ns"], head["boot_id"]) == ("abc", 1, 2, "b")
    assert decoded == [msgspec.msgpack.decode(raw) for raw in events]


def test_every_flipped_bit_of_a_frame_is_noticed():
    data = encode_frame(HEAD, [event(1), event("two")], base_sequence=41, epoch=7)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            decode_frame("a", bytes(flipped))


def test_every_cut_of_a_frame_is_noticed():
    data = encode_frame(HEAD, [event(1)], base_sequence=0, epoch=1)
    for length in range(len(data)):
        with pytest.raises(FrameError):
            decode_frame("a", data[:length])
    with pytest.raises(FrameError, match="1 bytes follow"):
        decode_frame("a", data + b"\0")


def test_encoding_does_not_depend_on_the_order_a_vector_was_built_in():
    one = encode_frame(CommitHead(vector={"a": 1, "b": 2}), [], base_sequence=0, epoch=1)
    assert one == encode_frame(CommitHead(vector={"b": 2, "a": 1}), [], base_sequence=0, epoch=1)


def test_the_header_is_laid_out_as_documented():
    data = encode_frame(HEAD, [event(1), event(2)], base_sequence=41, epoch=7, seals=True)
    magic, length, _checksum, count, base, epoch, flags = struct.unpack_from("<4sIIIQII", data)
    assert (magic, length, count, base, epoch, flags) == (b"T1FR", len(data) - 32, 2, 41, 7, 1)


def test_a_head_from_a_newer_version_is_read_by_ignoring_what_is_new():
    class NewerRun(msgspec.Struct, frozen=True, array_like=True):
        journal: str
        first: int
        last: int
        emitted: int
        more: str

    class NewerHead(msgspec.Struct, frozen=True, kw_only=True):
        inputs: tuple[NewerRun, ...]
        vector: dict[str, int]
        later: list[int]

    newer = msgspec.msgpack.encode(NewerHead(inputs=(NewerRun("a", 1, 2, 3, "?"),), vector={"a": 2}, later=[1]))
    read = msgspec.msgpack.decode(newer, type=CommitHead)
    assert read == CommitHead(inputs=(InputRun("a", 1, 2, 3),), vector={"a": 2})


FIRST_VERSION = (
    "543146527c000000d1d43422020000002900000000000000070000000000000086a6696e707574739294a4706f6f6c03"
    "050294a26d65292900a6766563746f7282a16101a4706f6f6c05a4636f6465a3616263a777616c6c5f6e7301a76d6f6e"
    "6f5f6e7302a7626f6f745f6964a16282a46b696e64a7436f756e746564a576616c75650182a46b696e64a7436f756e74"
    "6564a576616c7565a374776f"
)
"""Before frames named the one before them."""

SECOND_VERSION = (
    "54314652a7000000fb25a742020000002900000000000000070000000000000087a6696e707574739294a4706f6f6c03"
    "050294a26d65292900a6766563746f7282a16101a4706f6f6c05a4636f6465a3616263a777616c6c5f6e7301a76d6f6e"
    "6f5f6e7302a7626f6f745f6964a162a870726576696f7573c420000102030405060708090a0b0c0d0e0f101112131415"
    "161718191a1b1c1d1e1f82a46b696e64a7436f756e746564a576616c75650182a46b696e64a7436f756e746564a57661"
    "6c7565a374776f"
)


def test_a_frame_of_the_first_version_is_read():
    frame = decode_frame("a", bytes.fromhex(FIRST_VERSION))
    assert (frame.head, frame.events) == (HEAD, (event(1), event("two")))
    assert (frame.base_sequence, frame.epoch) == (41, 7)


def test_the_bytes_of_a_frame_are_those_of_the_second_version():
    head = structs.replace(HEAD, previous=bytes(range(32)))
    assert encode_frame(head, [event(1), event("two")], base_sequence=41, epoch=7).hex() == SECOND_VERSION
