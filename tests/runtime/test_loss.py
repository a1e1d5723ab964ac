"""What a start does about a machine that was lost: all that is durable is readable before anybody reads it."""

from pathlib import Path

import msgspec
import pytest

from t1actors.log.blobs import FileBlobs
from t1actors.log.check import check_journals
from t1actors.log.errors import JournalDamaged
from t1actors.log.filelog import FileLog
from t1actors.log.interface import CommitHead
from t1actors.log.lock import Holder, last_holder
from t1actors.log.segments import START, end_path, list_segments, segment_path
from t1actors.runtime.clock import system_clock
from t1actors.runtime.loss import settle_after_loss
from tests.log.support import event, frames_of

BOOT = system_clock().boot_id


def write(run_dir: Path, *, segment_bytes: int = 1 << 20) -> FileLog:
    """Journal ``b`` rests on all of journal ``a``."""
    log = FileLog(run_dir / "log", segment_bytes=segment_bytes)
    a, b = log.open_writer("a"), log.open_writer("b")
    for n in range(5):
        a.append(CommitHead(), [event([n])])
        b.append(CommitHead(vector={"a": n}), [event([n])])
    a.close()
    b.close()
    return log


def lose_power(log: FileLog) -> None:
    """The machine has booted since; no durable end was ever flushed."""
    for name in log.journals():
        directory = log.directory(name)
        holder = last_holder(directory)
        (directory / "lock").write_bytes(msgspec.json.encode(Holder(holder.epoch, holder.pid, "before")))
        end_path(directory).write_bytes(START.encoded())


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_durable_ends_that_lag_after_a_power_cut_are_put_right_before_anybody_reads(tmp_path: Path, segment_bytes: int):
    log = write(tmp_path, segment_bytes=segment_bytes)
    whole = {name: frames_of(log, name) for name in "ab"}
    lose_power(log)
    assert frames_of(log, "a") == []
    settle_after_loss(tmp_path, BOOT, "machine")
    assert {name: frames_of(log, name) for name in "ab"} == whole
    assert check_journals(log).problems == []


def test_journals_of_this_boot_are_left_as_they_are(tmp_path: Path):
    log = write(tmp_path)
    epochs = {name: last_holder(log.directory(name)).epoch for name in "ab"}
    for durability in ("machine", "process"):
        settle_after_loss(tmp_path, BOOT, durability)
    assert {name: last_holder(log.directory(name)).epoch for name in "ab"} == epochs


def test_what_another_journal_rests_on_is_missed_although_that_ones_durable_end_lags(tmp_path: Path):
    log = write(tmp_path)
    path = segment_path(log.directory("a"), 0)
    path.write_bytes(path.read_bytes()[:-70])
    lose_power(log)
    with pytest.raises(JournalDamaged, match="journal b has read up to sequence 4"):
        settle_after_loss(tmp_path, BOOT, "machine")


def test_where_nothing_was_flushed_journals_are_cut_and_damaged_blobs_set_aside(tmp_path: Path):
    log = write(tmp_path)
    blobs = FileBlobs(tmp_path / "blobs")
    good, bad = blobs.put(b"good"), blobs.put(b"bad")
    blobs.path(bad).write_bytes(b"")
    path = segment_path(log.directory("a"), list_segments(log.directory("a"))[-1])
    path.write_bytes(path.read_bytes()[:-70])
    lose_power(log)
    settle_after_loss(tmp_path, BOOT, "process")
    assert len(frames_of(log, "a")) < 5
    assert len(frames_of(log, "b")) == len(frames_of(log, "a"))
    assert list(FileBlobs(tmp_path / "blobs").digests()) == [good]
