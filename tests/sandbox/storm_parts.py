"""What the storm's processes share: the task, limits, backends, and how such a process ends.

``DIRECTORY/created`` gets the time of each try to create a trial's sandbox, ``DIRECTORY/sealed`` the archive of each trial
that was worked on, ``DIRECTORY/done`` the name of each that was graded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO

import anyio

from t1actors.config import DockerConfig, SandboxConfig
from t1actors.sandbox.backend import ShimBackend
from t1actors.sandbox.choice import make_backend
from t1actors.sandbox.errors import SandboxUnavailable
from t1actors.sandbox.interface import Limits
from t1actors.tasks.generate import make_task
from t1actors.tasks.reader import read_task
from t1actors.tasks.task import Task
from t1actors.tasks.write import write_task

RATE_PER_S = 40.0
BURST = 12
MAX_LIVE = 8
LEASE_S = 6.0
LIMITS = Limits(memory_mb=64, disk_mb=8, processes=16)
NOT_NOW = 3
"""The exit status of a process that no sandbox can be made for (the fork server is dead, say): it is started again."""


def names_of(trials: int) -> list[str]:
    return [f"s{number // 100}.t{number % 100}" for number in range(trials)]


def the_task(directory: Path) -> Task:
    """The one that all trials work on."""
    made = make_task(seed=7, level=1)
    if not (directory / "tasks" / made.name).exists():
        write_task(made, directory / "tasks")
    return read_task(directory / "tasks" / made.name)


def noting(path: Path) -> IO[bytes]:
    """A file of lines, each whole or not there."""
    return open(path, "ab", buffering=0)


def backend_at(root: Path, name: str, daemon: list[str]) -> ShimBackend:
    """Of containers where a daemon's socket and image are given."""
    settings = SandboxConfig()
    if daemon:
        settings = SandboxConfig(backend="docker", docker=DockerConfig(socket=daemon[0], image=daemon[1]))
    return make_backend(settings, root, name=name)


def run_process(main: Callable[[Path, int, int, list[str]], Awaitable[int]]) -> None:
    """DIRECTORY TRIALS SEED [SOCKET IMAGE]"""
    directory, trials, seed, *daemon = sys.argv[1:]
    loop = "trio" if int(seed) % 2 else "asyncio"
    try:
        sys.exit(anyio.run(main, Path(directory), int(trials), int(seed), daemon, backend=loop))
    except* SandboxUnavailable as errors:
        sys.stderr.write(f"{errors.exceptions}\n")
        sys.stderr.flush()
        os._exit(NOT_NOW)
