"""The pool with the Terminus harness, on real sandboxes: turns once each, made again when lost, and a missing tmux named."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from t1actors import config as cfg
from t1actors.actors.pool import Create, Pool, Reclaim, Seal
from t1actors.events import ObservationDiverged, SandboxReady, SandboxRestored, SandboxSealed, TrialFailed, TurnExecuted
from t1actors.harness.terminus import terminal
from t1actors.harness.terminus.program import Keys, Program
from t1actors.log.blobs import MemoryBlobs
from t1actors.runtime.actor import ActorContext
from tests.actors.test_pool_in_sandboxes import TASK, Played, perform

pytestmark = [
    pytest.mark.usefixtures("host_makes_sandboxes"),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux on the host"),
]
PROMPT = "root@sandbox:/app#"
CREATE = Create(key="s0.t0/create", trial="s0.t0", task=TASK)


def play(tmp_path: Path, main: Callable[[Played, SandboxReady], Awaitable[None]]) -> None:
    async def in_the_pool() -> None:
        config = cfg.resolve(preset="smoke", sets=["rollout.harness=terminus"]).config
        pool = Pool(ActorContext("pool", tmp_path, config, MemoryBlobs(), 1, trio.current_time))
        async with pool.running():
            [ready] = await perform(pool, CREATE)
            assert isinstance(ready, SandboxReady)
            await main(Played(pool), ready)
            await perform(pool, Reclaim(key="s0.t0/kill", trial="s0.t0"))

    trio.run(in_the_pool)


def typed(text: str, wait_s: float = 0.5) -> str:
    return Program(keys=(Keys(text, wait_s),)).text()


def test_a_turn_is_typed_once_and_what_can_not_be_read_is_not_typed_at_all(tmp_path: Path) -> None:
    async def main(trial: Played, ready: SandboxReady) -> None:
        assert ready.screen == PROMPT
        [first] = await trial.run(0, typed("echo x >> file\n"))
        assert isinstance(first, TurnExecuted)
        assert first.observation.endswith(f"{PROMPT} echo x >> file\n{PROMPT}")
        [again] = await trial.run(0, typed("echo x >> file\n"))
        assert again == first
        [unread] = await trial.run(1, Program(complaint="no JSON", unread=1).text())
        assert isinstance(unread, TurnExecuted)
        assert unread.malformed
        assert "no JSON" in unread.observation
        [shown] = await trial.run(2, typed("cat file\n"))
        assert isinstance(shown, TurnExecuted)
        assert shown.observation.endswith(f"{PROMPT} cat file\nx\n{PROMPT}")

    play(tmp_path, main)


def test_a_lost_terminal_is_made_again_with_what_was_typed_in_it(tmp_path: Path) -> None:
    async def main(trial: Played, ready: SandboxReady) -> None:
        await trial.run(0, typed("X=two; echo one > file; cd /tmp\n"))
        await trial.run(1, Program(complaint="no JSON", unread=1).text())
        await trial.run(2, typed("python3 -q\n", 1.0))
        await trial.lose()
        restored, executed = await trial.run(3, typed("C-d"))
        assert isinstance(restored, SandboxRestored)
        assert restored.turns == 3
        assert isinstance(executed, TurnExecuted)
        assert executed.observation.endswith("root@sandbox:/tmp#")
        await trial.lose()
        [_, executed] = await trial.run(4, typed("cat /app/file; echo $X\n"))
        assert isinstance(executed, TurnExecuted)
        assert executed.observation.endswith("one\ntwo\nroot@sandbox:/tmp#")
        await trial.lose()
        restored, sealed = await perform(trial.pool, Seal(key="s0.t0/seal", trial="s0.t0", task=TASK))
        assert isinstance(restored, SandboxRestored)
        assert isinstance(sealed, SandboxSealed)

    play(tmp_path, main)


def test_a_screen_that_shows_the_clock_can_not_be_had_again(tmp_path: Path) -> None:
    async def main(trial: Played, ready: SandboxReady) -> None:
        await trial.run(0, typed("date +%N\n"))
        await trial.lose()
        found, failed = await trial.run(1, typed("ls\n"))
        assert isinstance(found, ObservationDiverged)
        assert isinstance(failed, TrialFailed)

    play(tmp_path, main)


def test_a_sandbox_without_tmux_fails_its_trial_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = terminal.start_script(terminal.Geometry(160, 40, 10_000)).replace("command -v tmux", "command -v no-tmux")
    monkeypatch.setattr(terminal, "start_script", lambda geometry: without)

    async def main() -> None:
        config = cfg.resolve(preset="smoke", sets=["rollout.harness=terminus"]).config
        pool = Pool(ActorContext("pool", tmp_path, config, MemoryBlobs(), 1, trio.current_time))
        async with pool.running():
            [failed] = await perform(pool, CREATE)
            assert isinstance(failed, TrialFailed)
            assert (failed.cause, failed.creating) == ("HarnessError", True)
            assert "no tmux in the sandbox: install it in its image" in failed.detail
            await perform(pool, Reclaim(key="s0.t0/kill", trial="s0.t0"))

    trio.run(main)
