"""A run that the first version of the log wrote: without a chain, in segments without seals. It reads, replays and goes on.

Made by ``tests.replay.synthetic_run.write_run`` of that version, with segments of 8 KiB.
"""

import tarfile
from pathlib import Path

import pytest

from t1actors.log.blobs import FileBlobs
from t1actors.log.check import check_blobs, check_journals
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead
from t1actors.log.seal import read_seal
from t1actors.log.segments import list_segments
from t1actors.replay.run import Replayer
from tests.log.support import event, frames_of

GOLDEN = Path(__file__).parents[1] / "golden" / "run-v1.tar.xz"


@pytest.fixture
def run(tmp_path):
    with tarfile.open(GOLDEN) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / "run-v1"


def test_it_is_whole(run):
    assert check_journals(FileLog(run / "log")).problems == []
    assert check_blobs(FileBlobs(run / "blobs")) == []


def test_it_replays_bit_for_bit(run):
    reports = list(Replayer.open(run).all())
    assert [report.step for report in reports] == list(range(8))
    assert all(report.bit_exact for report in reports), [report.text() for report in reports]


def test_its_journals_go_on_with_a_chain_and_get_their_seals(run):
    log = FileLog(run / "log", "process", segment_bytes=8192)
    for name in log.journals():
        before = frames_of(log, name)
        assert not any(frame.head.previous for frame in before)
        writer = log.open_writer(name)
        writer.append(CommitHead(), [event("today")])
        writer.append(CommitHead(), [event("today")])
        writer.close()
        after = frames_of(log, name)
        assert after[: len(before)] == before
        assert all(frame.head.previous for frame in after[len(before) :])
        directory = log.directory(name)
        assert all(read_seal(directory, segment) is not None for segment in list_segments(directory)[:-1])
