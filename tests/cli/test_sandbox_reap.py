"""`t1 sandbox reap`: says what nobody owns, removes it, and keeps its hands off everything else."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from t1actors.config import Config, DockerConfig, SandboxConfig, to_toml
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


@pytest.fixture
def containers(docker_daemon, tmp_path):
    """A run on Docker whose pool and shims are dead, and whose configuration says where its daemon is."""
    run = tmp_path / "runs" / "dead"
    live = Live(run / "sandboxes", docker_daemon)
    start_and_kill_a_pool(live, 60.0)
    for name in ("t1-shim", "t1-attendant"):
        live.signal(name, signal.SIGKILL)
    until(lambda: not live.processes())
    config = Config(sandbox=SandboxConfig(backend="docker", docker=DockerConfig(socket=docker_daemon.socket)))
    (run / "config.toml").write_text(to_toml(config))
    yield live
    reap(run, "--docker-socket", docker_daemon.socket)


def test_containers_of_dead_shims_are_found_by_what_the_runs_configuration_says(containers, tmp_path):
    shown = reap(tmp_path / "runs", "--dry-run")
    assert shown.returncode == 1
    assert "5 x container, 5 x directory: would be removed" in shown.stdout
    assert len(containers.containers()) == 5
    removed = reap(tmp_path / "runs")
    assert removed.returncode == 0
    assert f"container {containers.prefix}s0.t3: removed" in removed.stdout
    containers.assert_nothing_left()
    assert reap(tmp_path / "runs").stdout == "nothing that nobody owns\n"


def test_containers_whose_directory_is_gone_are_found_when_their_daemon_is_named(containers):
    shutil.rmtree(containers.root)
    removed = reap(containers.root, "--docker-socket", f"unix://{containers.daemon.socket}")
    assert (removed.returncode, removed.stdout.splitlines()[-1]) == (0, "5 x container: removed")
    containers.root.mkdir()
    containers.assert_nothing_left()


def test_where_the_daemon_cannot_be_asked_it_is_named_and_everything_else_goes(containers, tmp_path):
    nowhere = tmp_path / "nowhere"
    removed = reap(tmp_path / "runs", "--docker-socket", nowhere)
    assert removed.returncode == 1
    assert f"containers of {containers.root}: not looked for: the Docker daemon at unix://{nowhere}: " in removed.stdout
    assert "5 x directory: removed" in removed.stdout
    assert len(containers.containers()) == 5


@pytest.mark.parametrize(
    ("config", "says"),
    [(None, "no configuration says which Docker daemon has them"), ("[sandbox]\nkey = 1\n", "unknown key sandbox.key")],
)
def test_where_nothing_says_which_daemon_it_is_that_is_said(containers, config, says):
    file = containers.root.parent / "config.toml"
    file.unlink()
    if config:
        file.write_text(config)
    removed = reap(containers.root.parent)
    assert removed.returncode == 1
    assert says in removed.stdout
    assert "5 x directory: removed" in removed.stdout
