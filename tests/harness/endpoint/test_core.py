"""Calls, retries, concurrency and the ends of sessions, without HTTP; and what a restart brings back."""

import anyio
import msgspec
import pytest

from t1actors.engine.interface import EngineStopped
from t1actors.harness.endpoint import chat
from t1actors.harness.endpoint.core import EndpointCore
from t1actors.harness.endpoint.errors import CallRefused
from t1actors.harness.endpoint.journal import FileJournal
from t1actors.harness.endpoint.settings import Settings
from t1actors.log.errors import JournalFailed
from tests.harness.endpoint.scripted import GEOMETRY, ScriptedEngine
from tests.tito.plain_renderer import END, PlainRenderer, call_ids, letters

BACKENDS = ["trio", "asyncio"]


class Running:
    """A core over a journal in ``directory``, running for the block."""

    def __init__(self, directory, engine=None, **changes):
        self.engine = engine or ScriptedEngine()
        self.journal = FileJournal(directory)
        settings = Settings(**({"max_ids": 4000, "max_new_tokens": 400} | changes))
        self.core = EndpointCore(self.engine, PlainRenderer(), self.journal, geometry=GEOMETRY, settings=settings)

    async def __aenter__(self):
        self._block = self.journal.running()
        await self._block.__aenter__()
        self.core.restore()
        return self.core

    async def __aexit__(self, *error):
        return await self._block.__aexit__(*error)


def a_call(*texts, request_id="", is_retry=False, **changes):
    """A call of a conversation that alternates between user and assistant."""
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    body = msgspec.json.encode({"model": "m", "messages": messages, **changes})
    return chat.read_call(body, request_id=request_id, is_retry=is_retry).call


def state_of(core):
    return [(s.name, s.graph.nodes, s.notes, s.reward, s.closed) for s in core.sessions()]


def run(main, backend="trio"):
    anyio.run(main, backend=backend)


async def refusal(awaitable):
    with pytest.raises(CallRefused) as refused:
        await awaitable
    return refused.value


