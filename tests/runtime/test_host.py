"""The host's promises, one actor at a time, in virtual time."""

import anyio
import pytest

from t1actors.events import (
    CancelRequested,
    EffectFinished,
    EffectIntended,
    GenerationQuiesced,
    ProgressReported,
    TimerFired,
)
from t1actors.log.interface import MAX_FRAME_BYTES
from t1actors.runtime.actor import Decision, Effect, Wait
from t1actors.runtime.clock import run_virtual
from t1actors.runtime.errors import EffectStalled, HostError, leaves
from tests.runtime.recorder import Act, Recorder, driven, recorder
from tests.runtime.toys import number
from tests.runtime.worlds import World, settle


class Other(Effect, frozen=True, kw_only=True):
    pass


def test_own_outputs_are_folded_and_only_finished_effects_are_decided_on():
    async def main():
        world = driven(1)
        answer = Decision(events=[number(50, "actor")], effects=[Act(key="act")])
        async with world.hosting(recorder(n1=answer)) as actor:
            await settle()
            own = [type(event).__name__ for event in actor.seen if getattr(event, "replica", "") != "driver"][2:]
            assert own == ["GenerationQuiesced", "EffectIntended", "GenerationQuiesced", "EffectFinished"]
            assert [event.step for event in actor.decided if isinstance(event, GenerationQuiesced)] == [1]
            assert [event.key for event in actor.decided if isinstance(event, EffectFinished)] == ["act"]

    run_virtual(main)


def test_an_effect_begins_only_when_its_intent_is_durable():
    async def main():
        world = driven(1)
        durable_at_begin = []

        class Checking(recorder(n1=Decision(effects=[Act(key="act")]))):
            async def perform(self, effect, performing):
                durable_at_begin.append(world.events("actor", EffectIntended))
                return []

        async with world.hosting(Checking):
            await settle()
        assert [[intent.key for intent in intents] for intents in durable_at_begin] == [["act"]]

    run_virtual(main)


def test_an_effects_results_and_its_end_and_the_decision_on_it_are_one_frame():
    async def main():
        world = driven(1)

        class Deciding(recorder(n1=Decision(effects=[Act(key="act")]))):
            def decide(self, state, event):
                if isinstance(event, EffectFinished):
                    return Decision(events=[number(51, "actor")])
                return super().decide(state, event)

        async with world.hosting(Deciding):
            await settle()
        last = world.frames("actor")[-1]
        assert len(last.events) == 3
        (run,) = last.head.inputs
        assert (run.journal, run.first, run.last, run.emitted) == (
            "actor",
            last.base_sequence,
            last.base_sequence + 1,
            1,
        )

    run_virtual(main)


def test_a_restart_folds_to_the_state_of_the_live_actor():
    async def main():
        world = driven(1, 2, 3, 4)
        answers = recorder(
            n2=Decision(events=[number(60, "actor"), number(61, "actor")]),
            n4=Decision(events=[number(62, "actor")], effects=[Act(key="act")]),
        )
        async with world.hosting(answers) as first:
            await settle()
        async with world.hosting(answers) as second:
            assert second.seen == first.seen
            assert second.decided == []

    run_virtual(main)


def test_inputs_that_emitted_nothing_cost_no_frame_until_the_end():
    async def main():
        world = driven(*range(50))
        async with world.hosting(recorder()):
            await settle()
            assert world.frames("actor") == []
        (frame,) = world.frames("actor")
        assert [(run.journal, run.first, run.last) for run in frame.head.inputs] == [
            ("supervisor", 0, 1),
            ("driver", 0, 49),
        ]

    run_virtual(main)


