"""Nothing is lost and nothing is done twice, whoever dies whenever: whole runs that die at any append and resume."""

from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.config import Config, ScheduleConfig
from t1actors.events import EffectFinished, GenerationQuiesced, RunFailed, decode
from t1actors.log.memory import MemoryLog
from t1actors.runtime.actor import Decision
from t1actors.runtime.clock import run_virtual, virtual_clock
from t1actors.runtime.errors import ActorFailed, RecoveryError, leaves
from t1actors.runtime.host import host_actor
from t1actors.runtime.local import run_local
from tests.runtime import toys
from tests.runtime.worlds import Crash, MortalLog, World, settle

TOTAL = 120
CONFIG = Config(schedule=ScheduleConfig(train_steps=TOTAL))


def journal(log, name):
    reader = log.open_reader(name)
    found = []
    while frames := reader.read():
        found.extend(decode(raw) for frame in frames for raw in frame.events)
    return found


def numbers(log, name):
    return [event.step for event in journal(log, name) if isinstance(event, GenerationQuiesced)]


async def run_chain(log, clock=None):
    return await run_local(
        toys.CHAIN,
        config=CONFIG,
        log=log,
        blobs=None,
        run_dir=Path("run"),
        concludes="sink",
        clock=clock or virtual_clock(),
    )


def with_appends_between_deaths(log, deaths):
    """Runs the chain until it ends, dying at the given counts of appends; the number of incarnations."""

    async def main():
        for incarnation, (appends, lands) in enumerate([*deaths, (None, False)], 1):
            mortal = MortalLog(log)
            mortal.dies_at, mortal.lands = appends, lands
            try:
                await run_chain(mortal)
            except (ActorFailed, Crash, BaseExceptionGroup):
                assert mortal.dead
                continue
            return incarnation

    return run_virtual(main)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=8))
def test_a_chain_gives_exact_results_through_any_deaths(deaths):
    log = MemoryLog()
    with_appends_between_deaths(log, deaths)
    assert numbers(log, "source") == list(range(TOTAL))
    assert numbers(log, "triple") == [3 * n for n in range(TOTAL)]
    finished = [event.key for event in journal(log, "source") if isinstance(event, EffectFinished)]
    assert len(finished) == len(set(finished))


def test_the_deaths_of_the_property_above_do_happen():
    assert with_appends_between_deaths(MemoryLog(), [(10, True), (10, False), (30, True)]) == 4


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_run_in_one_process_works_on_both_backends(backend):
    log = MemoryLog()

    async def main():
        return await run_chain(log)

    result = anyio.run(main, backend=backend)
    assert (result.reason, result.detail) == ("finished", f"{TOTAL} steps")
    kinds = [type(event).__name__ for event in journal(log, "supervisor")]
    assert kinds[0] == "RunStarted"
    assert sorted(kinds[1:-1]) == ["ActorReady"] * 3 + ["ActorStarted"] * 3
    assert kinds[-1] == "RunStopped"


def test_an_actors_failure_names_it_and_stops_the_run():
    class Failing(toys.Triple):
        def decide(self, state, event):
            if isinstance(event, GenerationQuiesced) and event.step == 7:
                raise ValueError("no such number")
            return super().decide(state, event)

    log = MemoryLog()

    async def main():
        actors = [(name, Failing if name == "triple" else factory) for name, factory in toys.CHAIN]
        with pytest.raises(ActorFailed, match="actor triple failed: ValueError: no such number") as raised:
            await run_local(actors, config=CONFIG, log=log, blobs=None, run_dir=Path("run"), concludes="sink")
        assert raised.value.actor == "triple"

    anyio.run(main, backend="trio")
    assert numbers(log, "triple") == [3 * n for n in range(7)]


def test_a_run_that_failed_says_why():
    class Failing(toys.Sink):
        def decide(self, state, event):
            if isinstance(event, GenerationQuiesced) and event.step == 30:
                return Decision(events=[RunFailed(step=3, reason="too few")])
            return super().decide(state, event)

    async def main():
        actors = [(name, Failing if name == "sink" else factory) for name, factory in toys.CHAIN]
        return await run_local(
            actors, config=CONFIG, log=MemoryLog(), blobs=None, run_dir=Path("run"), concludes="sink"
        )

    result = anyio.run(main, backend="trio")
    assert (result.reason, result.detail) == ("failed", "too few")


class Forgetful:
    """A log whose journal ``source`` has lost its end."""

    def __init__(self, log, keeps):
        self.log = log
        self.keeps = keeps

    def __getattr__(self, name):
        return getattr(self.log, name)

    def open_reader(self, name, *, from_sequence=0):
        reader = self.log.open_reader(name, from_sequence=from_sequence)
        if name == "source":
            frames = [frame for frame in reader.read() if frame.next_sequence <= self.keeps]
            reader.read = lambda **_: [frames.pop(0)] if frames else []
        return reader


def test_an_input_that_cannot_be_read_again_is_named():
    world = World()
    world.introduce("source", "triple")
    world.say("source", *(toys.number(n, "source") for n in range(5)))
    world.say("source", *(toys.number(n, "source") for n in range(5)))

    async def main():
        async with world.hosting(toys.Triple, "triple"):
            await settle()
        with pytest.raises(RecoveryError, match="event 5 of journal source was applied and cannot be read again"):
            await host_actor(
                toys.Triple,
                name="triple",
                log=Forgetful(world.log, keeps=5),
                blobs=None,
                config=CONFIG,
                run_dir=Path("run"),
            )

    run_virtual(main)


def test_a_failed_append_ends_the_actor_and_is_not_tried_again():
    async def main():
        log = MortalLog(MemoryLog())
        log.dies_at = 12
        with pytest.raises((Crash, ActorFailed, BaseExceptionGroup)) as raised:
            await run_chain(log)
        assert log.appends == 12
        assert all(isinstance(error, (Crash, ActorFailed)) for error in leaves(raised.value))

    run_virtual(main)
