"""The client of OpenAI, unmodified, against the endpoint."""

import anyio
import httpx2
import openai
import pytest

from tests.harness.endpoint.scripted import ScriptedEngine, an_endpoint, audit_all, last_said
from tests.tito.plain_renderer import END, PlainRenderer, call_ids, letters

BACKENDS = ["trio", "asyncio"]
RUN = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


def calls_a_tool_then_answers(request):
    if "rc" in last_said(request):
        return (*letters("There is one file."), END)
    return (*letters("I look."), *call_ids("run", '{"command": "ls"}'), END)


def client_of(endpoint, session="s", **changes):
    """The asynchronous client works under asyncio alone; this one works in a thread."""
    return openai.OpenAI(
        base_url=endpoint.session_url(session), api_key="none", **({"max_retries": 0, "timeout": 20} | changes)
    )


def in_thread(call):
    return anyio.to_thread.run_sync(call)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_conversation_of_the_client_is_one_chunk_and_every_boundary_strict(backend, tmp_path):
    def talk(client):
        messages = [{"role": "user", "content": "hello"}]
        for text in ("more", "and more", "the end"):
            answer = client.chat.completions.create(model="m", messages=messages)
            assert answer.choices[0].finish_reason == "stop"
            messages += [answer.choices[0].message, {"role": "user", "content": text}]
        return answer

    async def main():
        async with an_endpoint(tmp_path) as endpoint:
            answer = await in_thread(lambda: talk(client_of(endpoint)))
            assert answer.choices[0].message.content.startswith("I saw")
            held = answer.usage.prompt_tokens_details.cached_tokens
            assert 0 < held < answer.usage.prompt_tokens
            await endpoint.core.reward("s", 0.5)
            (trajectory,) = audit_all(endpoint, chunks=1)
            assert trajectory.reward == 0.5
            assert len(trajectory.stitched.boundaries) == 2

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_go_out_and_their_answers_come_back(stream, backend, tmp_path):
    def whole_of(client, messages):
        if not stream:
            return client.chat.completions.create(model="m", messages=messages, tools=[RUN]).choices[0].message
        with client.chat.completions.stream(model="m", messages=messages, tools=[RUN]) as events:
            return events.get_final_completion().choices[0].message

    def work(client):
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is there?"}]
        first = whole_of(client, messages)
        (call,) = first.tool_calls
        assert (first.content, call.function.name, call.function.arguments) == ("I look.", "run", '{"command": "ls"}')
        messages += [
            first.model_dump(exclude_none=True, exclude={"parsed"}),
            {"role": "tool", "tool_call_id": call.id, "content": "a\nrc 0"},
        ]
        assert whole_of(client, messages).content == "There is one file."

    async def main():
        async with an_endpoint(tmp_path, engine=ScriptedEngine(calls_a_tool_then_answers)) as endpoint:
            await in_thread(lambda: work(client_of(endpoint)))
            assert endpoint.core.session("s").graph.joins()["extension"] == 1
            await endpoint.core.reward("s", 1.0)
            (trajectory,) = audit_all(endpoint, chunks=1)
            opening = PlainRenderer().opening  # what a full render of the same conversation gives
            del opening
            assert trajectory.stitched.non_canonical_turns == 0

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("stream", [False, True])
def test_the_responses_api_carries_calls_and_their_outputs(stream, tmp_path):
    tool = {"type": "function", **RUN["function"]}

    def whole_of(client, items):
        if not stream:
            return client.responses.create(model="m", input=items, tools=[tool], instructions="be brief")
        with client.responses.stream(model="m", input=items, tools=[tool], instructions="be brief") as events:
            return events.get_final_response()

    def work(client):
        items = [{"role": "user", "content": "what is there?"}]
        first = whole_of(client, items)
        assert [item.type for item in first.output] == ["message", "function_call"]
        call = first.output[1]
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in first.output]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "a\nrc 0"})
        assert whole_of(client, items).output_text == "There is one file."

    async def main():
        async with an_endpoint(tmp_path, engine=ScriptedEngine(calls_a_tool_then_answers)) as endpoint:
            await in_thread(lambda: work(client_of(endpoint)))
            assert endpoint.core.session("s").graph.joins()["extension"] == 1
            await endpoint.core.reward("s", 1.0)
            audit_all(endpoint, chunks=1)

    anyio.run(main, backend="trio")


def test_a_stream_gives_what_the_whole_answer_would_and_its_usage_when_asked(tmp_path):
    def work(client):
        events = list(
            client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "hello"}],
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        assert text.startswith("I saw")
        assert events[-1].usage.completion_tokens == len(text) + 1
        assert [event.choices[0].finish_reason for event in events if event.choices][-1] == "stop"

    async def main():
        async with an_endpoint(tmp_path) as endpoint:
            await in_thread(lambda: work(client_of(endpoint)))

    anyio.run(main, backend="trio")


