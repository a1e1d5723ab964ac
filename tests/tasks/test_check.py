"""The grader's checks, on trees that an agent could leave: honest ones and hostile ones."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from t1actors.tasks import check
from t1actors.verify.report import parse_ctrf


def holds(tmp_path: Path, kind: str, name: str, *arguments: str | int) -> bool:
    return check.holds(kind, f"{os.path.realpath(tmp_path)}/{name}", list(arguments))


@pytest.mark.parametrize(
    ("kind", "arguments", "right", "wrong"),
    [
        ("content", ["a b\n"], "a b\n", "a b"),
        ("contains", ["b"], "a b\n", "a\n"),
        ("lacks", ["b"], "a\n", "a b\n"),
        ("first_line", ["1"], "1\n2\n", "12\n"),
        ("last_line", ["2"], "1\n2\n", "1\n12\n"),
        ("line_count", [2], "1\n2\n", "1\n2"),
        ("number", [10], "10\n", "9\n"),
        ("number", [10], "123\n", "0123\n"),
        ("number", [10], "123\n", "123"),
        ("number", [10], "123\n", "-123\n"),
        ("number", [10], "123\n", "12\n34\n"),
        ("number", [10], "123\n", "\n"),
        ("number", [10], "123\n", "9" * 5000 + "\n"),
    ],
)
def test_each_check_on_text_tells_right_from_wrong(tmp_path: Path, kind: str, arguments: list, right: str, wrong: str):
    (tmp_path / "right").write_text(right)
    (tmp_path / "wrong").write_text(wrong)
    assert holds(tmp_path, kind, "right", *arguments)
    assert not holds(tmp_path, kind, "wrong", *arguments)
    assert not holds(tmp_path, kind, "missing", *arguments)
    assert not holds(tmp_path, kind, "right/below", *arguments)


def test_each_check_on_the_tree_tells_right_from_wrong(tmp_path: Path):
    (tmp_path / "dir/inner").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").chmod(0o715)
    assert holds(tmp_path, "is_dir", "dir")
    assert not holds(tmp_path, "is_dir", "file")
    assert holds(tmp_path, "is_file", "file")
    assert not holds(tmp_path, "is_file", "dir")
    assert holds(tmp_path, "absent", "gone")
    assert not holds(tmp_path, "absent", "file")
    assert holds(tmp_path, "entries", "dir", 1)
    assert not holds(tmp_path, "entries", "dir/inner", 1)
    assert [holds(tmp_path, "mode_digit", "file", place, digit) for place, digit in enumerate((7, 1, 5))] == [True] * 3
    assert not holds(tmp_path, "mode_digit", "file", 0, 6)


def test_archives_are_recognised_plain_and_packed(tmp_path: Path):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name in ("d/one", "d/two"):
            info = tarfile.TarInfo(name)
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
    (tmp_path / "plain.tgz").write_bytes(raw.getvalue())
    (tmp_path / "packed.tgz").write_bytes(gzip.compress(raw.getvalue()))
    assert not holds(tmp_path, "gzip", "plain.tgz")
    assert holds(tmp_path, "gzip", "packed.tgz")
    for name in ("plain.tgz", "packed.tgz"):
        assert holds(tmp_path, "tar_has", name, "d/one")
        assert holds(tmp_path, "tar_has", name, "d/two")
        assert not holds(tmp_path, "tar_has", name, "d/three")


def test_links_hold_nothing_wherever_they_stand(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").write_text("yes\n")
    (tmp_path / "dir-link").symlink_to("real")
    (tmp_path / "file-link").symlink_to("real/file")
    for kind, name in (("is_dir", "dir-link"), ("is_file", "file-link"), ("is_file", "dir-link/file")):
        assert not holds(tmp_path, kind, name)
    assert not holds(tmp_path, "content", "dir-link/file", "yes\n")
    assert not holds(tmp_path, "lacks", "file-link", "no")
    assert not holds(tmp_path, "absent", "file-link")


def test_pipes_huge_files_and_bombs_end_soon_and_hold_nothing(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "bomb.tgz").write_bytes(gzip.compress(bytes(64 << 20), 9))
    (tmp_path / "cut.tgz").write_bytes(gzip.compress(b"x" * 4096)[:20])
    (tmp_path / "loop.tar").write_bytes((b"name".ljust(124, b"\0") + b"-0000001000\0").ljust(1024, b"\0"))
    for name in ("pipe", "huge", "bomb.tgz", "cut.tgz", "loop.tar"):
        assert not holds(tmp_path, "content", name, "x")
        assert not holds(tmp_path, "lacks", name, "x") or name not in ("pipe", "huge")
        assert not holds(tmp_path, "tar_has", name, "x")


def test_an_unknown_kind_is_the_tasks_fault_and_stops_the_grader(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="unknown kind of assertion 'resembles'"):
        holds(tmp_path, "resembles", "file", "x")


def test_the_report_is_one_that_the_strict_reader_accepts():
    text = check.report([("control", True), ("1.1-a", True), ("1.2-b", False)], 1, 2)
    assert parse_ctrf(text.encode()).results == (("control", True), ("1.1-a", True), ("1.2-b", False))


def test_the_grader_loads_little_so_that_grading_stays_cheap():
    """Importing json, re or tarfile would double its start-up."""
    code = (
        "import sys, check; print(sorted(m for m in sys.modules if m in ('json', 're', 'tarfile', 'typing', 'site')))"
    )
    folder = Path(check.__file__).parent
    command = [sys.executable, "-S", "-E", "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"
