"""Real trials for the grading tests: work on a task in one sandbox, seal it, grade what is left in another."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import anyio

from t1actors.config import SandboxConfig
from t1actors.sandbox.choice import make_backend
from t1actors.sandbox.interface import Created, Limits, RunRequest, SandboxBackend, SandboxSpec
from t1actors.tasks.layers import environment_layers
from t1actors.tasks.task import Task
from t1actors.verify.verdict import Verdict
from t1actors.verify.verifier import Verifier

LIMITS = Limits(memory_mb=128, disk_mb=24, processes=32, command_s=20.0)
T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """Two backends, as in a run: the pool's and the verifier's."""

    agents: SandboxBackend
    graders: SandboxBackend
    verifier: Verifier
    verifier_of_agents: Verifier
    """Grades in the agents' own sandboxes."""

    async def work(self, task: Task, commands: Sequence[str], key: str) -> bytes:
        """The sealed archive after ``commands``."""
        await self.begin(task, commands, key)
        layer = await self.agents.seal(key)
        await self.agents.kill(key)
        return layer

    async def begin(self, task: Task, commands: Sequence[str], key: str) -> Created:
        """A sandbox in which ``commands`` were run, and which lives on."""
        spec = SandboxSpec(key=key, workdir=task.workdir, limits=LIMITS, layers=environment_layers(task))
        made = await self.agents.create(spec)
        for turn, command in enumerate(commands):
            await self.agents.run(key, RunRequest(key=f"{key}/{turn}", command=command, limit_s=20.0))
        return made

    async def grade(self, task: Task, layer: bytes, key: str) -> Verdict:
        return await self.verifier.grade(task, layer, key=key)

    async def grade_live(self, task: Task, commands: Sequence[str], key: str) -> Verdict:
        """In the agent's own sandbox, which is gone afterwards."""
        made = await self.begin(task, commands, key)
        try:
            return await self.verifier_of_agents.grade_live(task, key, key=f"{key}/tests", isolation=made.isolation)
        finally:
            await self.agents.kill(key)

    async def trial(self, task: Task, commands: Sequence[str], key: str) -> Verdict:
        return await self.grade(task, await self.work(task, commands, f"{key}/create"), f"{key}/grade")


class OnABench(Protocol):
    def __call__(self, test: Callable[[Bench], Awaitable[T]], *, loop: str = "trio") -> T: ...


def on_a_bench(
    test: Callable[[Bench], Awaitable[T]],
    *,
    settings: SandboxConfig | None = None,
    tools: Path | None = None,
    loop: str = "trio",
) -> T:
    """Runs ``test`` with the backends of ``settings`` (None: namespaces); afterwards no sandbox may be left. ``tools``: where
    built tool layers are kept."""

    async def run() -> T:
        # Sockets have short names: not below pytest's own long paths.
        with tempfile.TemporaryDirectory(prefix="t1-verify-") as root:
            agents = make_backend(settings or SandboxConfig(), Path(root, "agents"), name="agents")
            graders = make_backend(settings or SandboxConfig(), Path(root, "graders"), name="graders")
            verifiers = [
                Verifier(backend, limits=LIMITS, deadline_s=60.0, cache=tools) for backend in (graders, agents)
            ]
            async with agents.running(), graders.running():
                result = await test(Bench(agents, graders, *verifiers))
                assert (await agents.list(), await graders.list()) == ([], [])
                return result

    return anyio.run(run, backend=loop)


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