@pytest.mark.parametrize("landed", [False, True])
def test_an_effect_is_performed_again_with_its_key_when_its_result_was_lost(landed):
    async def main():
        world = driven(1)
        acts = recorder(n1=Decision(effects=[Act(key="act")]))

        class Losing(acts):
            async def perform(self, effect, performing):
                await super().perform(effect, performing)
                await anyio.sleep(0 if landed else 1000)
                return [number(100, "world")]

        async with world.hosting(Losing, crash=True) as first:
            await settle()
            assert first.performed == [("act", 1)]
        async with world.hosting(acts) as second:
            await settle()
            assert second.performed == ([] if landed else [("act", 2)])
        (finished,) = world.events("actor", EffectFinished)
        assert (finished.key, finished.status, finished.attempt) == ("act", "done", 1 if landed else 2)
        assert [event.step for event in world.events("actor", GenerationQuiesced)] == [100]

    run_virtual(main)


def test_a_deadline_stops_the_effect_and_ends_it_as_deadline():
    async def main():
        world = driven(1)

        class Slow(recorder(n1=Decision(effects=[Act(key="act", deadline_s=30.0)]))):
            async def perform(self, effect, performing):
                performing.phases["waited"] = 1.5
                await anyio.sleep(1000)
                return [number(100, "world")]

        async with world.hosting(Slow) as actor:
            await anyio.sleep(29)
            assert world.events("actor", EffectFinished) == []
            await anyio.sleep(2)
            (finished,) = world.events("actor", EffectFinished)
            assert (finished.status, finished.phases) == ("deadline", {"waited": 1.5})
            assert 30 <= finished.seconds < 30.1
            assert actor.decided[-1] == finished

    run_virtual(main)


def test_a_cancel_stops_the_effect_and_a_cancel_of_a_finished_one_is_ignored():
    async def main():
        world = driven(1)

        class Slow(recorder(n1=Decision(effects=[Act(key="act")]), n2=Decision(cancels=["act", "unknown"]))):
            async def perform(self, effect, performing):
                await anyio.sleep(1000)
                return [number(100, "world")]

        async with world.hosting(Slow):
            await settle()
            world.say("driver", number(2, "driver"))
            world.say("driver", number(2, "driver"))
            await settle()
            assert [event.key for event in world.events("actor", CancelRequested)] == ["act"]
            assert [event.status for event in world.events("actor", EffectFinished)] == ["cancelled"]
            world.say("driver", number(2, "driver"))
            await settle()
            assert len(world.events("actor", CancelRequested)) == 1

    run_virtual(main)


def test_a_cancel_outlives_a_crash():
    async def main():
        world = driven(1)
        script = recorder(n1=Decision(effects=[Act(key="act")]), n2=Decision(cancels=["act"]))

        class Stubborn(script):
            async def perform(self, effect, performing):
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.5)
                return []

        async with world.hosting(Stubborn, crash=True):
            await settle()
            world.say("driver", number(2, "driver"))
            await settle()
            assert len(world.events("actor", CancelRequested)) == 1
        async with world.hosting(script) as second:
            await settle()
            assert second.performed == []
        assert [event.status for event in world.events("actor", EffectFinished)] == ["cancelled"]

    run_virtual(main)


def test_a_wait_fires_after_what_is_left_of_it_across_a_restart():
    async def main():
        world = driven(1)
        waits = recorder(n1=Decision(effects=[Wait(key="timer", seconds=100.0)]))
        began_s = anyio.current_time()
        async with world.hosting(waits, crash=True):
            await anyio.sleep(40)
        await anyio.sleep(30)
        async with world.hosting(waits) as actor:
            while not world.events("actor", TimerFired):
                await settle(0.5)
            assert 99 <= anyio.current_time() - began_s <= 102
            assert actor.decided[-1] == TimerFired(key="timer", due_s=100.0)
        async with world.hosting(waits):
            await anyio.sleep(200)
        assert len(world.events("actor", TimerFired)) == 1

    run_virtual(main)


def test_progress_is_recorded_and_folded_but_not_decided_on():
    async def main():
        world = driven(1)

        class Bulk(recorder(n1=Decision(effects=[Act(key="act")]))):
            async def perform(self, effect, performing):
                await performing.report(3, 10, "files")
                await anyio.sleep(5)
                return []

        async with world.hosting(Bulk) as actor:
            await settle()
            progress = ProgressReported(key="act", done=3, total=10, unit="files")
            assert world.events("actor", ProgressReported) == [progress]
            assert progress in actor.seen
            assert progress not in actor.decided

    run_virtual(main)


