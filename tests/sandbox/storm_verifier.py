"""The verifier's process of the storm: grades what the pool's process sealed, each in a sandbox of its own.

python -m tests.sandbox.storm_verifier DIRECTORY TRIALS SEED [SOCKET IMAGE]
"""

from __future__ import annotations

from pathlib import Path

import anyio

from t1actors.verify.grade import grade
from tests.sandbox.storm_parts import LEASE_S, LIMITS, backend_at, names_of, noting, run_process, the_task

WIDTH = 4
_LOOK_AGAIN_S = 0.05


async def main(directory: Path, trials: int, seed: int, daemon: list[str]) -> int:
    task = the_task(directory)
    done = set((directory / "done").read_text().split())
    taken = set(done)
    backend = backend_at(directory / "graders", "verifier", daemon)
    with noting(directory / "done") as file:

        async def work() -> None:
            while len(done) < trials:
                waiting = [
                    name for name in names_of(trials) if name not in taken and (directory / "sealed" / name).exists()
                ]
                if not waiting:
                    await anyio.sleep(_LOOK_AGAIN_S)
                    continue
                name = waiting[seed % len(waiting)]
                taken.add(name)
                layer = (directory / "sealed" / name).read_bytes()
                verdict = await grade(task, layer, backend, key=name, deadline_s=30, lease_s=LEASE_S, limits=LIMITS)
                if verdict.outcome == "graded":
                    file.write(f"{name}\n".encode())
                    done.add(name)
                else:  # somebody killed its sandbox
                    taken.discard(name)

        async with backend.running():
            await backend.reap()
            async with anyio.create_task_group() as workers:
                for _ in range(WIDTH):
                    workers.start_soon(work)
    return 0


if __name__ == "__main__":
    run_process(main)
