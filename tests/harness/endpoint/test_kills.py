"""kill -9 of the endpoint at every moment: no committed turn is lost or doubled, and the client goes on.

The client is OpenAI's, unmodified: it retries by itself what broke before an answer began. A process that died is started
again on the same directory and port, as a service manager does.
"""

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import anyio
import httpx2
import openai
import pytest

from t1actors.events import TurnSampled
from t1actors.harness.endpoint.journal import FileJournal
from tests.harness.endpoint.scripted import an_endpoint, audit_all


class Service:
    """Keeps an endpoint running: whenever its process ends, the next one is started. Only the first has a fate."""

    def __init__(self, directory, *fate):
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/sessions/s/v1"
        self.starts = 0
        self._directory = directory
        self._stopped = False
        self._process = self._start(*fate)
        self._keeper = threading.Thread(target=self._keep)
        self._keeper.start()

    def _start(self, *fate):
        self.starts += 1
        command = [sys.executable, "-m", "tests.harness.endpoint.mortal_server", str(self._directory), str(self.port)]
        process = subprocess.Popen([*command, *map(str, fate)], stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        return process

    def _keep(self):
        while True:
            self._process.wait()
            self._process.stdout.close()
            if self._stopped:
                return
            self._process = self._start()

    def kill(self):
        self._process.send_signal(signal.SIGKILL)

    def stop(self):
        self._stopped = True
        self._process.kill()
        self._keeper.join()


@contextmanager
def a_service(directory, *fate):
    service = Service(directory, *fate)
    try:
        yield service
    finally:
        service.stop()


class Harness:
    """A conversation by an unmodified client; ``call`` is one turn."""

    def __init__(self, url, *, stream=False, key=False):
        self.client = openai.OpenAI(base_url=url, api_key="none", max_retries=12, timeout=30)
        self.stream = stream
        self.key = key
        self.messages = [{"role": "user", "content": "begin"}]
        self.answers = []
        self.broken = 0

    def call(self):
        headers = {"Idempotency-Key": f"k{len(self.answers)}"} if self.key else {}
        while True:
            try:
                text = self._once(headers)
                break
            except (openai.APIConnectionError, httpx2.TransportError):  # an answer that broke off in the middle
                self.broken += 1
                time.sleep(0.2)
        self.answers.append(text)
        self.messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": f"go on {len(self.answers)}"},
        ]

    def _once(self, headers):
        create = self.client.chat.completions.create
        if not self.stream:
            return create(model="m", messages=self.messages, extra_headers=headers).choices[0].message.content
        events = list(create(model="m", messages=self.messages, stream=True, extra_headers=headers))
        if not any(event.choices and event.choices[0].finish_reason for event in events):
            raise openai.APIConnectionError(message="the stream broke off", request=None)
        return "".join(event.choices[0].delta.content or "" for event in events)


def turns_in(directory):
    return [event for event in FileJournal(directory).events() if isinstance(event, TurnSampled)]


def the_record_is_the_conversation(directory, harness):
    """Every answer that the client has is one committed turn, none is there twice, and the record is one clean chunk."""
    turns = turns_in(directory)
    assert [turn.turn for turn in turns] == list(range(len(harness.answers)))
    assert [turn.chat.continues for turn in turns] == [None, *range(len(turns) - 1)]

    async def main():
        async with an_endpoint(directory, max_ids=20_000) as endpoint:
            graph = endpoint.core.session("s").graph
            assert [node.given.content for node in graph.nodes] == harness.answers
            await endpoint.core.reward("s", 1.0)
            audit_all(endpoint, chunks=1)

    anyio.run(main)


@pytest.mark.parametrize("moment", ["sampling", "before", "after"])
@pytest.mark.parametrize("turn", [1, 3])
def test_a_client_that_retries_by_itself_gets_the_committed_turn_whenever_the_endpoint_was_killed(
    moment, turn, tmp_path
):
    with a_service(tmp_path, moment, turn) as service:
        harness = Harness(service.url)
        for _ in range(4):
            harness.call()
        assert service.starts == 2
    the_record_is_the_conversation(tmp_path, harness)


@pytest.mark.parametrize("moment", ["before", "after", "streaming"])
def test_a_stream_that_broke_off_is_the_same_turn_again_under_its_key(moment, tmp_path):
    with a_service(tmp_path, moment, 2) as service:
        harness = Harness(service.url, stream=True, key=True)
        for _ in range(4):
            harness.call()
        assert service.starts == 2
        assert harness.broken == (1 if moment == "streaming" else 0)
    the_record_is_the_conversation(tmp_path, harness)


@pytest.mark.slow
def test_kills_at_any_time_lose_and_double_nothing(tmp_path):
    rng = random.Random(7)
    with a_service(tmp_path) as service:
        harness = Harness(service.url, key=True)
        over = threading.Event()

        def kill_now_and_then():
            while not over.wait(rng.uniform(1.5, 4.0)):
                service.kill()

        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        try:
            while len(harness.answers) < 40 or service.starts < 5:
                harness.call()
        finally:
            over.set()
            killer.join()
    the_record_is_the_conversation(tmp_path, harness)
