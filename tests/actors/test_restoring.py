"""A lost sandbox made again: what its commands show now is what they showed then, or the trial cannot go on."""

import anyio
import msgspec
import pytest

from t1actors.actors.restoring import OUT_OF_MEMORY, Diverged, History, Restoring, restore
from t1actors.events import TurnExecuted
from t1actors.sandbox.errors import SandboxSealed
from tests.actors.test_pool import turn

TRIAL = "s0.t0"


def history(*shown: str | None) -> History:
    """Of a trial whose turns showed this; None: the sandbox ran out of memory."""
    found = History()
    for number, text in enumerate(shown):
        found.fold(msgspec.structs.replace(turn(TRIAL, number), command=f"command {number}"))
        found.fold(
            TurnExecuted(
                trial=TRIAL,
                turn=number,
                observation=text or "",
                exit_code=137 if text is None else 0,
                seconds=0.1,
                sandbox_died=text is None,
            )
        )
    return found


def restored(found: History, *shows: str | None) -> int:
    """What restoring says when the commands show this now."""
    ran: list[str] = []

    async def run(turn: int, command: str) -> str | None:
        assert command == f"command {turn}"
        ran.append(command)
        return shows[turn]

    async def main() -> int:
        return await restore(TRIAL, found, run)

    turns = anyio.run(main)
    assert len(ran) == turns
    return turns


def test_commands_that_show_the_same_restore_the_sandbox():
    assert restored(history("a", "b"), "a", "b") == 2


def test_a_sandbox_that_ran_out_of_memory_does_so_again_and_is_restored():
    assert restored(history("a", None), "a", None) == 2


@pytest.mark.parametrize(
    ("before", "now", "turn", "recorded", "observed"),
    [
        (("a", "b"), ("a", "c"), 1, "b", "c"),
        (("a", None), ("a", "b"), 1, OUT_OF_MEMORY, "b"),
        (("a", None), ("a", ""), 1, OUT_OF_MEMORY, ""),
        (("a", "b"), (None, "b"), 0, "a", OUT_OF_MEMORY),
    ],
)
def test_what_shows_something_else_is_named(before, now, turn, recorded, observed):
    with pytest.raises(Diverged) as raised:
        restored(history(*before), *now)
    assert (raised.value.turn, raised.value.recorded, raised.value.observed) == (turn, recorded, observed)


def test_a_sandbox_that_ran_out_of_memory_and_was_sealed_before_its_pool_died_can_be_sealed_again():
    """Its shim has no answer for the command that it died of, and lets nothing run any more."""
    found = history(None)
    calls: list[str] = []

    async def run(trial: str, turn: int, command: str) -> str | None:
        raise SandboxSealed(f"sandbox {trial} is sealed")

    async def exists(trial: str) -> None:
        calls.append("exists")

    async def make_again(trial: str) -> None:
        raise AssertionError("it is there")

    async def seal() -> bytes:
        return b"layer"

    async def main() -> None:
        restoring = Restoring(lambda: found, exists, run, make_again)
        assert await restoring.inside(TRIAL, seal) == (None, b"layer")

    anyio.run(main)
    assert calls == ["exists"]


def test_a_trial_without_a_sandbox_is_forgotten():
    found = history("a", None)
    found.forget(TRIAL)
    assert restored(found) == 0
    assert found.died_in(TRIAL) is None
