"""The pool's process of the storm: works through trials until a signal or a dead fork server ends it.

    python -m tests.sandbox.storm_pool DIRECTORY TRIALS SEED

Every trial: a sandbox under admission, two commands, the sealed tree graded in a sandbox of its own. ``DIRECTORY/created``
gets the time of each try to create, ``DIRECTORY/done`` the name of each graded trial; those there are not done again.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import anyio

from t1actors.sandbox.admission import Admission
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.errors import SandboxDied, SandboxGone, SandboxUnavailable
from t1actors.sandbox.interface import Limits, RunRequest, SandboxSpec
from t1actors.sandbox.node_slots import NodeSlots
from t1actors.sandbox.pool import SandboxPool
from t1actors.sandbox.shared_bucket import SharedTokenBucket
from t1actors.tasks.generate import make_task
from t1actors.tasks.layers import environment_layers
from t1actors.tasks.reader import read_task
from t1actors.tasks.write import write_task
from t1actors.verify.grade import grade

RATE_PER_S = 40.0
BURST = 12
MAX_LIVE = 8
LEASE_S = 6.0
LIMITS = Limits(memory_mb=64, disk_mb=8, processes=16)


class Noting:
    """The backend, with a note of every try to create, taken when admission has just allowed it."""

    def __init__(self, backend, file):
        self._backend, self._file = backend, file

    def __getattr__(self, name):
        return getattr(self._backend, name)

    async def create(self, spec):
        self._file.write(b"%.6f\n" % time.clock_gettime(time.CLOCK_BOOTTIME))
        return await self._backend.create(spec)


def noting(path: Path):
    """A file of lines, each whole or not there."""
    return open(path, "ab", buffering=0)


async def main(directory: Path, trials: int, seed: int) -> int:
    made = make_task(seed=7, level=1)
    if not (directory / "tasks" / made.name).exists():
        write_task(made, directory / "tasks")
    task = read_task(directory / "tasks" / made.name)
    done = set((directory / "done").read_text().split())
    left = [f"s{n // 100}.t{n % 100}" for n in range(trials)]
    left = [name for name in left if name not in done]
    random.Random(seed).shuffle(left)
    graders = NamespaceBackend(directory / "graders", name="verifier")
    inner = NamespaceBackend(directory / "sandboxes", name="pool")
    with noting(directory / "created") as created, noting(directory / "done") as file:
        bucket = SharedTokenBucket(directory / "node" / "bucket", rate_per_s=RATE_PER_S, burst=BURST)
        node = NodeSlots(directory / "node", owner="storm", max_live=MAX_LIVE, lease_s=LEASE_S)
        pool = SandboxPool(Noting(inner, created), Admission(bucket, MAX_LIVE, node=node))

        async def trial(name: str) -> None:
            spec = SandboxSpec(
                key=name, workdir=task.workdir, limits=LIMITS, lease_s=LEASE_S, layers=environment_layers(task)
            )
            while True:
                try:
                    await pool.create(spec, deadline_s=20)
                    for number, command in enumerate(("echo x >made; ls", "cat made")):
                        await pool.run(name, RunRequest(key=f"{name}/{number}", command=command, limit_s=10))
                    layer = await pool.seal(name)
                    await pool.kill(name)
                    verdict = await grade(task, layer, graders, key=name, deadline_s=30, lease_s=LEASE_S, limits=LIMITS)
                except (SandboxGone, SandboxDied):  # somebody killed its shim
                    await pool.kill(name)
                    continue
                if verdict.outcome == "graded":
                    file.write(f"{name}\n".encode())
                    return

        async def work() -> None:
            while left:
                await trial(left.pop())

        async with inner.running(), graders.running():
            await graders.reap()
            for key in await pool.reattach():
                if key in done:
                    await pool.kill(key)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pool.keep_leases, LEASE_S / 4)
                async with anyio.create_task_group() as workers:
                    for _ in range(2 * MAX_LIVE):
                        workers.start_soon(work)
                tasks.cancel_scope.cancel()
            for key in await pool.reattach():  # of trials that a pool that was killed had finished just then
                await pool.kill(key)
    return 0


if __name__ == "__main__":
    loop = "trio" if int(sys.argv[3]) % 2 else "asyncio"
    try:
        sys.exit(anyio.run(main, Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), backend=loop))
    except* SandboxUnavailable:  # the fork server is dead: whoever supervises starts this process again
        os._exit(3)
