"""The pool's effects on real sandboxes, where two of them meet."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import trio

from t1actors import config as cfg
from t1actors.actors.pool import Create, Pool, Reclaim, Run, Seal
from t1actors.events import (
    AnyEvent,
    ObservationDiverged,
    SandboxReady,
    SandboxReclaimed,
    SandboxRestored,
    SandboxSealed,
    StepOpened,
    TrialFailed,
    TrialSpec,
    TurnExecuted,
)
from t1actors.log.blobs import MemoryBlobs
from t1actors.runtime.actor import ActorContext, Effect, Performing
from tests.actors.test_pool import turn

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


class Played:
    """A pool with one trial, whose agent runs given commands; ``lose`` takes its sandbox away, as a machine's end does."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.state = pool.initial()
        spec = TrialSpec(trial="s0.t0", index=0, task=TASK, seed=0, turn_limit=9)
        self.fold(
            StepOpened(
                step=0, purpose="train", version="v", version_index=0, batch_size=1, temperature=1.0, trials=(spec,)
            )
        )

    def fold(self, event: AnyEvent) -> None:
        self.state = self.pool.fold(self.state, event)

    async def run(self, number: int, command: str) -> Sequence[AnyEvent]:
        self.fold(msgspec.structs.replace(turn("s0.t0", number), command=command))
        results = await perform(self.pool, Run(key=f"s0.t0/{number}/run", trial="s0.t0", turn=number, command=command))
        for event in results:
            self.fold(event)
        return results

    async def lose(self) -> None:
        await self.pool._pool.kill("s0.t0")


def play(tmp_path: Path, main: Callable[[Played], Awaitable[None]]) -> None:
    async def in_the_pool() -> None:
        config = cfg.resolve(preset="smoke").config
        pool = Pool(ActorContext("pool", tmp_path, config, MemoryBlobs(), 1, trio.current_time))
        async with pool.running():
            await perform(pool, Create(key="s0.t0/create", trial="s0.t0", task=TASK))
            await main(Played(pool))
            await perform(pool, Reclaim(key="s0.t0/kill", trial="s0.t0"))

    trio.run(in_the_pool)


def test_a_lost_sandbox_is_made_again_with_what_was_done_in_it(host_makes_sandboxes: None, tmp_path: Path) -> None:
    async def main(trial: Played) -> None:
        await trial.run(0, "echo one > file; cd /tmp; false")
        await trial.run(1, "X=two; pwd")
        await trial.lose()
        restored, executed = await trial.run(2, "cat - ~/file 2>&1 /dev/null; cat $OLDPWD/file; echo $X; pwd")
        assert isinstance(restored, SandboxRestored)
        assert restored.turns == 2
        assert isinstance(executed, TurnExecuted)
        assert "one\ntwo\n/tmp" in executed.observation

    play(tmp_path, main)


def test_what_was_done_is_sealed_also_when_the_sandbox_was_lost_before(
    host_makes_sandboxes: None, tmp_path: Path
) -> None:
    async def main(trial: Played) -> None:
        await trial.run(0, "echo one > file")
        [whole] = await perform(trial.pool, Seal(key="s0.t0/seal", trial="s0.t0", task=TASK))
        await trial.lose()
        restored, again = await perform(trial.pool, Seal(key="s0.t0/seal", trial="s0.t0", task=TASK))
        assert isinstance(restored, SandboxRestored)
        assert isinstance(whole, SandboxSealed)
        assert isinstance(again, SandboxSealed)
        assert again.layer.digest == whole.layer.digest

    play(tmp_path, main)


def test_a_restoring_that_was_cut_short_is_gone_on_with_before_anything_else_happens(
    host_makes_sandboxes: None, tmp_path: Path
) -> None:
    async def main(trial: Played) -> None:
        await trial.run(0, "echo one > file")
        await trial.run(1, "echo two >> file")
        [whole] = await perform(trial.pool, Seal(key="s0.t0/seal", trial="s0.t0", task=TASK))
        await trial.lose()
        # A pool made the sandbox again, came as far as the first command, and died; this is the next one.
        await perform(trial.pool, Create(key="s0.t0/create", trial="s0.t0", task=TASK))
        await trial.pool._shown("s0.t0", 0, "echo one > file")
        trial.pool._restoring._whole.clear()
        [sealed] = await perform(trial.pool, Seal(key="s0.t0/seal", trial="s0.t0", task=TASK))
        assert isinstance(whole, SandboxSealed)
        assert isinstance(sealed, SandboxSealed)
        assert sealed.layer.digest == whole.layer.digest

    play(tmp_path, main)


def test_a_sandbox_that_is_lost_before_its_first_command_is_made_again(
    host_makes_sandboxes: None, tmp_path: Path
) -> None:
    async def main(trial: Played) -> None:
        await trial.lose()
        trial.pool._restoring._whole.clear()
        restored, executed = await trial.run(0, "pwd")
        assert isinstance(restored, SandboxRestored)
        assert isinstance(executed, TurnExecuted)

    play(tmp_path, main)


def test_a_command_that_shows_something_else_the_second_time_fails_the_trial_by_name(
    host_makes_sandboxes: None, tmp_path: Path
) -> None:
    async def main(trial: Played) -> None:
        [first] = await trial.run(0, "cat /proc/sys/kernel/random/uuid | head -c 4")
        await trial.lose()
        diverged, failed = await trial.run(1, "ls")
        assert isinstance(first, TurnExecuted)
        assert isinstance(diverged, ObservationDiverged)
        assert (diverged.turn, diverged.recorded) == (0, first.observation)
        assert diverged.observed != first.observation
        assert isinstance(failed, TrialFailed)
        assert (failed.cause, "turn 0" in failed.detail) == ("Diverged", True)

    play(tmp_path, main)
