"""The program of one trial as its sampler holds it.

Guarantees: ``run_program`` returns, or is cancelled, with nothing of the program's process group left; when the sampler is
killed the group dies as well (``keeper``). A process that leaves the group (a daemon) outlives the program: the run's
supervisor ends it with the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import anyio
import anyio.abc

from t1actors.harness.command import keeper

LOG_BYTES = 1024 * 1024
"""Of what a trial's program prints, over all its starts, so much is kept."""
SHOWN_BYTES = 600
"""Of its end, so much is quoted where the program failed."""


class Ended(NamedTuple):
    """How a program ended. ``number``: its exit status, or the signal that killed it."""

    how: Literal["exit", "signal", "lacking"]
    number: int
    text: str


async def run_program(argv: Sequence[str], env: Mapping[str, str], log_path: Path) -> Ended:
    """Run ``argv`` to its end, with ``env`` over this process's own environment."""
    arguments = [sys.executable, "-I", "-S", keeper.__file__, str(log_path), str(LOG_BYTES), *argv]
    process = await anyio.open_process(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        env={**os.environ, **env},
        start_new_session=True,
    )
    try:
        line = await _line(process)
    finally:
        with anyio.CancelScope(shield=True):
            os.killpg(process.pid, signal.SIGKILL)  # it was not waited for yet: the number is still its own
            await process.aclose()
    how, _, rest = line.partition(" ")
    match how:
        case "exit" | "signal":
            return Ended(how, int(rest), line)
        case "lacking":
            return Ended("lacking", 0, rest)
        case _:
            return Ended("signal", signal.SIGKILL, "killed with its keeper")


async def _line(process: anyio.abc.Process) -> str:
    """What the keeper says; empty where it died."""
    assert process.stdout is not None
    said = b""
    try:
        while not said.endswith(b"\n"):
            said += await process.stdout.receive()
    except anyio.EndOfStream:
        return ""
    return said.decode(errors="replace").strip()


def tail_of(log_path: Path) -> str:
    """The last that the program printed, on one line."""
    try:
        printed = log_path.read_bytes()
    except FileNotFoundError:
        return ""
    return " ".join(printed[-SHOWN_BYTES:].decode(errors="replace").split())