def test_a_clean_stop_leaves_running_effects_open_for_the_next_incarnation():
    async def main():
        world = driven(1)

        class Slow(recorder(n1=Decision(effects=[Act(key="act")]))):
            async def perform(self, effect, performing):
                self.performed.append((effect.key, performing.attempt))
                await anyio.sleep(1000)
                return []

        for attempt in (1, 2, 3):
            async with world.hosting(Slow) as actor:
                await settle()
                assert actor.performed == [("act", attempt)]
        assert world.events("actor", EffectFinished) == []

    run_virtual(main)


def test_many_large_decisions_are_split_between_frames_and_never_inside_one():
    async def main():
        world = driven(*range(1, 9))
        large = [number(n, "x" * 60_000) for n in range(4)]
        script = recorder(**{f"n{n}": Decision(events=large) for n in range(1, 9)})
        async with world.hosting(script) as first:
            await settle()
        frames = world.frames("actor")
        assert len(frames) > 1
        assert all(len(frame.events) % 4 == 0 for frame in frames)
        assert all(sum(map(len, frame.events)) < MAX_FRAME_BYTES for frame in frames)
        async with world.hosting(script) as second:
            assert second.seen == first.seen

    run_virtual(main)


def test_a_foreign_frame_committed_in_parts_is_applied_once():
    async def main():
        world = driven()
        world.say("driver", *(number(n, "driver") for n in range(1, 9)))
        large = [number(n, "x" * 60_000) for n in range(4)]
        script = recorder(**{f"n{n}": Decision(events=large) for n in range(1, 9)})

        async with world.hosting(script):
            await settle()
        whole = world.events("actor")

        # The same, but only the first of its frames was durable.
        cut = driven()
        cut.say("driver", *(number(n, "driver") for n in range(1, 9)))
        first = world.frames("actor")[0]
        writer = cut.log.open_writer("actor")
        writer.append(first.head, first.events)
        writer.close()
        assert first.head.inputs[-1].last < 7, "the frame is to end inside the driver's"
        async with cut.hosting(script):
            await settle()
        assert cut.events("actor") == whole

    run_virtual(main)


def test_one_decision_larger_than_a_frame_is_refused_by_name():
    async def main():
        world = driven(1)
        script = recorder(n1=Decision(events=[number(n, "x" * 60_000) for n in range(10)]))
        with pytest.raises(BaseExceptionGroup) as raised:
            async with world.hosting(script):
                await settle()
        (error,) = leaves(raised.value)
        assert isinstance(error, HostError)
        assert "actor actor: one decision" in str(error)
        assert "event 0 of journal driver" in error.__notes__[0]

    run_virtual(main)


def test_one_key_for_two_different_effects_is_refused_and_the_same_effect_twice_is_one():
    async def main():
        slow = [Act(key="act", deadline_s=5.0)]
        world = driven(1, 2)
        async with world.hosting(recorder(n1=Decision(effects=slow * 2), n2=Decision(effects=slow))) as actor:
            await settle()
            assert len(world.events("actor", EffectIntended)) == 1
            assert actor.performed == [("act", 1)]
        world = driven(1, 2)
        other = Decision(effects=[Other(key="act", deadline_s=5.0)])
        with pytest.raises(BaseExceptionGroup) as raised:
            async with world.hosting(recorder(n1=Decision(effects=slow), n2=other)):
                await settle()
        assert "effect key act is open" in str(leaves(raised.value)[0])

    run_virtual(main)


def test_another_deadline_for_what_is_under_way_changes_nothing():
    """A newer version of the code may give an effect more time: the one that is open is still the same one."""

    async def main():
        world = driven(1, 2)
        patient = Decision(effects=[Act(key="act", deadline_s=6.0, stall_s=9.0)])
        async with world.hosting(recorder(n1=Decision(effects=[Act(key="act", deadline_s=5.0)]), n2=patient)) as actor:
            await settle()
            assert len(world.events("actor", EffectIntended)) == 1
            assert actor.performed == [("act", 1)]

    run_virtual(main)


