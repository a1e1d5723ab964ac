"""The tasks that come with the project: what they are made of, and that they pass their check here."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from t1actors.sandbox.interface import Limits
from t1actors.tasks.network import NetworkNeeds
from t1actors.tasks.reader import read_task
from t1actors.tasks.record import as_checked
from t1actors.verify.task_check import check_task
from tests.docker_daemon import COMPILER, PACKAGES, Daemon, base_image, docker_of
from tests.verify.trials import Bench, on_a_bench

DIRECTORY = Path(__file__).parents[2] / "examples" / "tasks"
NAMES = ["database-library", "git-history", "make-tally", "python-ledger", "service-lantern", "text-harbour"]
LIMITS = Limits()
"""As a run has them by default: every task of ours does with that."""
FIRST_STEPS = {
    "database-library": "tar czf torus.tgz tides",
    "git-history": "grep torus sasel.log > sefel.txt",
    "make-tally": "grep virus giger.log > siri.txt",
    "python-ledger": "for f in rules/*.txt; do mv $f ${f%.txt}.md; done",
    "service-lantern": "sort -n mitan.dat > rafel.txt",
    "text-harbour": "grep zazen torus.log > nadan.txt",
}
"""What the demo model can do of each."""


def test_there_are_six_and_no_other_folder():
    assert sorted(path.name for path in DIRECTORY.iterdir() if not path.name.startswith(".")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_task_declares_exactly_the_assertions_that_its_tests_make(name: str):
    task = read_task(DIRECTORY / name)
    tree = ast.parse((task.tests_dir / "test_state.py").read_text())
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    assert sorted(task.expected) == sorted(f"test_state.py::{name}" for name in functions)
    assert 4 <= len(task.expected) <= 12
    assert task.solution_dir is not None
    assert (task.unknown_keys, task.unused_keys, task.network) == ((), (), NetworkNeeds())
    assert task.programs
    assert (task.memory_mb or 0) <= LIMITS.memory_mb
    assert (task.storage_mb or 0) <= LIMITS.disk_mb


def test_all_are_graded_in_the_same_way():
    assert len({(DIRECTORY / name / "tests" / "test.sh").read_bytes() for name in NAMES}) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("host_makes_sandboxes")
@pytest.mark.parametrize("name", NAMES)
def test_a_task_passes_its_check_twice(name: str):
    task = read_task(DIRECTORY / name)

    async def body(bench: Bench):
        return await check_task(task, bench.agents, key="check", runs=2, limits=LIMITS)

    record = on_a_bench(body)
    assert record.passed, record.problems
    assert (record.expected, record.baseline) == (task.expected, task.baseline)


@pytest.mark.slow
@pytest.mark.usefixtures("host_makes_sandboxes")
@pytest.mark.parametrize("name", NAMES)
def test_the_first_step_alone_is_worth_one_assertion(name: str):
    task = read_task(DIRECTORY / name)
    verdict = on_a_bench(lambda bench: bench.trial(as_checked(task, (), ()), [FIRST_STEPS[name]], name))
    assert (verdict.outcome, verdict.channel, verdict.passed) == ("graded", "plugin", 1)
    assert verdict.expected == len(task.expected) - len(task.baseline)


@pytest.fixture(scope="module")
def image(docker_daemon: Daemon) -> str:
    """What the tasks' Dockerfiles name, in the daemon: with a compiler."""
    if not shutil.which("cc"):
        pytest.skip("needs cc: apt-get install build-essential")
    docker_of(f"unix://{docker_daemon.socket}")("import", "-", "debian:12", data=base_image((*PACKAGES, *COMPILER)))
    return "debian:12"


@pytest.mark.slow
@pytest.mark.parametrize(("host_base", "runs"), [("false", 3), ("true", 1)], ids=["their own image", "a stand-in"])
def test_all_six_pass_their_check_on_docker(
    docker_daemon: Daemon, image: str, tmp_path: Path, host_base: str, runs: int
):
    shutil.copytree(DIRECTORY, tmp_path / "tasks", ignore=shutil.ignore_patterns(".checked"))
    sets = [
        "sandbox.backend=docker",
        f"sandbox.docker.socket={docker_daemon.socket}",
        f"sandbox.docker.image={image}",
        f"sandbox.host_base={host_base}",
    ]
    command = [sys.executable, "-m", "t1actors", "task", "check", str(tmp_path / "tasks"), "--runs", str(runs)]
    command += [word for pair in sets for word in ("--set", pair)]
    root = DIRECTORY.parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'kernels'}"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of 6 tasks passed" in done.stdout


FORGERY = r"""printf 'all:\n\tcp report.xml /logs/verifier/junit.xml; rm -f /logs/t1/cases.jsonl\n' > Makefile
printf '\techo 1 > /logs/verifier/reward.txt; true\n' >> Makefile
printf '<testsuite><testcase classname="test_state" name="test_make_builds_the_program"/></testsuite>' > report.xml"""


@pytest.mark.usefixtures("host_makes_sandboxes")
def test_what_the_tests_start_of_the_agents_writes_no_report():
    task = read_task(DIRECTORY / "make-tally")
    verdict = on_a_bench(lambda bench: bench.trial(task, [FORGERY], "forged"))
    assert (verdict.outcome, verdict.channel, verdict.passed) == ("graded", "plugin", 0)
