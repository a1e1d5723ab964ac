"""Real trials for the grading tests: work on a task in one sandbox, seal it, grade what is left in another."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio

from t1actors.config import SandboxConfig
from t1actors.sandbox.backend import ShimBackend
from t1actors.sandbox.choice import make_backend
from t1actors.sandbox.interface import Limits, RunRequest, SandboxSpec
from t1actors.tasks.layers import environment_layers
from t1actors.tasks.task import Task
from t1actors.verify.grade import grade
from t1actors.verify.verdict import Verdict

LIMITS = Limits(memory_mb=128, disk_mb=24, processes=32, command_s=20.0)
T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """Two backends, as in a run: the pool's and the verifier's."""

    agents: ShimBackend
    graders: ShimBackend

    async def work(self, task: Task, commands: Sequence[str], key: str) -> bytes:
        """The sealed archive after ``commands``."""
        spec = SandboxSpec(key=key, workdir=task.workdir, limits=LIMITS, layers=environment_layers(task))
        await self.agents.create(spec)
        for turn, command in enumerate(commands):
            await self.agents.run(key, RunRequest(key=f"{key}/{turn}", command=command, limit_s=20.0))
        layer = await self.agents.seal(key, paths=task.graded_paths)
        await self.agents.kill(key)
        return layer

    async def grade(self, task: Task, layer: bytes, key: str, deadline_s: float = 60.0) -> Verdict:
        return await grade(task, layer, self.graders, key=key, deadline_s=deadline_s, lease_s=60.0, limits=LIMITS)

    async def trial(self, task: Task, commands: Sequence[str], key: str) -> Verdict:
        return await self.grade(task, await self.work(task, commands, f"{key}/create"), f"{key}/grade")


def on_a_bench(test: Callable[[Bench], Awaitable[T]], settings: SandboxConfig | None = None) -> T:
    """Runs ``test`` under trio with the backends of ``settings`` (None: namespaces); afterwards no sandbox may be left."""

    async def run() -> T:
        # Sockets have short names: not below pytest's own long paths.
        with tempfile.TemporaryDirectory(prefix="t1-verify-") as root:
            agents = make_backend(settings or SandboxConfig(), Path(root, "agents"), name="agents")
            graders = make_backend(settings or SandboxConfig(), Path(root, "graders"), name="graders")
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(agents.running())
                await stack.enter_async_context(graders.running())
                result = await test(Bench(agents, graders))
                assert (await agents.list(), await graders.list()) == ([], [])
                return result

    return anyio.run(run, backend="trio")


async def pipelined(jobs: Iterable[Callable[[], Awaitable[T]]], width: int = 4) -> list[T]:
    """Results of ``jobs`` in order, ``width`` at a time."""
    waiting = list(enumerate(jobs))[::-1]
    results: dict[int, T] = {}

    async def work() -> None:
        while waiting:
            place, job = waiting.pop()
            results[place] = await job()

    async with anyio.create_task_group() as workers:
        for _ in range(width):
            workers.start_soon(work)
    return [results[place] for place in sorted(results)]
