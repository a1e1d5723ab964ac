"""How a record is stored: what chunks and trials share is there once, and nothing that is missing is made up."""

from __future__ import annotations

import msgpack
import msgspec
import numpy as np
import pytest

from t1actors.log.blobs import FileBlobs, MemoryBlobs
from t1actors.payloads import BlobError, Payload, digest_of, payload_of
from t1actors.tito.record import Geometry, RecordError, TokenSpan, TrajectoryRecord, check, chunk_of
from t1actors.tito.stored import PAGE_ROWS, decode, digest, load, pages_in, store

GEOMETRY = Geometry(layers=8, top_k=4, experts=64)
"""32 KiB a page: a blob. 600 rows more are one, too; 100 are not."""


def rows(count: int, seed: int, experts: int = 64) -> np.ndarray:
    draw = np.random.default_rng(seed).random((count, GEOMETRY.layers, experts))
    return draw.argsort(axis=-1)[..., : GEOMETRY.top_k]


def record(*chunks: np.ndarray, trial: str = "s0.t0", geometry: Geometry = GEOMETRY) -> TrajectoryRecord:
    """Of chunks with this routing."""
    return TrajectoryRecord(
        trial=trial,
        index=0,
        task="t",
        temperature=1.0,
        chunks=tuple(
            chunk_of(
                ids_N=np.arange(len(routing) + 1, dtype=np.int32),
                mask_N=np.array([0] + [1] * len(routing), dtype=np.uint8),
                logprobs_N=np.array([0.0] + [-0.5] * len(routing), dtype=np.float32),
                routing_RLK=routing,
                versions=(TokenSpan(version="v", start=1, end=len(routing) + 1),),
                turns=((1, len(routing) + 1),),
                geometry=geometry,
            )
            for routing in chunks
        ),
    )


SHARED = rows(2 * PAGE_ROWS, 1)


def with_prefix(more: int, seed: int) -> np.ndarray:
    return np.concatenate([SHARED, rows(more, seed)])


def plain(payload: Payload, blobs: MemoryBlobs) -> dict:
    return msgpack.unpackb(bytes(blobs.get(payload.digest)))


@pytest.mark.parametrize(
    "length", [1, 100, PAGE_ROWS - 1, PAGE_ROWS, PAGE_ROWS + 1, 2 * PAGE_ROWS, 2 * PAGE_ROWS + 600]
)
def test_a_record_comes_back_as_it_was_with_any_number_of_rows(length):
    blobs = MemoryBlobs()
    made = record(with_prefix(600, 2)[:length], rows(3, 3))
    stored = store(made, blobs)
    back = load(blobs, stored.record)
    assert back == made
    check(back, GEOMETRY)
    assert digest(back) == digest(made) == stored.record.digest


def test_chunks_and_trials_that_begin_alike_store_their_first_pages_once():
    blobs = MemoryBlobs()
    one = store(record(with_prefix(600, 2), with_prefix(700, 3)), blobs)
    two = store(record(with_prefix(800, 4), trial="s0.t1"), blobs)
    assert len(one.pages) == 2 + 1 + 1
    assert len(two.pages) == 2 + 1
    assert len({page.digest for page in (*one.pages, *two.pages)}) == 2 + 3
    assert len(list(blobs.digests())) == 2 + 3 + 2


def test_an_event_names_every_blob_that_its_record_rests_on_and_no_bytes():
    blobs = MemoryBlobs()
    stored = store(record(with_prefix(100, 2)), blobs)
    assert pages_in(blobs.get(stored.record.digest)) == stored.pages
    assert all(page.inline is None for page in stored.pages)
    assert {*blobs.digests()} == {stored.record.digest, *(page.digest for page in stored.pages)}
    inside = plain(stored.record, blobs)["chunks"][0]["pages"]
    assert [page["inline"] is None for page in inside] == [True, True, False]


