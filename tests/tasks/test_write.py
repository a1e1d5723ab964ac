"""Tasks on disk: deterministic bytes, whole or not at all, and what the sandbox is given equals what generation says."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from t1actors.tasks import layers
from t1actors.tasks.demos import generated_layers
from t1actors.tasks.generate import LEVELS, make_task
from t1actors.tasks.network import NetworkNeeds
from t1actors.tasks.pools import builtin_names
from t1actors.tasks.reader import read_task, read_tasks
from t1actors.tasks.task import TaskError
from t1actors.tasks.write import ensure_tasks, make_tasks, write_task


def tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(directory.rglob("*"))
    }


def test_the_same_names_give_the_same_bytes_and_modes_under_any_umask(tmp_path: Path):
    names = make_tasks(tmp_path / "a", levels=(1, 3, 5), count=6, seed=40)
    assert names == builtin_names((1, 3, 5), 6, 40) == ["l1-40", "l3-41", "l5-42", "l1-43", "l3-44", "l5-45"]
    before = os.umask(0o077)
    try:
        make_tasks(tmp_path / "b", levels=(1, 3, 5), count=6, seed=40)
    finally:
        os.umask(before)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_a_written_task_reads_back_as_it_was_generated(tmp_path: Path):
    for level in LEVELS:
        generated = make_task(level, level)
        assert write_task(generated, tmp_path)
        task = read_task(tmp_path / generated.name)
        assert (task.name, task.instruction, task.level) == (generated.name, generated.instruction, level)
        assert task.expected == tuple(name for name, _ in generated.assertions)
        assert task.control == "control"
        assert task.families == generated.families
        assert task.sub_goals == level + 1
        assert (task.workdir, task.graded_paths, task.network) == ("/app", ("/app",), NetworkNeeds())
        assert task.unknown_keys == ()


def test_layers_from_memory_are_the_layers_from_disk(tmp_path: Path):
    for seed in range(30):
        generated = make_task(seed, 1 + seed % 5)
        write_task(generated, tmp_path)
        task = read_task(tmp_path / generated.name)
        assert generated_layers(generated) == (*layers.environment_layers(task), layers.tests_layer(task))


def test_the_agents_environment_holds_no_tests_and_no_solution(tmp_path: Path):
    generated = make_task(3, 3)
    write_task(generated, tmp_path)
    shown = b"".join(layer.archive for layer in layers.environment_layers(read_task(tmp_path / generated.name)))
    assert b"check.py" not in shown
    assert b"assertions" not in shown
    assert not [command for command in generated.solution if command.encode() in shown]


def test_ensuring_writes_only_what_is_missing(tmp_path: Path):
    names = builtin_names((2,), 4, 7)
    assert ensure_tasks(tmp_path, names[:2]) == 2
    stamp = (tmp_path / names[0] / "task.toml").stat().st_mtime_ns
    assert ensure_tasks(tmp_path, names) == 2
    assert ensure_tasks(tmp_path, names) == 0
    assert (tmp_path / names[0] / "task.toml").stat().st_mtime_ns == stamp
    with pytest.raises(TaskError, match="names no built-in task"):
        ensure_tasks(tmp_path, ["no-such-task"])


def _ensure(directory: str) -> int:
    return ensure_tasks(Path(directory), builtin_names((1, 2), 40, 7))


def test_processes_that_write_the_same_tasks_at_once_leave_each_task_whole(tmp_path: Path):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        wrote = pool.map(_ensure, [str(tmp_path)] * 4)
    assert sum(wrote) == 40
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(builtin_names((1, 2), 40, 7))
    tasks, errors = read_tasks(tmp_path)
    assert (len(tasks), errors) == (40, [])


def test_progress_is_reported_for_every_task(tmp_path: Path):
    seen: list[tuple[int, int]] = []
    make_tasks(tmp_path, levels=(1,), count=3, seed=0, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