# --- what is the same call ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_request_id_is_one_turn_however_often_it_comes(backend, tmp_path):
    async def main():
        running = Running(tmp_path)
        async with running as core:
            first = await core.call("s", a_call("hi", request_id="r1"))
            again = await core.call("s", a_call("hi", request_id="r1"))
            assert first == again
            assert len(running.engine.requests) == 1
            refused = await refusal(core.call("s", a_call("ho", request_id="r1")))
            assert (refused.status, refused.code) == (422, "request_id_reused")

    run(main, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", [{"request_id": "r1"}, {"is_retry": True}])
def test_a_retry_that_comes_while_the_call_is_at_work_waits_for_it(how, backend, tmp_path):
    async def main():
        running = Running(tmp_path)
        running.engine.gate = anyio.Event()
        answers = []

        async def call(**retry):
            answers.append(await core.call("s", a_call("hi", **{"request_id": how.get("request_id", ""), **retry})))

        async with running as core, anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(lambda: call(**how))
            await anyio.wait_all_tasks_blocked()
            running.engine.gate.set()
        assert answers[0] == answers[1]
        assert len(running.engine.requests) == 1

    run(main, backend)


def test_a_client_that_says_it_lost_the_answer_gets_it_again_and_one_that_does_not_gets_another(tmp_path):
    async def main():
        running = Running(tmp_path)
        async with running as core:
            first = await core.call("s", a_call("hi"))
            assert await core.call("s", a_call("hi", is_retry=True)) == first
            other = await core.call("s", a_call("hi"))
            assert (first.turn, other.turn) == (0, 1)
            seeds = [request.seed for request in running.engine.requests]
            assert len(set(seeds)) == 2
            assert running.engine.requests[0].ids == running.engine.requests[1].ids

    run(main)


def test_an_answer_that_somebody_went_on_from_was_not_lost(tmp_path):
    async def main():
        async with Running(tmp_path) as core:
            first = await core.call("s", a_call("hi"))
            await core.call("s", a_call("hi", first.given.content, "more"))
            assert (await core.call("s", a_call("hi", is_retry=True))).turn == 2

    run(main)


# --- what is at work at once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_that_go_on_with_one_conversation_take_turns_and_fork(backend, tmp_path):
    async def main():
        running = Running(tmp_path)
        async with running as core:
            first = await core.call("s", a_call("hi"))
            answers = []

            async def call(text):
                answers.append(await core.call("s", a_call("hi", first.given.content, text)))

            async with anyio.create_task_group() as tasks:
                for text in ("one", "two", "two"):
                    tasks.start_soon(call, text)
            assert sorted(answer.turn for answer in answers) == [1, 2, 3]
            assert [node.parent for node in core.session("s").graph.nodes] == [None, 0, 0, 0]
            await core.reward("s", 1.0)
            (trajectory,) = core.trajectories()
            assert len(trajectory.stitched.record.chunks) == 3
            assert len({request.seed for request in running.engine.requests}) == 4

    run(main, backend)


def test_sub_agents_of_a_session_are_at_work_at_the_same_time(tmp_path):
    async def main():
        running = Running(tmp_path)
        running.engine.gate = anyio.Event()
        async with running as core, anyio.create_task_group() as tasks:
            for text in ("one", "two", "three"):
                tasks.start_soon(core.call, "s", a_call(text))
            await anyio.wait_all_tasks_blocked()
            assert len(running.engine.live) == 3
            running.engine.gate.set()
        assert sorted(node.number for node in core.session("s").graph.nodes) == [0, 1, 2]

    run(main)


def test_a_call_that_waits_too_long_for_its_conversation_is_told_so(tmp_path):
    async def main():
        running = Running(tmp_path, busy_wait_s=0.0)
        async with running as core:
            first = await core.call("s", a_call("hi"))
            running.engine.gate = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(core.call, "s", a_call("hi", first.given.content, "a"))
                await anyio.wait_all_tasks_blocked()
                refused = await refusal(core.call("s", a_call("hi", first.given.content, "b")))
                assert (refused.status, refused.code) == (409, "conversation_busy")
                running.engine.gate.set()

    run(main)


def test_too_many_calls_at_once_are_asked_to_come_again(tmp_path):
    async def main():
        running = Running(tmp_path, max_calls=1)
        running.engine.gate = anyio.Event()
        async with running as core, anyio.create_task_group() as tasks:
            tasks.start_soon(core.call, "s", a_call("hi"))
            await anyio.wait_all_tasks_blocked()
            refused = await refusal(core.call("t", a_call("hi")))
            assert (refused.status, refused.retry_after_s) == (429, 1.0)
            running.engine.gate.set()

    run(main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_session_that_is_closed_during_a_call_ends_it_and_nothing_of_it_is_kept(backend, tmp_path):
    async def main():
        running = Running(tmp_path)
        async with running as core:
            first = await core.call("s", a_call("hi"))
            before = list(core.session("s").graph.nodes)
            running.engine.gate = anyio.Event()
            refused = []

            async def call():
                refused.append(await refusal(core.call("s", a_call("hi", first.given.content, "more"))))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await anyio.wait_all_tasks_blocked()
                await core.close("s")
            assert (refused[0].status, refused[0].code) == (409, "session_closed")
            assert core.session("s").graph.nodes == before
            assert running.engine.abandoned == 1
            assert (await refusal(core.call("s", a_call("ho")))).code == "session_closed"

    run(main, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_that_is_abandoned_leaves_no_trace(backend, tmp_path):
    async def main():
        running = Running(tmp_path)
        running.engine.gate = anyio.Event()
        async with running as core:
            with anyio.move_on_after(0.05):
                await core.call("s", a_call("hi"))
            assert running.engine.abandoned == 1
            assert (core.sessions(), core.live_calls) == ([], 0)
        assert list(FileJournal(tmp_path).events()) == []

    run(main, backend)


# --- what is refused ------------------------------------------------------------------------------------------------------


def test_a_call_that_is_refused_leaves_the_session_as_it_was(tmp_path):
    class Stopping(ScriptedEngine):
        stopped = False

        async def generate(self, request):
            if self.stopped:
                raise EngineStopped("the engine stopped")
            return await super().generate(request)

    async def main():
        running = Running(tmp_path, Stopping(), max_turns=2)
        async with running as core:
            first = await core.call("s", a_call("hi"))
            before = state_of(core)
            running.engine.stopped = True
            refusals = [
                await refusal(core.call("s", a_call("hi", first.given.content))),
                await refusal(core.call("s", a_call("hi", first.given.content, "x" * 5000))),
                await refusal(core.call("s", a_call("hi", first.given.content, "more", temperature=0.5))),
                await refusal(core.call("s", a_call("hi", first.given.content, "more"))),
            ]
            assert [r.status for r in refusals] == [400, 400, 400, 503]
            assert state_of(core) == before
            running.engine.stopped = False
            answered = await core.call("s", a_call("hi", first.given.content, "more"))
            assert answered.turn == 1

    run(main)


def test_a_reward_is_one_finite_number_of_a_session_with_turns_and_closes_it(tmp_path):
    async def main():
        async with Running(tmp_path) as core:
            assert (await refusal(core.reward("s", 1.0))).status == 404
            await core.open("s", task="count")
            assert (await refusal(core.open("s", task="count"))).code == "session_exists"
            assert (await refusal(core.reward("s", 1.0))).code == "no_turns"
            await core.call("s", a_call("hi"))
            for wrong in (float("nan"), float("inf")):
                assert (await refusal(core.reward("s", wrong))).code == "invalid_reward"
            assert core.trajectories() == []
            await core.reward("s", 0.25)
            assert (await refusal(core.reward("s", 0.5))).code == "reward_reported"
            (trajectory,) = core.trajectories()
            assert (trajectory.reward, trajectory.stitched.record.task) == (0.25, "count")
            await core.forget(["s"])
            assert core.sessions() == []
            assert (await refusal(core.call("s", a_call("hi")))).status == 410

    run(main)


def test_a_session_that_was_closed_may_be_rewarded_later(tmp_path):
    async def main():
        async with Running(tmp_path) as core:
            await core.call("s", a_call("hi"))
            await core.close("s")
            await core.close("s")
            assert core.trajectories() == []
            await core.reward("s", -1.0)
            assert [t.reward for t in core.trajectories()] == [-1.0]

    run(main)


def test_a_call_that_could_not_be_read_is_shown_as_it_was_written(tmp_path):
    def says(request):
        return (*call_ids("run", "{"), END)

    async def main():
        async with Running(tmp_path, ScriptedEngine(says)) as core:
            answered = await core.call("s", a_call("hi"))
            assert answered.given.content == '{"name": "run", "arguments": {}'
            assert answered.given.tool_calls == ()

    run(main)


def test_of_several_calls_only_the_first_goes_out_to_who_takes_one_at_a_time(tmp_path):
    def says(request):
        return (*call_ids("run", '{"a": 1}'), *call_ids("run", '{"a": 2}'), *letters(""), END)

    async def main():
        async with Running(tmp_path, ScriptedEngine(says)) as core:
            both = await core.call("s", a_call("hi"))
            one = await core.call("s", a_call("hi", parallel_tool_calls=False))
            assert (len(both.given.tool_calls), len(one.given.tool_calls)) == (2, 1)
            assert both.sampled_ids == one.sampled_ids

    run(main)


def test_a_seed_of_the_clients_decides_what_is_drawn(tmp_path):
    async def main():
        running = Running(tmp_path)
        async with running as core:
            await core.call("s", a_call("hi", seed=3))
            await core.call("t", a_call("ho", seed=3))
            await core.call("u", a_call("ho", seed=4))
            seeds = [request.seed for request in running.engine.requests]
            assert seeds[0] == seeds[1] != seeds[2]

    run(main)


def test_a_history_that_was_edited_is_said_with_the_message_that_differs(tmp_path, caplog):
    async def main():
        async with Running(tmp_path) as core:
            first = await core.call("s", a_call("hi"))
            await core.call("s", a_call("ho", first.given.content, "more"))
            await core.call("s", a_call("hi", first.given.content + "!", "more"))
            assert core.session("s").graph.joins()["history"] == core.session("s").graph.joins()["answer"] == 1
            assert len(core.session("s").graph.nodes) == 3

    run(main)
    first, second = caplog.messages
    assert "session s, turn 1: SPLIT" in first
    assert "(message 0)" in first
    assert "not what was given out (message 1)" in second


# --- the journal ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_restarted_endpoint_has_the_same_sessions_and_goes_on(backend, tmp_path):
    async def main():
        async with Running(tmp_path) as core:
            first = await core.call("s", a_call("hi", request_id="r1"))
            second = await core.call("s", a_call("hi", first.given.content, "x" * 3000))  # a blob holds what was said
            await core.call("t", a_call("other"))
            await core.reward("t", 0.5)
            before = state_of(core)
        running = Running(tmp_path)
        async with running as core:
            assert state_of(core) == before
            assert await core.call("s", a_call("hi", request_id="r1")) == first
            again = a_call("hi", first.given.content, "x" * 3000, is_retry=True)
            assert await core.call("s", again) == second
            third = await core.call("s", a_call("hi", first.given.content, "x" * 3000, second.given.content, "on"))
            assert third.held_ids == second.prompt_ids + len(second.sampled_ids)
            await core.reward("s", 1.0)
            assert [t.session for t in core.trajectories()] == ["s", "t"]
            assert [len(t.stitched.record.chunks) for t in core.trajectories()] == [1, 1]

    run(main, backend)


def test_a_journal_that_cannot_be_written_is_said_and_nothing_is_answered(tmp_path, monkeypatch):
    async def main():
        running = Running(tmp_path)
        async with running as core:
            await core.call("s", a_call("hi"))

            def fail(*_):
                raise JournalFailed("the disk is full")

            monkeypatch.setattr(running.journal._writer, "append", fail)
            refused = await refusal(core.call("s", a_call("ho")))
            assert (refused.status, len(core.session("s").graph.nodes)) == (503, 1)
            assert "disk is full" in core.failed

    run(main)


def test_calls_that_are_answered_at_once_share_a_flush(tmp_path):
    async def main():
        running = Running(tmp_path)
        async with running as core, anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(core.call, f"s{n}", a_call("hi"))
        reader = running.journal._log.open_reader("endpoint")
        frames = reader.read()
        reader.close()
        assert sum(len(frame.events) for frame in frames) == 40
        assert len(frames) < 20

    run(main)


# --- tool calls that nobody can execute ---------------------------------------------------------------------------------


def test_broken_and_foreign_tool_calls_are_counted_warned_of_and_still_there_after_a_restart(tmp_path, caplog):
    said = iter([(*call_ids("ls", "{"), END), (*letters("<tool_call>{}</tool_call>"), END), (*letters("well"), END)])

    async def main():
        async with Running(tmp_path, ScriptedEngine(lambda request: next(said))) as core:
            first = await core.call("s", a_call("one"))
            second = await core.call("s", a_call("one", first.given.content, "two"))
            await core.call("s", a_call("one", first.given.content, "two", second.given.content, "three"))
        async with Running(tmp_path) as core:
            session = core.session("s")
            assert (session.broken_calls, session.foreign_calls) == (1, {"qwen3": 1})
            assert session.graph.joins()["extension"] == 2

    run(main)
    warned = [record.getMessage() for record in caplog.records]
    assert "session s, turn 0: a tool call that cannot be read" in warned[0]
    assert "session s, turn 1: a tool call in the format of qwen3, and the model is taken for plain" in warned[1]
