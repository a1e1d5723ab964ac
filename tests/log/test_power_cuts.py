"""No power cut loses what was acknowledged: writers on a disk that keeps any of the sectors that were not flushed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import msgspec
import pytest

from t1actors.log.blobs import FileBlobs
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead
from t1actors.log.interface import JournalFenced
from t1actors.log.lock import Holder
from t1actors.log.segments import written_bytes
from t1actors.payloads import BlobError
from tests.log.sectors import SECTOR, Disk, PowerCut
from tests.log.support import event, frames_of


@pytest.mark.parametrize("death", range(1, 24))
def test_what_a_killed_process_had_not_flushed_its_successor_flushes(tmp_path: Path, death: int):
    """A process is killed at a system call, another goes on over the same page cache; then the power goes."""
    for seed in range(4):
        root = tmp_path / f"{seed}"
        (root / "disk0").mkdir(parents=True)
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(root / "disk0", patch)
            disk.dies_at = death
            try:
                FileBlobs(root / "disk0" / "blobs").put(b"first")
                FileLog(root / "disk0" / "log").open_writer("a").append(CommitHead(), [event([1])])
            except PowerCut:
                pass
            disk.dies_at = 0
            try:
                writer = FileLog(root / "disk0" / "log").open_writer("a")
            except JournalFenced:
                return  # it was not killed: it does not call so often
            writer.append(CommitHead(), [event([2])])
            digest = FileBlobs(root / "disk0" / "blobs").put(b"first")
            disk.crash(root / "disk1", random.Random(seed))
        log = FileLog(root / "disk1" / "log")
        log.open_writer("a").close()
        assert frames_of(log, "a")[-1].events == (event([2]),)
        assert bytes(FileBlobs(root / "disk1" / "blobs").get(digest)) == b"first"


class Storm:
    """One journal through many power cuts: what was acknowledged, and what was tried and may or may not be there."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.draw = random.Random(seed)
        self.directory = root / "disk0"
        self.directory.mkdir()
        self.acknowledged: list[bytes] = []
        self.tried: list[bytes] = []
        self.crashes = 0
        self.with_zeros = 0
        """Crashes that left zeros ahead of the frames."""
        self.value = 0

    def life(self) -> None:
        """Open the journal and append until the power goes, somewhere."""
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(self.directory, patch)
            disk.dies_at = self.draw.randint(1, 60)
            try:
                writer = FileLog(
                    self.directory / "log", segment_bytes=self.draw.choice([1, 900, 20_000, 1 << 20])
                ).open_writer("a")
                self.settle(self.directory)
                while True:
                    self.value += 1
                    events = [
                        event([self.value, n, "x" * self.draw.randint(0, 900)]) for n in range(self.draw.randint(0, 3))
                    ]
                    self.tried = [*self.acknowledged, *events]
                    writer.append(CommitHead(), events)
                    self.acknowledged = self.tried
            except PowerCut:
                self.crashes += 1
            after = self.root / f"disk{self.crashes}"
            disk.crash(after, self.draw)
        shutil.rmtree(self.directory)
        self.directory = after
        self.with_zeros += any(len(data) - written_bytes(data) > SECTOR for data in segments_of(after / "log" / "a"))
        lock = after / "log" / "a" / "lock"
        if lock.exists() and (text := lock.read_bytes().strip(b" \n\0")):
            holder = msgspec.json.decode(text, type=Holder)
            record = msgspec.json.encode(msgspec.structs.replace(holder, boot_id="the boot before"))
            lock.write_bytes(record.ljust(127) + b"\n")

    def check(self) -> None:
        """The journal opens after the power cut."""
        FileLog(self.directory / "log").open_writer("a").close()
        self.settle(self.directory)

    def settle(self, directory: Path) -> None:
        """Of the open journal: everything acknowledged is there, and nothing but what was tried besides."""
        found = [raw for frame in frames_of(FileLog(directory / "log"), "a") for raw in frame.events]
        assert found in (self.acknowledged, self.tried), (self.crashes, len(found), len(self.acknowledged))
        self.acknowledged = self.tried = found


def segments_of(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in directory.glob("*.seg")]


def storm(root: Path, seeds: range, lives: int) -> tuple[int, int]:
    """How many crashes, and how many of them left zeros."""
    crashes = with_zeros = 0
    for seed in seeds:
        (root / str(seed)).mkdir()
        journal = Storm(root / str(seed), seed)
        for _ in range(lives):
            journal.life()
            if journal.draw.random() < 0.7:  # else the next one dies in the middle of recovering this one's end
                journal.check()
        journal.check()
        crashes += journal.crashes
        with_zeros += journal.with_zeros
        shutil.rmtree(root / str(seed))
    return crashes, with_zeros


def test_three_hundred_power_cuts_lose_nothing_acknowledged(tmp_path: Path):
    crashes, with_zeros = storm(tmp_path, range(30), 10)
    assert crashes == 300
    assert with_zeros > 50


@pytest.mark.slow
def test_three_thousand_power_cuts_lose_nothing_acknowledged(tmp_path: Path):
    crashes, with_zeros = storm(tmp_path, range(1000, 1300), 10)
    assert crashes == 3000
    assert with_zeros > 500


def test_a_writer_that_does_not_flush_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The disk above is one that loses something: or its tests could not fail."""
    monkeypatch.setattr(
        "t1actors.log.file_writer.FileJournalWriter._flushes",
        property(lambda self: False, lambda self, value: None),
        raising=False,
    )
    with pytest.raises(Exception) as found:  # noqa: PT011  (any: a lost frame, or a journal that does not open)
        storm(tmp_path, range(20), 10)
    assert not isinstance(found.value, PowerCut)


@pytest.mark.parametrize("again", ["put", "put_many", "flush", ""])
def test_a_volatile_blob_is_durable_once_it_is_put_again_or_all_is_flushed(tmp_path: Path, again: str):
    draw = random.Random(2)
    lost = 0
    for number in range(40):
        root, after = tmp_path / f"{number}", tmp_path / f"{number}-after"
        root.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(root, patch)
            blobs = FileBlobs(root / "blobs")
            data = draw.randbytes(3000)
            digest = blobs.put(data, volatile=True)
            assert bytes(blobs.get(digest)) == data
            if again == "put":
                blobs.put(data)
            elif again == "put_many":
                blobs.put_many([data])
            elif again == "flush":
                blobs.flush()
            disk.crash(after, draw)
        try:
            FileBlobs(after / "blobs").get(digest)
        except BlobError:
            lost += 1
    assert (lost > 10) if not again else (lost == 0)


def test_a_stored_blob_is_there_after_a_power_cut(tmp_path: Path):
    draw = random.Random(1)
    for number in range(60):
        root, after = tmp_path / f"{number}", tmp_path / f"{number}-after"
        root.mkdir()
        stored: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(root, patch)
            disk.dies_at = draw.randint(1, 25)
            blobs = FileBlobs(root / "blobs")
            try:
                while True:
                    stored.append(blobs.put(draw.randbytes(draw.randint(1, 3000))))
            except PowerCut:
                disk.crash(after, draw)
        blobs = FileBlobs(after / "blobs")
        for digest in stored:
            blobs.get(digest)
        for digest in blobs.digests():
            try:
                blobs.get(digest)
            except BlobError:
                pytest.fail("a name that shows half a blob")
