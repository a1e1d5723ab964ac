"""The HTTP face: what hangs up, what is too large, and whose session it is."""

import anyio
import httpx2
import pytest

from tests.harness.endpoint.scripted import ScriptedEngine, an_endpoint

BACKENDS = ["trio", "asyncio"]
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_abandons_its_call_and_nothing_is_kept(stream, backend, tmp_path):
    async def main():
        engine = ScriptedEngine()
        engine.gate = anyio.Event()
        async with an_endpoint(tmp_path, engine=engine) as endpoint, httpx2.AsyncClient(timeout=20) as http:
            url = f"{endpoint.session_url('s')}/chat/completions"
            with pytest.raises(httpx2.ReadTimeout):
                await http.post(url, json={**HELLO, "stream": stream}, timeout=0.5)
            with anyio.fail_after(20):
                while endpoint.core.live_calls:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            assert engine.abandoned == 1
            assert endpoint.core.sessions() == []
            engine.gate.set()
            assert (await http.post(url, json=HELLO)).json()["id"] == "chatcmpl-s-0"

    anyio.run(main, backend=backend)


def test_a_body_over_the_limit_is_not_read_on(tmp_path):
    async def main():
        async with an_endpoint(tmp_path, max_body_bytes=1000) as endpoint, httpx2.AsyncClient(timeout=20) as http:
            answer = await http.post(f"{endpoint.session_url('s')}/chat/completions", content=b"x" * 5000)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")

    anyio.run(main, backend="trio")


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b'{"model": "m"}', b'{"model": "m", "messages": "hi"}'])
def test_what_is_no_call_is_refused(body, tmp_path):
    async def main():
        async with an_endpoint(tmp_path) as endpoint, httpx2.AsyncClient(timeout=20) as http:
            for api in ("chat/completions", "responses"):
                answer = await http.post(f"{endpoint.session_url('s')}/{api}", content=body)
                assert answer.status_code == 400
                assert answer.json()["error"]["type"] == "invalid_request_error"

    anyio.run(main, backend="trio")


def test_a_session_is_named_by_path_or_header_and_not_by_both(tmp_path):
    async def main():
        async with an_endpoint(tmp_path) as endpoint, httpx2.AsyncClient(timeout=20) as http:
            url = f"{endpoint.session_url('s')}/chat/completions"
            both = await http.post(url, json=HELLO, headers={"X-Session-Id": "t"})
            assert both.json()["error"]["code"] == "session_ambiguous"
            odd = await http.post(
                f"{endpoint.base_url}/v1/chat/completions", json=HELLO, headers={"X-Session-Id": "../t"}
            )
            assert odd.json()["error"]["code"] == "invalid_session"

    anyio.run(main, backend="trio")


def test_a_session_is_opened_rewarded_and_shown_over_http(tmp_path):
    async def main():
        async with an_endpoint(tmp_path) as endpoint, httpx2.AsyncClient(timeout=20) as http:
            place = f"{endpoint.base_url}/sessions/s"
            opened = await http.post(place, json={"task": "count", "temperature": 0.5})
            assert (opened.json()["task"], opened.json()["temperature"]) == ("count", 0.5)
            await http.post(f"{place}/v1/chat/completions", json=HELLO)
            for wrong in (b'{"reward": NaN}', b'{"reward": "high"}', b'{"reward": 1e999}', b"{}"):
                assert (await http.post(f"{place}/reward", content=wrong)).status_code == 400
            assert (await http.post(f"{place}/reward", json={"reward": 0.25})).json()["closed"] is True
            assert (await http.post(f"{place}/reward", json={"reward": 0.25})).status_code == 409
            assert (await http.get(place)).json()["reward"] == 0.25
            assert (await http.delete(place)).status_code == 200
            assert (await http.delete(f"{endpoint.base_url}/sessions/other")).status_code == 404
            assert [trajectory.stitched.record.temperature for trajectory in endpoint.trajectories()] == [0.5]

    anyio.run(main, backend="trio")


def test_a_host_that_others_reach_needs_a_token(tmp_path):
    from t1actors.harness.endpoint.journal import FileJournal
    from t1actors.harness.endpoint.serving import serve
    from t1actors.harness.endpoint.settings import Settings
    from tests.harness.endpoint.scripted import GEOMETRY
    from tests.tito.plain_renderer import PlainRenderer

    async def main():
        with pytest.raises(ValueError, match="give a token"):
            async with serve(
                ScriptedEngine(), PlainRenderer(), FileJournal(tmp_path), geometry=GEOMETRY,
                settings=Settings(max_ids=10), host="0.0.0.0",
            ):  # fmt: skip
                pass

    anyio.run(main, backend="trio")
