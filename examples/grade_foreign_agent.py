"""An asyncio agent that is not ours, on a task from a directory: a sandbox of the pool to work in, the verifier to grade it.

    sudo python examples/grade_foreign_agent.py [TASK]     # a root that makes namespaces: `t1 doctor` says if it can

Two trials at once: an agent that does the task's first step, and one that does nothing. Nothing here is a run: no log, no
actors, no model. Your agent gets the instruction and a shell; what it left is sealed, and graded in a sandbox of its own.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from t1actors.sandbox.admission import Admission, TokenBucket
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.interface import SandboxSpec
from t1actors.sandbox.pool import PooledSandbox, SandboxPool
from t1actors.tasks.layers import environment_layers
from t1actors.tasks.reader import read_task
from t1actors.tasks.task import Task
from t1actors.verify.reward import reward
from t1actors.verify.verifier import Verifier

TASK = Path(__file__).parent / "tasks" / "text-harbour"
Agent = Callable[[str, PooledSandbox], Awaitable[None]]


async def eager(instruction: str, sandbox: PooledSandbox) -> None:
    """Somebody else's agent: it reads the instruction and uses a shell. This one knows what to do from the start."""
    print(instruction.splitlines()[0])
    seen = await sandbox.run("grep zazen torus.log > nadan.txt; wc -l nadan.txt", limit_s=10)
    print("eager saw:", seen.text.strip())


async def idle(instruction: str, sandbox: PooledSandbox) -> None:
    await asyncio.sleep(0)


async def trial(pool: SandboxPool, verifier: Verifier, task: Task, agent: Agent) -> str:
    name = agent.__name__
    spec = SandboxSpec(key=name, workdir=task.workdir, env=task.environment.env, layers=environment_layers(task))
    async with pool.sandbox(spec, deadline_s=60) as sandbox:
        await agent(task.instruction, sandbox)
        left = await sandbox.seal()  # every process of the agent is dead
    verdict = await verifier.grade(task, left, key=f"{name}.grading")
    # None where nothing was measured: that is never a 0.
    return f"{name}: {verdict.outcome}, {verdict.passed} of {verdict.expected}, reward {reward(verdict, scale=10)}"


async def main(directory: Path, task: Task) -> None:
    backend = NamespaceBackend(directory / "sandboxes", name="example")
    pool = SandboxPool(backend, Admission(TokenBucket(rate_per_s=50, burst=4), max_live=4))
    verifier = Verifier(backend, deadline_s=120, cache=directory / "tools")
    async with backend.running(), pool.running():
        for line in await asyncio.gather(*(trial(pool, verifier, task, agent) for agent in (eager, idle))):
            print(line)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder), read_task(Path(sys.argv[1]) if len(sys.argv) > 1 else TASK)))
