"""The pool's effects on real sandboxes, where two of them meet."""

from collections.abc import Sequence
from pathlib import Path

import trio

from t1actors import config as cfg
from t1actors.actors.pool import Create, Pool, Reclaim, Run, Seal
from t1actors.events import AnyEvent, SandboxReady, SandboxReclaimed, SandboxSealed
from t1actors.log.blobs import MemoryBlobs
from t1actors.runtime.actor import ActorContext, Effect, Performing

TASK = "l1-100000000"


async def _no_report(done: float, total: float, unit: str) -> None:
    raise AssertionError("the pool reports no progress")


async def perform(pool: Pool, effect: Effect) -> Sequence[AnyEvent]:
    return await pool.perform(effect, Performing(attempt=1, report=_no_report))


def test_a_command_that_meets_its_trials_seal_fails_nothing(host_makes_sandboxes: None, tmp_path: Path) -> None:
    """The agent's time runs out between a turn and its command: the trial is graded as it stands."""

    async def main() -> None:
        config = cfg.resolve(preset="smoke").config
        pool = Pool(ActorContext("pool", tmp_path, config, MemoryBlobs(), 1, trio.current_time))
        async with pool.running():
            [ready] = await perform(pool, Create(key="s0.t0/create", trial="s0.t0", task=TASK))
            assert isinstance(ready, SandboxReady)
            [sealed] = await perform(pool, Seal(key="s0.t0/seal", trial="s0.t0", task=TASK))
            assert isinstance(sealed, SandboxSealed)
            assert await perform(pool, Run(key="s0.t0/0/run", trial="s0.t0", turn=0, command="ls")) == []
            [reclaimed] = await perform(pool, Reclaim(key="s0.t0/kill", trial="s0.t0"))
            assert isinstance(reclaimed, SandboxReclaimed)

    trio.run(main)
