"""Sandboxes in a plain asyncio program: many agents, a rate and a cap, limits that bite, and nothing left behind.

    sudo python examples/sandbox_pool_asyncio.py [DIRECTORY]     # a root that makes namespaces: `t1 doctor` says if it can

asyncio only: the library is written on anyio, whose calls are ordinary awaitables here. Ctrl-C, a timeout, an agent that
raises: each ends its blocks, and a block that ends kills its sandbox. After `kill -9`, start it again with the same
DIRECTORY: it finds what lived.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from t1actors.sandbox.admission import Admission, TokenBucket
from t1actors.sandbox.archive import archive_of_files, find_file
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.errors import SandboxDied, SandboxSealed
from t1actors.sandbox.interface import Layer, Limits, SandboxSpec
from t1actors.sandbox.pool import SandboxPool

AGENTS = 12


async def agent(pool: SandboxPool, number: int) -> str:
    """One agent's whole life: files in, commands, a file out, the sealed tree."""
    # Files in: a layer at creation (or a here-document in a command). Read-only layers are mounts, and in no sealed tree.
    task = Layer(archive=archive_of_files({"numbers.txt": "\n".join(map(str, range(number + 2))).encode()}), at="/app")
    spec = SandboxSpec(key=f"agent{number}", layers=(task,), limits=Limits(memory_mb=64, processes=16))
    async with pool.sandbox(spec, deadline_s=30) as sandbox:
        await sandbox.run("total() { echo $(($(paste -sd+ numbers.txt))); }", limit_s=5)
        # One shell for all commands: the function is still there.
        result = await sandbox.run("total > answer.txt; cat answer.txt", limit_s=5)
        answer = await sandbox.read_file("/app/answer.txt")
        assert answer == result.text.encode()
        archive = await sandbox.seal()  # every process is dead; the bytes are a function of the tree
        assert find_file(archive, "app/answer.txt") == answer
        try:
            await sandbox.run("echo late", limit_s=5)
        except SandboxSealed:
            return f"{spec.key}: {result.text.strip()}, sealed in {len(archive)} bytes"
    raise AssertionError("a sealed sandbox runs nothing")


async def limits(pool: SandboxPool) -> None:
    """What an agent does to itself comes back as a value or as a named error, never as a hang."""
    async with pool.sandbox(SandboxSpec(key="limits", limits=Limits(memory_mb=48, output_bytes=100))) as sandbox:
        endless = await sandbox.run("while :; do :; done", limit_s=0.5)
        print(
            f"endless command: exit {endless.exit_code} after {endless.seconds:.1f} s, limits hit: {endless.limit_hit}"
        )
        chatty = await sandbox.run("seq 100000", limit_s=5)
        print(
            f"output: {len(chatty.text)} characters kept, {chatty.truncated_bytes:,} bytes dropped: {chatty.limit_hit}"
        )
        try:
            hungry = await sandbox.run("x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}", limit_s=20)
            print(f"out of memory: exit {hungry.exit_code}, limits hit: {hungry.limit_hit}")
        except SandboxDied as error:
            print(f"out of memory: the whole sandbox died of {error.cause}; it can still be sealed")


async def interrupted(pool: SandboxPool) -> None:
    """A deadline of asyncio's in the middle of a command."""
    try:
        async with asyncio.timeout(0.5), pool.sandbox(SandboxSpec(key="slow")) as sandbox:
            await sandbox.run("sleep 1000", limit_s=600)
    except TimeoutError:
        print(f"timed out in the middle of a command; sandboxes alive: {await pool.reattach()}")


async def main(directory: Path) -> None:
    backend = NamespaceBackend(directory, name="example")
    pool = SandboxPool(backend, Admission(TokenBucket(rate_per_s=50, burst=4), max_live=4))
    async with backend.running(), pool.running() as found:
        print(f"sandboxes of an earlier program: {found}")
        async with asyncio.TaskGroup() as tasks:  # more agents than slots: the rest wait in line
            agents = [tasks.create_task(agent(pool, number)) for number in range(AGENTS)]
        for done in agents:
            print(done.result())
        await limits(pool)
        await interrupted(pool)
        counts = pool.metrics
        print(
            f"made {counts.created}, reclaimed {counts.reclaimed}, leaked {counts.leaked}, tried again {counts.retries}"
        )


def show(directory: Path) -> None:
    asyncio.run(main(directory))
    print("left:", sorted(path.name for path in directory.iterdir()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        show(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            show(Path(folder))
