"""Namespaces against Docker in one run: the same calls on both, round by round, and what one costs in terms of the other.

Wall time and memory. No CPU time: what the Docker daemon and its containers use of the processor is waited for by nobody
here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import trio

from bench.measure import Spread
from bench.sandbox_memory import MB, live_memory
from bench.tables import Table
from t1actors.config import DockerConfig, SandboxConfig
from t1actors.sandbox.archive import archive_of_files
from t1actors.sandbox.backend import ShimBackend
from t1actors.sandbox.choice import make_backend
from t1actors.sandbox.docker.reconcile import DaemonClient
from t1actors.sandbox.errors import SandboxUnavailable
from t1actors.sandbox.interface import Layer, RunRequest, SandboxSpec

CALLS = ("create", "first command", "a command", "seal", "kill")
AT_ONCE = 8


@dataclass
class Seconds:
    """Of every call by name, and of all sandboxes together when several are made at once."""

    calls: dict[str, list[float]] = field(default_factory=lambda: {call: [] for call in CALLS})
    rates: list[float] = field(default_factory=list[float])

    async def timed(self, call: str, work: Awaitable[object]) -> None:
        """Wait for it and keep how long it took."""
        began_s = time.perf_counter()
        await work
        self.calls[call].append(time.perf_counter() - began_s)


def why_not(docker: DockerConfig) -> str:
    """Empty where this daemon can make sandboxes, as far as asking tells; else what is missing."""

    async def ask() -> str:
        client = DaemonClient(docker.socket, "t1-bench-")
        try:
            async with client.running():
                await client.image_id(docker.image)
        except SandboxUnavailable as error:
            return str(error)
        return ""

    return trio.run(ask)


def compare(root: Path, docker: DockerConfig, *, sandboxes: int, commands: int, rounds: int, command: str) -> Table:
    """Both backends take turns; the ratio is of the medians."""
    found = {"namespaces": Seconds(), "docker": Seconds()}
    for number in range(rounds):
        for kind in found if number % 2 == 0 else reversed(found):
            settings = SandboxConfig(backend="docker" if kind == "docker" else "namespaces", docker=docker)
            backend = make_backend(settings, root / kind, name="bench")
            trio.run(_round, backend, found[kind], sandboxes, commands, command)
    rows: list[tuple[str, Spread, Spread, float]] = []
    for call in CALLS:
        ours, theirs = (Spread.of([1000 * s for s in found[kind].calls[call]]) for kind in found)
        rows.append((f"{call}, ms", ours, theirs, theirs.median / ours.median))
    ours, theirs = (Spread.of(found[kind].rates) for kind in found)
    rows.append((f"create and kill, {AT_ONCE} at a time, a second", ours, theirs, theirs.median / ours.median))
    return Table(
        "Sandboxes: namespaces against Docker",
        ("what", "namespaces", "Docker", "Docker / namespaces"),
        tuple(rows),
        f"Wall time; {sandboxes} sandboxes a round, one after the other, {rounds} rounds, the two taking turns; image "
        f"{docker.image}; a command is `{command}`.",
    )


def compare_memory(root: Path, docker: DockerConfig, *, live: int, ours: Counter[str]) -> Table:
    """``live`` containers against as many namespaces, which were found to take ``ours``."""
    backend = make_backend(SandboxConfig(backend="docker", docker=docker), root / "docker", name="bench")
    theirs = live_memory(backend, live)
    rows = [(kind, ours[kind] / MB, theirs[kind] / MB) for kind in dict.fromkeys((*ours, *theirs))]
    return Table(
        "Sandboxes: memory of those that live, namespaces against Docker",
        ("what, MB", "namespaces", "Docker"),
        ((f"{live} sandboxes, all their processes", ours.total() / MB, theirs.total() / MB), *rows),
        "As above. Docker's are shims, attendants, the containers' processes and the runtime's process beside each; the "
        "daemon is not.",
    )


async def _round(backend: ShimBackend, seconds: Seconds, sandboxes: int, commands: int, command: str) -> None:
    layer = Layer(archive=archive_of_files({"notes.txt": b"a line\n" * 20}), at="/app")
    async with backend.running():
        await backend.list()  # the fork server is up
        for number in range(sandboxes):
            key = f"s{number}"
            await seconds.timed("create", backend.create(SandboxSpec(key=key, layers=(layer,))))
            for turn in range(commands + 1):
                request = RunRequest(key=str(turn), command=command, limit_s=20)
                await seconds.timed("a command" if turn else "first command", backend.run(key, request))
            await seconds.timed("seal", backend.seal(key))
            await seconds.timed("kill", backend.kill(key))
        waiting = iter(range(sandboxes))

        async def one_after_another() -> None:
            for number in waiting:
                await backend.create(SandboxSpec(key=f"p{number}", layers=(layer,)))
                await backend.kill(f"p{number}")

        began_s = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                tasks.start_soon(one_after_another)
        seconds.rates.append(sandboxes / (time.perf_counter() - began_s))
