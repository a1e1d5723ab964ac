"""Blobs: named by content, checked when opened."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import blake3
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t1actors.log.blobs import FileBlobs, MemoryBlobs
from t1actors.payloads import BlobError

LARGE = bytes(range(256)) * 8192


@pytest.fixture(params=["memory", "files", "files without flush"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> FileBlobs | MemoryBlobs:
    if request.param == "memory":
        return MemoryBlobs()
    return FileBlobs(tmp_path / "blobs", "machine" if request.param == "files" else "process")


@pytest.mark.parametrize("data", [b"", b"small", LARGE])
def test_what_was_put_is_got_by_the_digest_of_its_bytes(blobs: FileBlobs | MemoryBlobs, data: bytes):
    digest = blobs.put(memoryview(data))
    assert digest == blake3.blake3(data).hexdigest()
    assert blobs.get(digest) == data
    assert blobs.get(digest).readonly
    assert (blobs.has(digest), blobs.size(digest), list(blobs.digests())) == (True, len(data), [digest])
    assert blobs.put(data) == digest


def test_many_are_put_at_once_and_listed_sorted(blobs: FileBlobs | MemoryBlobs):
    many = [b"x%d" % n for n in range(40)] + [LARGE, b"x1"]
    digests = blobs.put_many(many)
    assert [bytes(blobs.get(digest)) for digest in digests] == many
    assert list(blobs.digests()) == sorted(set(digests))
    assert blobs.put_many([]) == []


def test_a_missing_blob_is_named(blobs: FileBlobs | MemoryBlobs):
    digest = blobs.put(b"gone")
    blobs.delete(digest)
    blobs.delete(digest)
    assert not blobs.has(digest)
    for ask in (blobs.get, blobs.size):
        with pytest.raises(BlobError, match=digest[:16]):
            ask(digest)


@pytest.mark.parametrize("name", ["", "ab", "../../etc/passwd", "g" * 64, "A" * 64, "a" * 64 + "\n"])
def test_a_name_that_is_no_digest_is_refused(blobs: FileBlobs | MemoryBlobs, name: str):
    for ask in (blobs.get, blobs.has, blobs.delete):
        with pytest.raises(BlobError, match="does not name a blob"):
            ask(name)


@pytest.mark.parametrize("data", [b"small", LARGE])
@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "longer"])
def test_a_damaged_blob_is_named_with_its_file_and_mended_by_putting_it_again(tmp_path: Path, data: bytes, harm: str):
    digest = FileBlobs(tmp_path).put(data)
    path = tmp_path / digest[:2] / digest
    harmed = {"flip": bytes([data[0] ^ 1]) + data[1:], "cut": data[:-1], "empty": b"", "longer": data + b"\0"}[harm]
    path.write_bytes(harmed)
    blobs = FileBlobs(tmp_path)
    with pytest.raises(BlobError) as caught:
        blobs.get(digest)
    assert str(path) in str(caught.value)
    assert "damaged" in str(caught.value)
    assert blobs.put(data) == digest
    assert blobs.get(digest) == data
    path.write_bytes(harmed)
    assert FileBlobs(tmp_path).put_many([data]) == [digest]
    assert FileBlobs(tmp_path).get(digest) == data


def test_a_blob_changed_after_it_was_verified_is_verified_again(tmp_path: Path):
    blobs = FileBlobs(tmp_path)
    digest = blobs.put(b"as it was")
    assert blobs.get(digest) == b"as it was"
    blobs.path(digest).write_bytes(b"otherwise")
    os.utime(blobs.path(digest), ns=(1, 1))
    with pytest.raises(BlobError, match="damaged"):
        blobs.get(digest)


def test_many_large_blobs_in_use_do_not_need_a_descriptor_each_when_small(tmp_path: Path):
    blobs = FileBlobs(tmp_path, "process")
    gc.collect()  # what other tests left mapped
    before = len(os.listdir("/proc/self/fd"))
    views = [blobs.get(digest) for digest in blobs.put_many([os.urandom(20_000) for _ in range(50)])]
    assert len(os.listdir("/proc/self/fd")) <= before
    assert len(views) == 50


def test_a_blob_in_use_stays_readable_after_it_is_deleted(tmp_path: Path):
    blobs = FileBlobs(tmp_path)
    view = blobs.get(blobs.put(LARGE))
    blobs.delete(blake3.blake3(LARGE).hexdigest())
    assert view == LARGE


def test_what_a_killed_writer_left_half_written_is_no_blob(tmp_path: Path):
    blobs = FileBlobs(tmp_path)
    digest = blobs.put(b"whole")
    (tmp_path / digest[:2] / f".{digest}.0123456789abcdef").write_bytes(b"ha")
    assert list(blobs.digests()) == [digest]


def test_a_blob_is_flushed_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    blobs = FileBlobs(tmp_path)
    steps: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        steps.append("flush directory" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "flush file")
        real_fsync(descriptor)

    def rename(source: Path, target: Path) -> None:
        steps.append("rename")
        real_rename(source, target)

    blobs.put(b"other")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    digest = blobs.put(b"data")
    named = steps.index("rename")
    assert steps[named - 1 : named + 2] == ["flush file", "rename", "flush directory"]
    steps.clear()
    assert blobs.put(b"data") == digest
    assert steps == ["flush file", "flush directory"]  # it may have been put volatile


def test_a_store_that_cannot_be_written_says_which_blob_and_where(tmp_path: Path):
    (tmp_path / "blobs").write_text("not a directory")
    with pytest.raises(BlobError, match="could not be stored"):
        FileBlobs(tmp_path / "blobs").put(b"data")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=200), max_size=8))
def test_any_bytes_come_back(tmp_path: Path, many: list[bytes]):
    blobs = FileBlobs(tmp_path, "process")
    for digest, data in zip(blobs.put_many(many), many, strict=True):
        assert FileBlobs(tmp_path).get(digest) == data
