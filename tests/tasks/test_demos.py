"""Demonstrations are executed for real, in the order asked for, and say what a rollout would have shown."""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio
import pytest

from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.interface import Limits
from t1actors.tasks.demos import Demonstration, read_demonstrations, record_demonstrations, write_demonstrations
from t1actors.tasks.generate import SUBMIT, make_named_task
from t1actors.tasks.pools import DEMONSTRATION_SEED, builtin_names
from t1actors.tasks.task import TaskError


def observe(output: str, exit_code: int, limit_chars: int) -> str:
    return f"{output.strip()[:limit_chars]}|rc {exit_code}"


def recorded(names: list[str], wrong_share: float, stop_share: float, parallel: int) -> list[Demonstration]:
    async def run() -> list[Demonstration]:
        with tempfile.TemporaryDirectory(prefix="t1-demos-") as root:
            backend = NamespaceBackend(Path(root), name="demos")
            async with backend.running():
                demonstrations = await record_demonstrations(
                    backend,
                    names,
                    seed=7,
                    wrong_share=wrong_share,
                    stop_share=stop_share,
                    observe=observe,
                    observation_chars=60,
                    limits=Limits(memory_mb=128, disk_mb=16, processes=32, command_s=20.0),
                    parallel=parallel,
                )
                assert await backend.list() == []
                return demonstrations

    return anyio.run(run, backend="trio")


def test_perfect_demonstrations_pass_everything_in_the_order_of_their_names():
    names = builtin_names((1, 2, 3, 4, 5), 10, DEMONSTRATION_SEED)
    demonstrations = recorded(names, 0.0, 0.0, parallel=4)
    assert [demonstration.task for demonstration in demonstrations] == names
    for demonstration in demonstrations:
        task = make_named_task(demonstration.task)
        assert demonstration.passed == demonstration.expected == len(task.assertions)
        assert demonstration.commands == (*task.solution, SUBMIT)
        assert (demonstration.instruction, demonstration.level) == (task.instruction, task.level)
        assert len(demonstration.observations) == len(demonstration.commands) - 1
        assert all(text.endswith("|rc 0") for text in demonstration.observations)


def test_noisy_demonstrations_are_the_same_however_many_run_at_once():
    names = builtin_names((2, 3), 16, DEMONSTRATION_SEED)
    one, many = recorded(names, 0.6, 0.2, parallel=1), recorded(names, 0.6, 0.2, parallel=6)
    assert one == many
    share = sum(d.passed / d.expected for d in one) / len(one)
    assert 0.3 < share < 0.9
    shown = " ".join(text for d in one for text in d.observations)
    assert "rc 1" in shown  # mistakes show in what the shell says
    assert "line 1" not in shown  # and its complaints do not depend on how the command was passed on


def test_demonstrations_are_kept_in_a_file_of_stable_bytes(tmp_path: Path):
    demonstrations = [
        Demonstration(
            task="l1-1",
            level=1,
            instruction="1 höre auf",
            commands=("cat <x", SUBMIT),
            observations=("bad \x1b byte|rc 1",),
            passed=3,
            expected=7,
        )
    ] * 3
    write_demonstrations(tmp_path / "a", demonstrations)
    write_demonstrations(tmp_path / "b", demonstrations)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert list(read_demonstrations(tmp_path / "a")) == demonstrations


def test_a_damaged_file_of_demonstrations_is_named(tmp_path: Path):
    write_demonstrations(tmp_path / "a", [])
    (tmp_path / "cut").write_bytes((tmp_path / "a").read_bytes()[:8])
    (tmp_path / "text").write_bytes(b"{}\n")
    for name in ("cut", "text", "missing"):
        with pytest.raises(TaskError, match=f"{name}: cannot be read"):
            list(read_demonstrations(tmp_path / name))