def test_all_of_a_record_is_durable_after_one_flush(tmp_path, monkeypatch):
    flushes = []
    monkeypatch.setattr("t1actors.log.blobs._syncfs", lambda descriptor: flushes.append("all"))
    monkeypatch.setattr("os.fsync", lambda descriptor: flushes.append("one"))
    blobs = FileBlobs(tmp_path)
    stored = store(record(with_prefix(600, 2)), blobs)
    assert flushes.count("all") == 1
    assert "one" not in flushes[flushes.index("all") :]
    assert load(blobs, stored.record) == record(with_prefix(600, 2))


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_page_that_is_missing_or_damaged_is_named_and_not_filled_in(tmp_path, damage):
    blobs = FileBlobs(tmp_path, "process")
    stored = store(record(rows(3, 9), with_prefix(600, 2)), blobs)
    page = blobs.path(stored.pages[1].digest)
    page.unlink() if damage == "missing" else page.write_bytes(bytes(stored.pages[1].size_bytes))
    with pytest.raises(BlobError, match=rf"trial s0.t0, chunk 1, routing from row 1,024: .*{damage}"):
        load(blobs, stored.record)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda chunk: chunk["pages"].pop(), "2 pages of routing, 2648 rows take 3"),
        (
            lambda chunk: chunk["pages"].reverse(),
            r"from row 0: a page of 19200 bytes where uint8\[2648, 8, 4\] takes 32768",
        ),
        (lambda chunk: chunk.update(routing_shape=[2648, 8, 2]), "a page of 32768 bytes where .* takes 16384"),
        (lambda chunk: chunk.update(routing_dtype="uint16"), "a page of 32768 bytes where .* takes 65536"),
        (lambda chunk: chunk.update(routing_dtype="float32"), "only shapes of uint8 and uint16"),
        (lambda chunk: chunk.update(routing_shape=[-1, 8, 4]), "only shapes of uint8 and uint16"),
    ],
)
def test_pages_that_are_not_what_the_chunk_states_are_refused(change, message):
    blobs = MemoryBlobs()
    raw = plain(store(record(with_prefix(600, 2)), blobs).record, blobs)
    change(raw["chunks"][0])
    with pytest.raises(RecordError, match=message):
        decode(msgpack.packb(raw), blobs)


def test_wide_expert_ids_keep_their_two_bytes():
    wide = Geometry(layers=8, top_k=4, experts=512)
    blobs = MemoryBlobs()
    made = record(rows(PAGE_ROWS + 5, 4, experts=512), geometry=wide)
    stored = store(made, blobs)
    assert [page.size_bytes for page in stored.pages] == [PAGE_ROWS * 8 * 4 * 2]
    check(load(blobs, stored.record), wide)


def test_a_record_of_version_1_is_read_and_keeps_its_name():
    made = msgspec.structs.replace(record(with_prefix(600, 2)), v=1)
    raw = msgspec.msgpack.encode(made)  # as version 1 was written
    assert msgpack.unpackb(raw)["chunks"][0]["routing"] == made.chunks[0].routing
    assert decode(raw, MemoryBlobs()) == made
    assert digest(made) == digest_of(raw)
    assert pages_in(raw) == ()
    stored = store(made, MemoryBlobs())
    assert (stored.record, stored.pages) == (payload_of(raw), ())


def test_a_record_of_a_later_version_says_so():
    blobs = MemoryBlobs()
    raw = plain(store(record(with_prefix(0, 0)), blobs).record, blobs)
    with pytest.raises(RecordError, match="version 3"):
        decode(msgpack.packb(raw | {"v": 3}), blobs)


def test_a_record_whose_routing_is_not_what_it_states_is_not_stored():
    made = record(rows(5, 1))
    chunk = msgspec.structs.replace(made.chunks[0], routing=made.chunks[0].routing[1:])
    with pytest.raises(RecordError, match="routing has 159 bytes"):
        store(msgspec.structs.replace(made, chunks=(chunk,)), MemoryBlobs())
