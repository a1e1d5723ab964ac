"""`t1 sandbox reap`: says what nobody owns, removes it, and keeps its hands off everything else."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.conftest import Live
from tests.sandbox.pools import start_and_kill_a_pool
from tests.sandbox.test_reaper import shims, until

ROOT = Path(__file__).parent.parent.parent


def reap(*arguments):
    command = [sys.executable, "-m", "t1actors", "sandbox", "reap", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.fixture
def leftover(host_makes_sandboxes, tmp_path):
    """A run whose pool and shims are dead, next to one whose sandboxes live."""
    dead, living = Live(tmp_path / "runs" / "dead" / "sandboxes"), Live(tmp_path / "runs" / "living" / "graders")
    start_and_kill_a_pool(living, 60.0)
    start_and_kill_a_pool(dead, 60.0)
    for pid in shims(dead):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not dead.processes())
    yield dead
    assert len(shims(living)) == 5
    for pid in shims(living):
        os.kill(pid, signal.SIGTERM)
    living.assert_nothing_left()


def test_what_nobody_owns_is_shown_then_removed_and_what_lives_stays(leftover, tmp_path):
    (tmp_path / "runs" / "latest").symlink_to("dead")
    shown = reap(tmp_path / "runs" / "latest", "--dry-run")
    assert shown.returncode == 1
    assert f"directory {leftover.root / 's0.t3'}: would be removed" in shown.stdout
    assert len(os.listdir(leftover.root)) == 5
    removed = reap(tmp_path / "runs")
    assert removed.returncode == 0
    assert "5 x directory: removed" in removed.stdout
    leftover.assert_nothing_left()
    assert reap(tmp_path / "runs").stdout == "nothing that nobody owns\n"


def test_a_directory_of_something_else_is_refused_and_left_as_it_is(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root: t1 sandbox reap says so before it looks")
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "letter").touch()
    refused = reap(tmp_path)
    assert refused.returncode == 2
    assert "something else than sandboxes" in refused.stderr
    assert (tmp_path / "documents" / "letter").exists()
    assert reap(tmp_path / "missing").returncode == 2
