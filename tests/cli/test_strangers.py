"""The slow half of ``test_environments``: a fresh clone that cannot be set up, and whole runs on machines that lack much."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_environments import T1, without

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
SMOKE = [*T1, "run", "--preset", "smoke", "--display", "plain"]


def test_a_fresh_clone_without_network_says_so_and_stays_fit_for_another_try(tmp_path):
    """In a directory with blanks and letters beyond ASCII, without a home, with settings that lead pip astray."""
    clone = tmp_path / "a clone für uns"
    clone.mkdir()
    for name in ("tools", "t1actors", "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, clone / name)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/proc",
        "TMPDIR": "/nonexistent",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "PIP_USER": "1",
        "PIP_REQUIRE_VIRTUALENV": "1",
        "PYTHONPATH": "/nonexistent",
    }
    for _ in range(2):
        done = subprocess.run(
            ["sh", "tools/venv.sh"], cwd=clone, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "setup: the package index could not be reached" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (clone / ".venv" / "t1-installed").exists()
    assert "made anew because the last set-up was not finished" in done.stdout


def test_a_run_needs_no_network_home_terminal_or_temporary_directory(host_makes_sandboxes, tmp_path):
    environment = {**os.environ, "HOME": "/proc", "TMPDIR": "/nonexistent", "LC_ALL": "C"}
    for name in ("http_proxy", "HTTPS_PROXY"):
        environment[name] = "http://127.0.0.1:9"
    command = [*SMOKE, "--dir", str(tmp_path / "r")]
    done = without("low_limits();no_network()", command, env=environment, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr


FULL = """
import os, subprocess, sys, time
from pathlib import Path
from t1actors.sandbox.shim import linux
place, t1 = Path(sys.argv[1]), sys.argv[2:]
linux.unshare(linux.CLONE_NEWNS, "here")
linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
linux.mount("none", str(place), "tmpfs", options="size=2200m")
run = subprocess.Popen([*t1, "--dir", str(place / "r")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
for line in run.stdout:
    if line[9:].startswith("step 1 "):
        break
with open(place / "filler", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(1 << 16))
    except OSError:
        pass
_, told = run.communicate()
(place / "filler").unlink()
print(run.returncode, "|", told.replace(chr(10), " "), flush=True)
checked = subprocess.run([*t1[:3], "log", "check", str(place / "r")], capture_output=True, text=True)
print(checked.returncode, "|", checked.stdout.replace(chr(10), " "), flush=True)
again = subprocess.run([*t1[:3], "run", "--resume", str(place / "r"), "--display", "quiet"], capture_output=True, text=True)
print(again.returncode, "|", again.stderr, flush=True)
"""


def test_a_disk_that_fills_up_ends_a_run_with_a_reason_and_it_goes_on_when_there_is_room(
    host_makes_sandboxes, tmp_path
):
    if os.geteuid() != 0:
        pytest.skip("a small disk needs root")
    command = [sys.executable, "-c", FULL, str(tmp_path), *SMOKE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    ended, checked, resumed = done.stdout.splitlines()
    assert ended.startswith("1 |"), done
    assert "No space left on device" in ended
    assert "--resume" in ended
    assert "Traceback" not in ended
    assert checked.startswith("0 | clean"), checked
    assert resumed.startswith("0 |"), resumed
