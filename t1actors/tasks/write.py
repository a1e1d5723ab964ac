"""Writes built-in tasks in the Harbor layout, for this project's sandboxes and for plain Harbor alike.

Guarantees: the bytes and modes of a task's directory are functions of its name, whatever the umask; a task's directory
appears whole or not at all, also when several processes write the same task at the same time.

    task.toml  instruction.md  environment/{Dockerfile,files/}
    tests/{test.sh,check.py,assertions.json}  solution/solve.sh
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from t1actors.tasks.generate import WORKDIR, GeneratedTask, make_named_task, task_name

CONTROL = "control"
BASE_IMAGE = "python:3.12-slim-bookworm"
_TEST_SH = """#!/bin/bash
# Writes /logs/verifier/ctrf.json, one entry an assertion, and reward.txt, the share that passed.
exec python3 -I -S /tests/check.py
"""


def task_files(task: GeneratedTask) -> list[tuple[str, str, bool]]:
    """(path, content, executable) of every file of the task's directory."""
    copy = f"COPY files/ {WORKDIR}/\n" if task.files else ""
    assertions = [
        {"id": name, "kind": a.kind, "path": a.path, "arguments": list(a.arguments)} for name, a in task.assertions
    ]
    spec = json.dumps({"root": WORKDIR, "control": CONTROL, "assertions": assertions}, indent=1)
    return [
        ("task.toml", _task_toml(task), False),
        ("instruction.md", task.instruction + "\n", False),
        ("environment/Dockerfile", f"FROM {BASE_IMAGE}\nWORKDIR {WORKDIR}\n{copy}", False),
        *((f"environment/files/{path}", content, False) for path, content in task.files),
        ("tests/test.sh", _TEST_SH, True),
        ("tests/check.py", _check_source(), False),
        ("tests/assertions.json", spec + "\n", False),
        ("solution/solve.sh", "#!/bin/bash\n" + "".join(f"{command}\n" for command in task.solution), True),
    ]


def write_task(task: GeneratedTask, directory: Path) -> bool:
    """Writes ``directory / task.name`` unless it is there. Returns whether this call wrote it."""
    target = directory / task.name
    if target.exists():
        return False
    directory.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{task.name}.", dir=directory))
    made = {""}

    def make_directory(path: str) -> None:
        if path not in made:
            make_directory(os.path.dirname(path))
            os.mkdir(scratch / path, 0o700)
            made.add(path)

    for path, content, executable in task_files(task):
        make_directory(os.path.dirname(path))
        # Owner-only modes are what no umask changes.
        handle = os.open(scratch / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700 if executable else 0o600)
        with open(handle, "wb") as file:
            file.write(content.encode())
    try:
        scratch.rename(target)
    except OSError:
        shutil.rmtree(scratch)
        if not target.is_dir():
            raise
        return False  # another process was faster, with the same bytes
    return True


def ensure_tasks(directory: Path, names: Sequence[str]) -> int:
    """Writes those of the built-in tasks ``names`` that ``directory`` lacks; how many it wrote. Safe to call from
    several processes at once. Raises ``TaskError`` for a name that is no built-in task's."""
    return sum(write_task(make_named_task(name), directory) for name in names if not (directory / name).is_dir())


def make_tasks(
    directory: Path,
    *,
    levels: Sequence[int],
    count: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Writes ``count`` tasks from ``seed`` on, levels in turn, and returns their names (as ``pools.builtin_names``)."""
    names = [task_name(seed + i, levels[i % len(levels)]) for i in range(count)]
    for done, name in enumerate(names, 1):
        ensure_tasks(directory, [name])
        if progress is not None:
            progress(done, count)
    return names


@cache
def _check_source() -> str:
    return resources.files("t1actors.tasks").joinpath("check.py").read_text(encoding="ascii")


def _task_toml(task: GeneratedTask) -> str:
    def strings(values: Sequence[str]) -> str:
        return "[" + ", ".join(f'"{value}"' for value in values) + "]"

    return f"""\
version = "1.0"

[metadata]
difficulty = "{"easy" if task.level <= 2 else "medium"}"
category = "shell"
tags = {strings(task.families)}

[metadata.t1]
seed = {task.seed}
level = {task.level}
sub_goals = {len(task.sub_goals)}
families = {strings(task.families)}
control = "{CONTROL}"
expected = {strings([name for name, _ in task.assertions])}

[verifier]
timeout_sec = 60.0

[agent]
timeout_sec = 600.0

[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 256
storage_mb = 64
allow_internet = false
"""
