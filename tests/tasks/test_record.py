"""What a check found is kept beside the task, counts only for the task as it was, and joins what the task declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from t1actors.tasks.reader import read_task, read_tasks
from t1actors.tasks.record import CheckRecord, Problem, as_checked, read_record, record_file, write_record
from t1actors.tasks.task import TaskError
from tests.tasks.test_reader import make

RECORD = CheckRecord(digest="d", expected=("a", "b"), baseline=("b",), runs=2)


def test_a_record_is_read_back_and_changes_neither_the_digest_nor_the_tasks_of_the_directory(tmp_path: Path):
    task = read_task(make(tmp_path / "one"))
    assert read_record(task.path) is None
    file = write_record(task.path, RECORD)
    assert file == tmp_path / ".checked" / "one.json" == record_file(task.path)
    assert read_record(task.path) == RECORD
    assert read_task(task.path).digest == task.digest
    assert [found.name for found in read_tasks(tmp_path)[0]] == ["one"]


def test_a_later_record_replaces_an_earlier_one_and_leaves_no_other_file(tmp_path: Path):
    make(tmp_path / "one")
    for record in (RECORD, CheckRecord(digest="e", problems=(Problem(part="build", text="no"),))):
        write_record(tmp_path / "one", record)
    kept = read_record(tmp_path / "one")
    assert kept is not None
    assert (kept.digest, kept.passed) == ("e", False)
    assert [path.name for path in (tmp_path / ".checked").iterdir()] == ["one.json"]


@pytest.mark.parametrize("text", ["", "{", '{"digest": 3}', "[]", '{"digest": "x", "expected": "a"}'])
def test_a_file_that_is_no_record_is_named_with_what_to_do(tmp_path: Path, text: str):
    make(tmp_path / "one")
    write_record(tmp_path / "one", RECORD).write_text(text)
    with pytest.raises(TaskError, match=r"one\.json: not what `t1 task check` writes .* delete it, or check"):
        read_record(tmp_path / "one")


@pytest.mark.parametrize(
    ("toml", "expected", "baseline"),
    [
        ("", ("a", "b"), ("b",)),
        ('[metadata.t1]\nexpected = ["a", "b", "c"]\n', ("a", "b", "c"), ("b",)),
        ('[metadata.t1]\nexpected = ["a"]\n', ("a",), ()),
        ('[metadata.t1]\nexpected = ["a", "b"]\nbaseline = ["a"]\n', ("a", "b"), ("a", "b")),
    ],
)
def test_what_a_task_declares_goes_before_what_was_found(
    tmp_path: Path, toml: str, expected: tuple[str, ...], baseline: tuple[str, ...]
):
    task = as_checked(read_task(make(tmp_path, task_dot_toml=toml)), RECORD.expected, RECORD.baseline)
    assert (task.expected, task.baseline) == (expected, baseline)
