"""Sealed segments: their hash, their index, and the digest that stands for all of a run."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.log.check import Problem, check_journals, run_digest
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead, encode_frame
from t1actors.log.interface import JournalDamaged
from t1actors.log.seal import Seal, read_seal, seal_path
from t1actors.log.segments import list_segments, segment_path
from tests.log.support import event, read_all, write_sample

COUNTS = (2, 0, 3, 1, 0, 0, 5, 1, 1, 2)


def seals(directory: Path) -> dict[int, bytes]:
    return {
        n: seal_path(directory, n).read_bytes() for n in list_segments(directory) if seal_path(directory, n).exists()
    }


def problems(root: Path) -> list[Problem]:
    """But for journal b, on which the sample rests and which is not there."""
    return [problem for problem in check_journals(FileLog(root)).problems if "journal b" not in problem.message]


def test_every_sealed_segment_has_its_hash_and_its_sequences_beside_it(tmp_path: Path):
    sample = write_sample(tmp_path, COUNTS, segment_bytes=1)
    segments = list_segments(sample.directory)
    assert len(segments) > 3
    following = 0
    for segment in segments[:-1]:
        seal = read_seal(sample.directory, segment)
        assert seal is not None
        assert seal.blake3 == blake3(sample.segment(segment)).hexdigest()
        assert seal.first_sequence == following
        following = seal.next_sequence


@pytest.mark.parametrize("trouble", ["missing", "of another size", "no JSON", "empty"])
def test_opening_makes_the_seals_again_and_reading_does_without(tmp_path: Path, trouble: str):
    sample = write_sample(tmp_path, COUNTS, segment_bytes=1)
    before = seals(sample.directory)
    for segment, content in before.items():
        path = seal_path(sample.directory, segment)
        match trouble:
            case "missing":
                path.unlink()
            case "of another size":
                path.write_bytes(content.replace(b'"size_bytes":', b'"size_bytes":1'))
            case "no JSON":
                path.write_bytes(content[: len(content) // 2])
            case _:
                path.write_bytes(b"")
    log = FileLog(tmp_path, "process", segment_bytes=1)
    for start in range(sum(COUNTS) + 1):
        reader = log.open_reader("a", from_sequence=start)
        assert read_all(reader) == [frame for frame in sample.frames if frame.reaches(start)]
        reader.close()
    log.open_writer("a").close()
    assert seals(sample.directory) == before


def test_a_seal_that_lies_does_not_hide_a_flipped_bit(tmp_path: Path):
    """Opening trusts a seal's hash instead of checking every frame; so the bytes must have that hash."""
    sample = write_sample(tmp_path, COUNTS, segment_bytes=1)
    data = bytearray(sample.segment(1))
    data[-1] ^= 1
    segment_path(sample.directory, 1).write_bytes(data)
    with pytest.raises(JournalDamaged, match=r"segment 1, offset .*: checksum mismatch"):
        FileLog(tmp_path).open_writer("a")


@settings(deadline=None, max_examples=40)
@given(counts=st.lists(st.integers(0, 3), min_size=1, max_size=60), start=st.integers(0, 200), data=st.data())
def test_the_index_finds_a_place_at_or_before_the_wanted_frame(counts: list[int], start: int, data: st.DataObject):
    bases = [sum(counts[:n]) for n in range(len(counts))]
    listed = sorted(data.draw(st.sets(st.integers(0, len(counts) - 1), min_size=1)) | {0})
    seal = Seal(
        size_bytes=0, blake3="", first_sequence=0, next_sequence=0, epoch=1, last_frame="",
        index=tuple((bases[n], n * 100) for n in listed),
    )  # fmt: skip
    frame = seal.offset_before(start) // 100
    wanted = next((n for n, base in enumerate(bases) if base >= start or base + counts[n] > start), len(counts))
    assert frame <= wanted


def test_a_reader_starts_by_the_index_in_the_middle_of_a_large_segment(tmp_path: Path):
    log = FileLog(tmp_path, "process", segment_bytes=1 << 20)
    writer = log.open_writer("a")
    for n in range(40):
        writer.append(CommitHead(), [event("x" * (70_000 if n % 4 == 3 else 30_000)), event(n)])
    writer.close()
    seal = read_seal(tmp_path / "a", 0)
    assert seal is not None
    assert len(seal.index) > 8
    assert seal.blake3 == blake3(segment_path(tmp_path / "a", 0).read_bytes()).hexdigest()
    for start in range(81):
        reader = log.open_reader("a", from_sequence=start)
        frames = read_all(reader)
        assert [frame.base_sequence for frame in frames] == list(range(start - start % 2, 80, 2))
        reader.close()


def test_a_frame_that_was_exchanged_for_another_whole_one_breaks_the_chain(tmp_path: Path):
    """Its checksum is right and its sequence, too: only the frame behind it tells."""
    sample = write_sample(tmp_path, (1, 1, 1))
    first = sample.frames[0]
    data = sample.segment()
    other = encode_frame(first.head, [event(7)], base_sequence=0, epoch=first.epoch)
    assert len(other) == sample.ends[0].offset
    segment_path(sample.directory, 0).write_bytes(other + data[len(other) :])
    (problem,) = problems(tmp_path)
    assert (problem.segment, problem.offset) == sample.starts[1]
    assert "names another frame" in problem.message


def test_one_digest_says_that_two_copies_of_a_run_are_the_same(tmp_path: Path):
    def digest(root: Path) -> str:
        return run_digest(check_journals(FileLog(root)).digests)

    one = write_sample(tmp_path / "one", COUNTS, segment_bytes=1)
    one.copy(tmp_path / "two")
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    writer = FileLog(tmp_path / "two", "process").open_writer("a")
    writer.append(CommitHead(), [])
    writer.close()
    assert digest(tmp_path / "one") != digest(tmp_path / "two")


@pytest.mark.parametrize(
    "change", ["blake3", "first_sequence", "next_sequence", "epoch", "last_frame", "index", "check"]
)
def test_a_seal_that_is_not_what_was_written_is_found_by_the_check_and_misleads_nobody(tmp_path: Path, change: str):
    sample = write_sample(tmp_path, COUNTS, segment_bytes=1)
    path = seal_path(sample.directory, 1)
    seal = msgspec.json.decode(path.read_bytes())
    seal[change] = {"index": [[0, -7], [1, 10**9]], "last_frame": "zz", "blake3": "0" * 64, "check": ""}.get(
        change, 999
    )
    path.write_bytes(msgspec.json.encode(seal))
    (problem,) = problems(tmp_path)
    assert str(path) in problem.message
    log = FileLog(tmp_path, "process", segment_bytes=1)
    for start in range(sum(COUNTS) + 1):
        reader = log.open_reader("a", from_sequence=start)
        assert read_all(reader) == [frame for frame in sample.frames if frame.reaches(start)]
        reader.close()
    log.open_writer("a").close()
    assert problems(tmp_path) == []


def test_segments_that_were_exchanged_are_noticed_wherever_reading_starts(tmp_path: Path):
    sample = write_sample(tmp_path, COUNTS, segment_bytes=1)
    one, two = (segment_path(sample.directory, n) for n in (2, 3))
    one.rename(tmp_path / "x")
    two.rename(one)
    (tmp_path / "x").rename(two)
    for start in range(sum(COUNTS)):
        wanted = [frame for frame in sample.frames if frame.reaches(start)]
        reader = FileLog(tmp_path).open_reader("a", from_sequence=start)
        with contextlib.suppress(JournalDamaged):
            assert read_all(reader) == wanted
        reader.close()
