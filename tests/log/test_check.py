"""The structural check finds what is wrong and says where."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from t1actors.log.blobs import FileBlobs
from t1actors.log.check import check_blobs, check_journals
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead, InputRun
from t1actors.log.segments import end_path, segment_path
from tests.log.support import consuming, event, read_position


def written(root: Path, appends: list[tuple[str, CommitHead, int]], *, segment_bytes: int = 1 << 20) -> FileLog:
    log = FileLog(root, "process", segment_bytes=segment_bytes)
    writers = {name: log.open_writer(name) for name in sorted({name for name, _, _ in appends})}
    for name, head, count in appends:
        writers[name].append(head, [event(n) for n in range(count)])
    for writer in writers.values():
        writer.close()
    return log


SOUND: list[tuple[str, CommitHead, int]] = [
    ("a", CommitHead(), 3),
    ("b", consuming("a", 0, 1, 2), 2),
    ("b", consuming("a", 2, 2), 0),
    ("c", consuming("b", 0, 1, 1, a=1), 1),
    ("a", consuming("c", 0, 0, 2, a=2, b=1), 2),
    ("b", CommitHead(inputs=(InputRun("b", 2, 3, 1),), vector={"a": 2}), 3),
]


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_a_sound_log_has_no_problems(tmp_path: Path, segment_bytes: int):
    assert check_journals(written(tmp_path, SOUND, segment_bytes=segment_bytes)).problems == []


def test_a_log_that_is_not_there_has_no_problems(tmp_path: Path):
    assert check_journals(FileLog(tmp_path / "none")).problems == []
    assert check_blobs(FileBlobs(tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("append", "message"),
    [
        (("b", consuming("a", 4, 4, c=0), 0), "sequence 3 of a was to be applied next"),
        (("b", consuming("a", 2, 3, c=0), 0), "sequence 3 of a was to be applied next"),
        (("b", consuming("a", 4, 3), 0), "is impossible"),
        (
            ("b", CommitHead(inputs=(InputRun("a", 3, 3),), vector={"a": 2, "c": 0}), 0),
            "not covered by the frame's vector",
        ),
        (("b", CommitHead(inputs=(InputRun("b", 1, 1),), vector={"a": 2}), 2), "own results outside this frame"),
        (("b", consuming("a", 3, 3, 2, c=0), 1), "claim more emitted events"),
        (("b", CommitHead(vector={"a": 1}), 1), "rests on less of a"),
        (("b", CommitHead(), 1), "rests on less of a"),
        (("b", consuming("a", 3, 5, c=0), 1), "rests on sequence 5 of a, which does not hold it"),
        (("b", CommitHead(vector={"a": 2, "ghost": 0}), 1), "rests on journal ghost, which is not there"),
        (("b", consuming("a", 3, 4), 1), "rests on a but not on what that rests on: c up to 0"),
    ],
)
def test_a_frame_that_breaks_a_rule_is_named_with_its_place(
    tmp_path: Path, append: tuple[str, CommitHead, int], message: str
):
    log = written(tmp_path, SOUND)
    place = read_position(log.directory("b"))
    writer = log.open_writer("b")
    writer.append(append[1], [event(n) for n in range(append[2])])
    writer.close()
    problems = check_journals(log).problems
    assert [(problem.journal, problem.segment, problem.offset) for problem in problems] == [("b", *place)]
    assert message in problems[0].message


def test_a_flipped_byte_is_one_problem_at_its_frame_and_others_are_still_checked(tmp_path: Path):
    """One, however many frames of others rest on what lies behind it: a list of those would hide where the damage is."""
    log = written(tmp_path, [*SOUND, ("b", CommitHead(), 1)])
    path = segment_path(log.directory("c"), 0)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    other, damage = check_journals(log).problems
    assert (other.journal, "rests on less of a" in other.message) == ("b", True)
    assert (damage.journal, damage.segment, damage.offset) == ("c", 0, 0)
    assert "checksum mismatch" in damage.message


def test_frames_without_a_durable_end_are_a_problem(tmp_path: Path):
    log = written(tmp_path, SOUND[:1])
    end_path(log.directory("a")).unlink()
    assert [(problem.journal, "durable end" in problem.message) for problem in check_journals(log).problems] == [
        ("a", True)
    ]


def test_a_journal_that_lost_its_tail_is_missed_by_who_read_it(tmp_path: Path):
    log = written(tmp_path, SOUND)
    lone = written(tmp_path / "lone", SOUND[:1])
    shutil.rmtree(log.directory("a"))
    shutil.copytree(lone.directory("a"), log.directory("a"))
    assert check_journals(log).problems == []
    shutil.rmtree(log.directory("a"))
    log.open_writer("a").close()
    assert {problem.journal for problem in check_journals(log).problems} == {"b", "c"}


def test_a_damaged_blob_is_a_problem_that_names_its_file(tmp_path: Path):
    blobs = FileBlobs(tmp_path)
    good, bad = blobs.put_many([b"good", b"bad"])
    blobs.path(bad).write_bytes(b"BAD")
    (problem,) = check_blobs(blobs)
    assert str(blobs.path(bad)) in problem.message
    assert str(blobs.path(good)) not in problem.message
