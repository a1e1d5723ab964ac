"""Harnesses that others wrote, unmodified, against the endpoint. Second tier: litellm and mini-swe-agent bring much along."""

import functools
import importlib.util
import re

import anyio
import pytest

from t1actors.engine.torch_engine import TorchEngine
from t1actors.models.folder import model_folder
from t1actors.models.tokenizer import Tokenizer
from t1actors.sandbox.admission import Admission, TokenBucket
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.interface import SandboxSpec
from t1actors.sandbox.pool import SandboxPool
from t1actors.tito.record import Geometry
from t1actors.tito.render.choice import renderer_for
from tests.harness.endpoint.scripted import ScriptedEngine, an_endpoint, audit_all, last_said
from tests.tito.plain_renderer import END, call_ids, letters

pytestmark = pytest.mark.slow
TEMPLATES = {
    "system_template": "You work in a shell, by the tool bash.",
    "instance_template": "{{task}} When it is done, run: echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
}
DEMO = model_folder("builtin:demo")


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    """They look for settings in the user's home and for prices in the network."""
    monkeypatch.setenv("MSWEA_SILENT_STARTUP", "1")
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path / "mini"))
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def needs(name):
    return pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"{name} is not installed: pip install -e '.[harnesses]'"
    )


@needs("litellm")
@pytest.mark.parametrize("stream", [False, True])
def test_litellm_calls_tools_and_every_boundary_is_strict(stream, tmp_path):
    import litellm

    def says(request):
        if "rc" in last_said(request):
            return (*letters("Done."), END)
        return (*letters("I look."), *call_ids("bash", '{"command": "ls"}'), END)

    def work(url):
        tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
        messages = [{"role": "user", "content": "what is there?"}]
        for _ in range(2):
            answer = litellm.completion(
                model="openai/m", base_url=url, api_key="none", messages=messages, tools=tools, stream=stream
            )
            if stream:
                answer = litellm.stream_chunk_builder(list(answer), messages=messages)
            message = answer.choices[0].message
            messages.append(message.model_dump())
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": "a\nrc 0"} for call in message.tool_calls or ()
            ]
        assert messages[-1]["content"] == "Done."

    async def main():
        async with an_endpoint(tmp_path / "e", engine=ScriptedEngine(says)) as endpoint:
            await anyio.to_thread.run_sync(work, endpoint.session_url("s"))
            await endpoint.core.reward("s", 1.0)
            audit_all(endpoint, chunks=1)

    anyio.run(main, backend="trio")


class SandboxEnvironment:
    """An environment for mini-swe-agent whose commands run in a sandbox of the pool."""

    def __init__(self, sandbox):
        self._sandbox = sandbox
        self.ran = []

    def execute(self, action, cwd=""):
        from minisweagent.exceptions import Submitted

        result = anyio.from_thread.run(functools.partial(self._sandbox.run, action["command"], limit_s=10))
        self.ran.append((action["command"], result.exit_code))
        if result.text.strip() == "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT":
            raise Submitted({"role": "exit", "content": "", "extra": {"exit_status": "Submitted", "submission": ""}})
        return {"output": result.text, "returncode": result.exit_code, "exception_info": ""}

    def get_template_vars(self, **kwargs):
        return kwargs

    def serialize(self):
        return {}


def an_agent(url, environment, *, step_limit, max_tokens=300):
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.models.litellm_model import LitellmModel

    model = LitellmModel(
        model_name="openai/m",
        cost_tracking="ignore_errors",
        model_kwargs={"base_url": url, "api_key": "none", "max_tokens": max_tokens},
    )
    return DefaultAgent(model, environment, step_limit=step_limit, max_consecutive_format_errors=0, **TEMPLATES)


async def work_in_a_sandbox(tmp_path, endpoint, **agent):
    """What the agent's run came to, and what it ran."""
    backend = NamespaceBackend(tmp_path / "sandboxes", name="mini")
    pool = SandboxPool(backend, Admission(TokenBucket(100, 10), max_live=2))
    async with backend.running(), pool.running(), pool.sandbox(SandboxSpec(key="one")) as sandbox:
        environment = SandboxEnvironment(sandbox)

        def work():
            return an_agent(endpoint.session_url("s"), environment, **agent).run("Write hello into the file greeting.")

        return await anyio.to_thread.run_sync(work), environment.ran


COMMANDS = ["echo hello > greeting", "cat greeting missing", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]


@needs("minisweagent")
@pytest.mark.usefixtures("host_makes_sandboxes")
def test_mini_swe_agent_solves_a_task_in_a_sandbox_and_its_trajectory_is_one_clean_chunk(tmp_path):
    def says(request):
        done = len(re.findall("<returncode>", "".join(chr(i - 8) for i in request.ids if i >= 8)))
        return (*letters(f"Step {done}."), *call_ids("bash", f'{{"command": "{COMMANDS[done]}"}}'), END)

    async def main():
        async with an_endpoint(tmp_path / "e", engine=ScriptedEngine(says)) as endpoint:
            outcome, ran = await work_in_a_sandbox(tmp_path, endpoint, step_limit=10)
            assert outcome["exit_status"] == "Submitted"
            assert ran == list(zip(COMMANDS, [0, 1, 0], strict=True))
            await endpoint.core.reward("s", 1.0)
            (trajectory,) = audit_all(endpoint, chunks=1)
            assert [b.case for b in trajectory.stitched.boundaries] == ["STRICT", "STRICT"]

    anyio.run(main, backend="trio")


@needs("minisweagent")
@pytest.mark.usefixtures("host_makes_sandboxes")
def test_mini_swe_agent_on_a_model_that_talks_nonsense_still_leaves_a_clean_record(tmp_path):
    """It drops an answer without a call and complains: each such answer is a branch, and trained once."""

    async def main():
        engine = TorchEngine(DEMO, max_live_sequences=4, max_ids=1024)
        geometry = Geometry.of_model_config((DEMO / "config.json").read_bytes())
        renderer = renderer_for(Tokenizer.from_folder(DEMO))
        async with an_endpoint(
            tmp_path / "e", engine=engine, renderer=renderer, geometry=geometry, max_ids=1024
        ) as endpoint:
            outcome, _ = await work_in_a_sandbox(tmp_path, endpoint, step_limit=4, max_tokens=12)
            assert outcome["exit_status"] == "LimitsExceeded"
            session = endpoint.core.session("s")
            joins = session.graph.joins()
            assert joins["history"] == joins["answer"] == joins["tools"] == 0
            await endpoint.core.reward("s", 0.0)
            (trajectory,) = audit_all(endpoint, strict=False)
            sampled = sum(len(node.turn.sampled_ids) for node in session.graph.nodes)
            assert trajectory.stitched.sampled == sampled > 0

    anyio.run(main, backend="trio")
