"""What an effect tells while it is performed: durable before it goes on, once, and nobody waits for a host that is gone."""

import anyio
import pytest

from t1actors.events import GenerationQuiesced
from t1actors.runtime.actor import Decision
from t1actors.runtime.clock import run_virtual
from tests.runtime.recorder import Act, driven, recorder
from tests.runtime.toys import number
from tests.runtime.worlds import settle


def test_what_an_effect_tells_is_durable_folded_and_decided_on_before_it_goes_on():
    async def main():
        world = driven(1)
        answer = Decision(events=[number(70, "actor")])

        class Serving(recorder(n1=Decision(effects=[Act(key="act")]), n7=answer)):
            async def perform(self, effect, performing):
                if performing.attempt == 1:
                    assert await performing.tell([number(6, "caller"), number(7, "caller")])
                    assert world.events("actor", GenerationQuiesced)[0] == number(6, "caller"), "not durable yet"
                await anyio.sleep(1000)
                return []

        async with world.hosting(Serving, crash=True) as first:
            await settle()
            told = [event.step for event in first.seen if isinstance(event, GenerationQuiesced)]
            assert told == [1, 6, 7, 70]
            assert [event.step for event in first.decided if isinstance(event, GenerationQuiesced)] == [1, 7]
        async with world.hosting(Serving) as second:
            await settle()
            assert [event.step for event in second.seen if isinstance(event, GenerationQuiesced)] == told

    run_virtual(main)


def test_what_an_effect_tells_after_its_cancelling_was_decided_is_not_kept():
    async def main():
        world = driven(1)
        said = []

        class Serving(recorder(n1=Decision(effects=[Act(key="act")]), n2=Decision(cancels=["act"]))):
            async def perform(self, effect, performing):
                try:
                    await anyio.sleep(1000)
                finally:
                    with anyio.CancelScope(shield=True):
                        said.append(await performing.tell([number(7, "caller")]))
                return []

        async with world.hosting(Serving):
            await settle()
            world.say("driver", number(2, "driver"))
            await settle()
        assert said == [False]
        assert number(7, "caller") not in world.events("actor", GenerationQuiesced)

    run_virtual(main)


@pytest.mark.parametrize("crash", [False, True])
def test_who_tells_a_host_that_stops_or_fails_does_not_wait_for_it(crash):
    async def main():
        world = driven(1)
        said = []

        class Serving(recorder(n1=Decision(effects=[Act(key="act")]))):
            async def perform(self, effect, performing):
                with anyio.CancelScope(shield=True):
                    for n in range(5, 1000):
                        said.append(await performing.tell([number(n, "caller")]))
                        await anyio.sleep(0.02)
                        if not said[-1]:
                            break
                return []

        async with world.hosting(Serving, crash=crash):
            await settle(0.1)
        assert said[0]
        assert not said[-1]

    run_virtual(main)
