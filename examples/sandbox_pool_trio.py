"""Several programs, one machine: a rate and a cap that all of them keep together, and what a program that was killed leaves.

    sudo python examples/sandbox_pool_trio.py [DIRECTORY]     # a root that makes namespaces: `t1 doctor` says if it can

Two pools share DIRECTORY/node. Here they are tasks of one program; as processes they would share it alike, also when one
of them is killed and started again. The same code runs under asyncio: ``anyio.run(main, ...)``.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import anyio
import trio

from t1actors.sandbox.admission import Admission
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.interface import SandboxSpec
from t1actors.sandbox.node_slots import NodeSlots
from t1actors.sandbox.pool import SandboxPool
from t1actors.sandbox.retries import Retry, RetryPolicy
from t1actors.sandbox.shared_bucket import SharedTokenBucket

RATE_PER_S, BURST, MAX_LIVE, LEASE_S = 20.0, 5, 3, 60.0
AGENTS = 6


def told(retry: Retry) -> None:
    print(f"{retry.key}: try {retry.attempt} failed ({retry.cause}), again in {retry.pause_s:.1f} s")


async def agent(pool: SandboxPool, name: str) -> None:
    # Waits for one of the machine's slots, then for one of its tokens; a fault of the host is tried again.
    made = await pool.create(SandboxSpec(key=name, lease_s=LEASE_S), deadline_s=30, on_retry=told)
    assert not made.created.existed
    assert pool.metrics.live <= MAX_LIVE
    await anyio.sleep(0.1)
    await pool.kill(name)


async def program(directory: Path, name: str) -> None:
    node = directory / "node"
    bucket = SharedTokenBucket(node / "bucket", rate_per_s=RATE_PER_S, burst=BURST)
    slots = NodeSlots(node, owner=name, max_live=MAX_LIVE, lease_s=LEASE_S)
    backend = NamespaceBackend(directory / name, name=name)
    pool = SandboxPool(backend, Admission(bucket, max_live=MAX_LIVE, node=slots), RetryPolicy(most=2))
    # At the start: what an earlier program of this name left is found again, or removed where nobody can own it any more.
    async with backend.running(), pool.running(renew_every_s=LEASE_S / 4), anyio.create_task_group() as agents:
        for number in range(AGENTS):
            agents.start_soon(agent, pool, f"agent{number}")
    print(f"{name}: {pool.metrics}")
    slots.close()


async def main(directory: Path) -> None:
    began_s = anyio.current_time()
    async with anyio.create_task_group() as programs:
        for name in ("one", "two"):
            programs.start_soon(program, directory, name)
    # The bucket of a directory that is new begins empty, so that removing it never makes it more generous.
    at_least_s = (2 * AGENTS - BURST) / RATE_PER_S
    print(f"{2 * AGENTS} sandboxes, never faster than the rate: {anyio.current_time() - began_s > at_least_s}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trio.run(partial(main, Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as folder:
            trio.run(partial(main, Path(folder)))
