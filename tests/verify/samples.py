"""Tasks in the style of public benchmarks, written for these tests: a script that fetches pytest and starts it."""

from __future__ import annotations

import shutil
from pathlib import Path

from t1actors.tasks.reader import read_task
from t1actors.tasks.task import Task

UVX = """#!/bin/bash
apt-get update
apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
source $HOME/.local/bin/env
uvx -p 3.13 -w pytest==8.4.1 -w pytest-json-ctrf==0.3.5 pytest --ctrf /logs/verifier/ctrf.json /tests/test_work.py -rA
if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""
CASES = """
import subprocess

import pytest


def test_the_text_is_there():
    assert open("/app/out").read() == "hi\\n"


@pytest.mark.parametrize("n", [2, 3])
def test_the_program_doubles(n):
    done = subprocess.run(["/app/double", str(n)], capture_output=True, text=True, timeout=10)
    assert done.stdout == f"{2 * n}\\n"
"""
IDS = (
    "test_work.py::test_the_text_is_there",
    "test_work.py::test_the_program_doubles[2]",
    "test_work.py::test_the_program_doubles[3]",
)
WORK = ("echo hi > out", "printf '#!/bin/sh\\necho $((2 * $1))\\n' > double; chmod 755 double")
"""What solves it: both cases of the program, and the text."""


def sample_task(
    directory: Path, *, script: str = UVX, cases: str = CASES, toml: str = "", files: dict[str, str] | None = None
) -> Task:
    """``toml`` is what [metadata.t1] holds; ``files`` are more files of the tests."""
    shutil.rmtree(directory / "sample", ignore_errors=True)
    for path, text in {
        "task.toml": f"[metadata.t1]\n{toml}\n[verifier]\ntimeout_sec = 30.0\n",
        "instruction.md": "Write hi into out, and a program that doubles a number.",
        "environment/Dockerfile": "FROM debian\nWORKDIR /app\n",
        "tests/test.sh": script,
        "tests/test_work.py": cases,
        **{f"tests/{name}": text for name, text in (files or {}).items()},
    }.items():
        (directory / "sample" / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / "sample" / path).write_text(text)
    return read_task(directory / "sample")


def expecting(*ids: str) -> str:
    """The line of task.toml that declares them."""
    return f"expected = [{', '.join(repr(name) for name in ids)}]"