def test_a_turn_cut_off_says_length_and_is_closed_by_the_next_call_as_context(tmp_path):
    def work(client):
        messages = [{"role": "user", "content": "hello"}]
        first = client.chat.completions.create(model="m", messages=messages, max_tokens=4)
        assert (first.choices[0].finish_reason, first.choices[0].message.content) == ("length", "I sa")
        messages += [first.choices[0].message, {"role": "user", "content": "go on"}]
        assert client.chat.completions.create(model="m", messages=messages).choices[0].finish_reason == "stop"

    async def main():
        async with an_endpoint(tmp_path) as endpoint:
            await in_thread(lambda: work(client_of(endpoint)))
            await endpoint.core.reward("s", 1.0)
            (trajectory,) = audit_all(endpoint, chunks=1)
            (chunk,) = trajectory.stitched.record.chunks
            arrays, end_of_first = chunk.arrays(), chunk.turns[0][1]
            assert (arrays.ids_N[end_of_first], arrays.mask_N[end_of_first]) == (END, 0)

    anyio.run(main, backend="trio")


def test_logprobs_are_those_of_the_sampled_ids(tmp_path):
    def work(client):
        answer = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], logprobs=True, max_tokens=3
        )
        assert [round(t.logprob, 4) for t in answer.choices[0].logprobs.content] == [-0.1, -0.2, -0.3]

    async def main():
        async with an_endpoint(tmp_path) as endpoint:
            await in_thread(lambda: work(client_of(endpoint)))

    anyio.run(main, backend="trio")


REFUSED = [
    {"top_p": 0.8},
    {"n": 2},
    {"stop": ["x"]},
    {"logit_bias": {"5": 1}},
    {"presence_penalty": 0.5},
    {"response_format": {"type": "json_object"}},
    {"tool_choice": "required", "tools": [RUN]},
    {"temperature": 0},
    {"extra_body": {"min_p": 0.1}},
    {"top_logprobs": 5, "logprobs": True},
    {"max_tokens": 0},
]


@pytest.mark.parametrize("changes", REFUSED, ids=lambda changes: next(iter(changes)))
def test_what_would_change_the_sampled_distribution_is_refused_by_name(changes, tmp_path):
    name = next(iter(changes.get("extra_body", changes)))

    def work(client):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}], **changes)
        assert refused.value.param == name
        assert name in refused.value.message

    async def main():
        async with an_endpoint(tmp_path) as endpoint:
            await in_thread(lambda: work(client_of(endpoint)))
            assert endpoint.core.sessions() == []

    anyio.run(main, backend="trio")


def test_neutral_values_of_what_is_not_done_are_taken(tmp_path):
    def work(client):
        client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], top_p=1.0, n=1, presence_penalty=0.0,
            response_format={"type": "text"}, user="me", seed=3,
        )  # fmt: skip

    async def main():
        async with an_endpoint(tmp_path) as endpoint:
            await in_thread(lambda: work(client_of(endpoint)))

    anyio.run(main, backend="trio")


def test_the_client_knows_the_errors(tmp_path):
    hello = [{"role": "user", "content": "hello"}]

    def work(endpoint):
        client = client_of(endpoint)
        with pytest.raises(openai.NotFoundError, match="model here is 'm'"):
            client.chat.completions.create(model="other", messages=hello)
        with pytest.raises(openai.BadRequestError) as too_long:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 5000}])
        assert too_long.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as bad_role:
            client.chat.completions.create(model="m", messages=[{"role": "wizard", "content": "x"}])
        assert bad_role.value.param == "messages[0].role"
        without = openai.OpenAI(base_url=f"{endpoint.base_url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.BadRequestError, match="X-Session-Id"):
            without.chat.completions.create(model="m", messages=hello)
        without.chat.completions.create(model="m", messages=hello, extra_headers={"X-Session-Id": "by-header"})
        assert [model.id for model in without.models.list()] == ["m"]
        assert httpx2.get(f"{endpoint.base_url}/nowhere").json()["error"]["code"] == "not_found"

    async def main():
        async with an_endpoint(tmp_path) as endpoint:
            await in_thread(lambda: work(endpoint))
            assert [session.name for session in endpoint.core.sessions()] == ["by-header"]

    anyio.run(main, backend="trio")


def test_a_token_is_asked_for_everywhere_but_for_health(tmp_path):
    def work(endpoint):
        with pytest.raises(openai.AuthenticationError):
            client_of(endpoint).models.list()
        assert httpx2.get(f"{endpoint.base_url}/sessions").status_code == 401
        assert httpx2.delete(f"{endpoint.base_url}/sessions/s").status_code == 401
        assert httpx2.get(f"{endpoint.base_url}/health").json()["status"] == "ok"
        good = openai.OpenAI(base_url=endpoint.session_url("s"), api_key="secret", max_retries=0)
        assert good.models.list().data[0].id == "m"

    async def main():
        async with an_endpoint(tmp_path, token="secret") as endpoint:
            await in_thread(lambda: work(endpoint))

    anyio.run(main, backend="trio")
