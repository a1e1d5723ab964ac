"""The pool's process of the storm: works through trials until a signal or a dead fork server ends it.

    python -m tests.sandbox.storm_pool DIRECTORY TRIALS SEED [SOCKET IMAGE]

Every trial: a sandbox under admission, two commands, and the sealed tree for the verifier's process.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import anyio

from t1actors.sandbox.admission import Admission
from t1actors.sandbox.errors import SandboxDied, SandboxGone
from t1actors.sandbox.interface import RunRequest, SandboxSpec
from t1actors.sandbox.node_slots import NodeSlots
from t1actors.sandbox.pool import SandboxPool
from t1actors.sandbox.shared_bucket import SharedTokenBucket
from t1actors.tasks.layers import environment_layers
from tests.sandbox.storm_parts import (
    BURST,
    LEASE_S,
    LIMITS,
    MAX_LIVE,
    RATE_PER_S,
    backend_at,
    names_of,
    noting,
    run_process,
    the_task,
)


class Noting:
    """The backend, with a note of every try to create, taken when admission has just allowed it."""

    def __init__(self, backend, file):
        self._backend, self._file = backend, file

    def __getattr__(self, name):
        return getattr(self._backend, name)

    async def create(self, spec):
        self._file.write(b"%.6f\n" % time.clock_gettime(time.CLOCK_BOOTTIME))
        return await self._backend.create(spec)


async def main(directory: Path, trials: int, seed: int, daemon: list[str]) -> int:
    task = the_task(directory)
    sealed = set(os.listdir(directory / "sealed"))
    left = [name for name in names_of(trials) if name not in sealed]
    random.Random(seed).shuffle(left)
    inner = backend_at(directory / "sandboxes", "pool", daemon)
    with noting(directory / "created") as created:
        bucket = SharedTokenBucket(directory / "node" / "bucket", rate_per_s=RATE_PER_S, burst=BURST)
        node = NodeSlots(directory / "node", owner="storm", max_live=MAX_LIVE, lease_s=LEASE_S)
        pool = SandboxPool(Noting(inner, created), Admission(bucket, MAX_LIVE, node=node))

        async def trial(name: str) -> None:
            spec = SandboxSpec(
                key=name, workdir=task.workdir, limits=LIMITS, lease_s=LEASE_S, layers=environment_layers(task)
            )
            while True:
                try:
                    await pool.create(spec, deadline_s=30)
                    for number, command in enumerate(("echo x >made; ls", "cat made")):
                        await pool.run(name, RunRequest(key=f"{name}/{number}", command=command, limit_s=10))
                    layer = await pool.seal(name)
                    break
                except (SandboxGone, SandboxDied):  # somebody killed its shim, or all inside
                    await pool.kill(name)
            fresh = directory / f".{name}"
            fresh.write_bytes(layer)
            fresh.rename(directory / "sealed" / name)
            await pool.kill(name)

        async def work() -> None:
            while left:
                await trial(left.pop())

        async with inner.running():
            for key in await pool.reattach():
                if key in sealed:
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
    run_process(main)