def test_bulk_work_may_take_long_as_long_as_it_shows_progress_and_is_stuck_when_it_does_not():
    async def main():
        world = driven(1)
        told = []

        class Bulk(recorder(n1=Decision(effects=[Act(key="act", stall_s=60.0)]))):
            async def perform(self, effect, performing):
                for done in range(4):
                    await anyio.sleep(50)
                    await performing.report(done, 4, "parts")
                await anyio.sleep(1000)
                return []

        async def stalled(reason):
            told.append((round(anyio.current_time()), reason))

        with pytest.raises(BaseExceptionGroup) as raised:
            async with world.hosting(Bulk, stalled=stalled):
                await anyio.sleep(300)
        (error,) = leaves(raised.value)
        assert isinstance(error, EffectStalled)
        assert told == [(260, "act has made no progress for 60 s")]
        assert str(error) == told[0][1]

    run_virtual(main)


def test_what_perform_raises_ends_the_actor_and_leaves_the_intent_open():
    async def main():
        world = driven(1)

        class Broken(recorder(n1=Decision(effects=[Act(key="act")]))):
            async def perform(self, effect, performing):
                raise RuntimeError("the disk is on fire")

        with pytest.raises(BaseExceptionGroup) as raised:
            async with world.hosting(Broken):
                await settle()
        assert [str(error) for error in leaves(raised.value)] == ["the disk is on fire"]
        assert len(world.events("actor", EffectIntended)) == 1
        assert world.events("actor", EffectFinished) == []

    run_virtual(main)


def test_replicas_are_read_together_and_strangers_are_not():
    async def main():
        class Reader(Recorder):
            reads = frozenset({"sampler"})

        world = World()
        world.introduce("sampler", "sampler1", "sampler12", "samplers", "verifier", "actor")
        for name in ("sampler", "sampler1", "sampler12", "samplers", "verifier"):
            world.say(name, number(1, name))
        async with world.hosting(Reader) as actor:
            await settle()
            heard = {event.replica for event in actor.seen if isinstance(event, GenerationQuiesced)}
            assert heard == {"sampler", "sampler1", "sampler12"}

    run_virtual(main)


def test_what_a_frame_rests_on_is_applied_before_it_also_when_its_journal_is_only_just_made_known():
    async def main():
        class Reader(Recorder):
            reads = frozenset({"cause", "effect"})

        world = World()
        world.introduce("effect")
        world.introduce("cause")
        for n in range(20):
            world.say("cause", number(n, "cause"), rests_on={"supervisor": 1})
            world.say("effect", number(n, "effect"), rests_on={"cause": n, "supervisor": 1})
        async with world.hosting(Reader) as actor:
            await settle()
            heard = [(event.step, event.replica) for event in actor.seen if isinstance(event, GenerationQuiesced)]
        assert len(heard) == 40
        for n in range(20):
            assert heard.index((n, "cause")) < heard.index((n, "effect"))

    run_virtual(main)


def test_an_actors_frames_rest_on_all_that_its_inputs_rested_on():
    async def main():
        world = driven()
        world.say("driver", number(1, "driver"), rests_on={"supervisor": 0, "elsewhere": 7, "actor": 3})
        script = recorder(n1=Decision(events=[number(50, "actor")]), n2=Decision(events=[number(51, "actor")]))
        async with world.hosting(script):
            await settle()
        assert world.frames("actor")[0].head.vector == {"supervisor": 1, "driver": 0, "elsewhere": 7}
        async with world.hosting(script):
            world.say("driver", number(2, "driver"))
            await settle()
        assert world.frames("actor")[-1].head.vector == {"supervisor": 1, "driver": 1, "elsewhere": 7}

    run_virtual(main)
