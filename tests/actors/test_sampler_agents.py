"""Trials that a program drives: what is told of its calls, how its end ends the trial, and what its next start meets.

The programs are real processes and call over HTTP; the engine is scripted, and the pool is played by the bench.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import pytest
import trio

from t1actors import config as cfg
from t1actors.actors.sampler import SamplerState
from t1actors.actors.sampler_agents import AgentSampler, Drive
from t1actors.engine.interface import GenerateRequest
from t1actors.events import (
    AnyEvent,
    CommandRequested,
    EpisodeEnded,
    Isolation,
    SandboxReady,
    StepOpened,
    TimerFired,
    TrialFailed,
    TrialSpec,
    TurnExecuted,
    TurnSampled,
)
from t1actors.log.blobs import MemoryBlobs
from t1actors.models.folder import model_folder
from t1actors.models.tokenizer import Tokenizer
from t1actors.runtime.actor import ActorContext, Decision, Performing
from tests.harness.endpoint.scripted import ScriptedEngine

TRIAL = "s0.t0"
TOOLS = """
import json, os, sys, time, urllib.error, urllib.request

def post(url, body):
    key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), key)) as response:
        return json.load(response)

def ask(*texts, **more):
    messages = [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(texts)]
    body = {"model": "t1", "messages": messages, **more}
    answer = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    return answer["choices"][0]["message"]["content"]

def run(command):
    return post(os.environ["T1_SANDBOX_URL"], {"command": command})["output"]

task = open(os.environ["T1_INSTRUCTION_FILE"]).read()
"""


class Bench:
    """One sampler with one trial, whose program is ``script`` behind ``TOOLS``. ``told``: what its calls came to."""

    def __init__(self, tmp_path: Path, script: str, *sets: str, turn_limit: int = 4) -> None:
        program = tmp_path / "program.py"
        program.write_text(TOOLS + script)
        harness = ("rollout.harness=command", f'rollout.command="{sys.executable} {program}"')
        self.config = cfg.resolve(preset="smoke", sets=[*harness, *sets]).config
        tokenizer = Tokenizer.from_folder(model_folder(self.config.model.policy))
        self.engine = ScriptedEngine(lambda request: self._says(tokenizer, request))
        self.blobs = MemoryBlobs()
        self.tmp_path, self.turn_limit = tmp_path, turn_limit
        self.told: list[AnyEvent] = []
        self.log: list[AnyEvent] = []
        self.tell_hook: Callable[[AnyEvent], Awaitable[None]] | None = None
        self.begin()

    def begin(self) -> None:
        """A sampler that knows what the log says."""
        context = ActorContext("sampler", self.tmp_path, self.config, self.blobs, 1, lambda: 0.0)
        self.sampler = AgentSampler(context, lambda context: self.engine)
        self.state: SamplerState = self.sampler.initial()
        for event in self.log:
            self.state = self.sampler.fold(self.state, event)

    @staticmethod
    def _says(tokenizer: Tokenizer, request: GenerateRequest) -> tuple[int, ...]:
        return (*tokenizer.encode(f"echo {len(request.ids)}"), request.stop_ids[0])

    def send(self, event: AnyEvent) -> Decision:
        self.log.append(event)
        self.state = self.sampler.fold(self.state, event)
        decision = self.sampler.decide(self.state, event)
        for out in decision.events:
            self.log.append(out)
            self.state = self.sampler.fold(self.state, out)
        return decision

    def ready(self) -> Drive:
        spec = TrialSpec(trial=TRIAL, index=0, task="l1-100000000", seed=7, turn_limit=self.turn_limit)
        self.send(
            StepOpened(
                step=0, purpose="train", version="v", version_index=0, batch_size=1, temperature=1.0, trials=(spec,)
            )
        )
        [drive, _] = self.send(
            SandboxReady(
                trial=TRIAL, task_digest="d", instruction="make a", isolation=Isolation(backend="test"), token_wait_s=0,
                slot_wait_s=0, image_wait_s=0, create_s=0,
            )
        ).effects  # fmt: skip
        assert isinstance(drive, Drive)
        return drive

    async def drive(self, drive: Drive) -> list[AnyEvent]:
        """What the effect ends with; the pool answers each command with its text."""

        async def no_report(done: float, total: float, unit: str) -> None:
            raise AssertionError("no progress is reported")

        async def tell(events: Sequence[AnyEvent]) -> bool:
            if TRIAL not in self.state.trials:
                return False
            for event in events:
                self.told.append(event)
                self.send(event)
                if self.tell_hook is not None:
                    await self.tell_hook(event)
                if isinstance(event, CommandRequested):
                    tasks.start_soon(self.executed, event)
            return True

        async with self.sampler.running(), anyio.create_task_group() as tasks:
            results = await self.sampler.perform(drive, Performing(attempt=1, report=no_report, tell=tell))
            tasks.cancel_scope.cancel()
            return list(results)
        raise AssertionError("unreachable")

    async def executed(self, asked: CommandRequested) -> None:
        shown = f'{{"output": "did {asked.number}"}}'
        event = TurnExecuted(trial=TRIAL, turn=asked.number, observation=shown, exit_code=0, seconds=0.0)
        for hand in self.send(event).effects:
            await self.sampler.perform(hand, Performing(attempt=1, report=_nobody))

    def driven(self) -> list[AnyEvent]:
        return trio.run(self.drive, self.ready())

    @property
    def printed(self) -> str:
        return (self.tmp_path / "agents" / f"{TRIAL}.log").read_text()


async def _nobody(done: float, total: float, unit: str) -> None:
    raise AssertionError("no progress is reported")


def test_a_program_that_exits_with_0_submits_its_trial(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 'first = ask(task); print(run(first)); print(ask(task, first, "and now?"))')
    assert bench.driven() == [EpisodeEnded(trial=TRIAL, reason="submitted", turns=2)]
    first, command, second = bench.told
    assert isinstance(first, TurnSampled)
    assert isinstance(second, TurnSampled)
    assert isinstance(command, CommandRequested)
    assert (first.turn, second.turn, command.number) == (0, 1, 0)
    assert first.chat is not None
    assert second.chat is not None
    assert (first.chat.continues, second.chat.continues, second.chat.join) == (None, 0, "extension")
    assert bench.printed.startswith("did 0\necho ")


def test_a_program_that_fails_after_a_turn_is_graded_as_it_stands(tmp_path: Path) -> None:
    assert Bench(tmp_path, "ask(task); sys.exit(3)").driven() == [
        EpisodeEnded(trial=TRIAL, reason="agent_failed", turns=1)
    ]


def test_a_program_that_never_asks_the_model_is_no_reward_and_says_why(tmp_path: Path) -> None:
    [failed] = Bench(tmp_path, 'sys.exit("no such flag")').driven()
    assert isinstance(failed, TrialFailed)
    assert failed.cause == "agent"
    assert "exit 1" in failed.detail
    assert "no such flag" in failed.detail


def test_a_program_that_is_not_there_is_no_reward(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "", 'rollout.command="/no/such/program"')
    [failed] = bench.driven()
    assert isinstance(failed, TrialFailed)
    assert "/no/such/program" in failed.detail


def test_a_call_beyond_the_turn_limit_ends_the_episode_and_the_program(tmp_path: Path) -> None:
    script = """
said = [task]
while True:
    try:
        said += [ask(*said), "go on"]
    except urllib.error.HTTPError:
        time.sleep(60)
"""
    assert Bench(tmp_path, script, turn_limit=2).driven() == [EpisodeEnded(trial=TRIAL, reason="turn_limit", turns=2)]


def test_a_conversation_that_is_full_is_said_so_and_a_program_that_stops_there_met_the_token_limit(
    tmp_path: Path,
) -> None:
    script = 'said = [task]\nwhile True: said += [ask(*said), "more and more " * 20]'
    bench = Bench(tmp_path, script, "rollout.max_ids=200", turn_limit=50)
    [ended] = bench.driven()
    assert isinstance(ended, EpisodeEnded)
    assert ended.reason == "token_limit"


@pytest.mark.parametrize(
    "call",
    [
        'post(os.environ["OPENAI_BASE_URL"].removesuffix("/v1") + "/reward", {"reward": 1.0})',
        'post(os.environ["OPENAI_BASE_URL"].replace("s0.t0", "s0.t1") + "/chat/completions", {"messages": []})',
        'os.environ["OPENAI_API_KEY"] = "guessed"; run("ls")',
        'os.environ["OPENAI_API_KEY"] = "guessed"; ask(task)',
    ],
)
def test_a_program_reports_no_reward_and_reaches_no_other_trial(tmp_path: Path, call: str) -> None:
    bench = Bench(tmp_path, f"ask(task)\ntry: {call}\nexcept urllib.error.HTTPError as error: print(error.code)")
    assert bench.driven() == [EpisodeEnded(trial=TRIAL, reason="submitted", turns=1)]
    assert [type(event) for event in bench.told] == [TurnSampled]
    assert bench.printed.strip() in ("401", "404")


AGAIN = """
answer = ask(task)
print(run(answer))
told = ask(task, answer, "more")
print(run(told))
"""


@pytest.mark.parametrize("dies_at", range(4))
def test_a_program_that_was_killed_is_started_again_and_answered_as_before(tmp_path: Path, dies_at: int) -> None:
    """As soon as its call came to an event, which it then has no answer to."""
    script = AGAIN.replace("\n", "\ndie()\n")
    undisturbed = Bench(tmp_path / "a", f"def die(): pass\n{AGAIN}") if (tmp_path / "a").mkdir() is None else None
    assert undisturbed is not None
    once = (
        "def die():\n"
        "    global steps\n"
        "    steps += 1\n"
        f"    if steps == {dies_at + 1} and not os.path.exists('{tmp_path}/died'):\n"
        f"        open('{tmp_path}/died', 'w'); os.kill(os.getpid(), 9)\n"
        "steps = 0\n"
    )
    (tmp_path / "b").mkdir()
    bench = Bench(tmp_path / "b", once + script)
    assert bench.driven() == undisturbed.driven() == [EpisodeEnded(trial=TRIAL, reason="submitted", turns=2)]
    assert (tmp_path / "died").exists()
    assert bench.told == undisturbed.told
    assert undisturbed.printed in bench.printed


def test_a_sampler_that_was_killed_answers_the_program_of_the_next_one_as_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path, AGAIN)
    drive = bench.ready()

    async def killed_at(count: int) -> None:
        """The sampler dies when so much was told: nothing of it is left but the log."""
        async with anyio.create_task_group() as tasks:

            async def die(event: AnyEvent) -> None:
                if len(bench.told) == count:
                    tasks.cancel_scope.cancel()

            bench.tell_hook = die
            await bench.drive(drive)
        bench.tell_hook = None
        bench.begin()

    async def main() -> list[AnyEvent]:
        for count in (1, 2, 3):
            await killed_at(count)
        return await bench.drive(drive)

    assert trio.run(main) == [EpisodeEnded(trial=TRIAL, reason="submitted", turns=2)]
    kinds = [type(event) for event in bench.told]
    assert kinds == [TurnSampled, CommandRequested, TurnSampled, CommandRequested]
    assert bench.printed.endswith("did 0\ndid 1\n")


def test_a_program_that_does_something_else_when_started_again_leaves_its_trial_unmeasured(tmp_path: Path) -> None:
    script = f"""
ask(task)
again = os.path.exists('{tmp_path}/died')
run("make b" if again else "make a")
open('{tmp_path}/died', 'w')
os.kill(os.getpid(), 9)
"""
    [failed] = Bench(tmp_path, script).driven()
    assert isinstance(failed, TrialFailed)
    assert failed.cause == "agent_diverged"
    assert "make b" in failed.detail


def test_a_program_that_is_killed_again_and_again_leaves_its_trial_unmeasured(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "ask(task); print('start', flush=True); os.kill(os.getpid(), 9)")
    [failed] = bench.driven()
    assert isinstance(failed, TrialFailed)
    assert failed.cause == "agent_killed"
    assert bench.printed == "start\n" * 3
    assert len(bench.told) == 1


def test_a_trial_that_is_over_ends_its_program_with_all_that_it_started(tmp_path: Path) -> None:
    script = f"""
import subprocess
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
ask(task)
open('{tmp_path}/pid', 'w').write(str(os.getpgid(0)))
time.sleep(60)
"""
    bench = Bench(tmp_path, script)

    async def main() -> None:
        drive = bench.ready()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.drive, drive)
            with anyio.fail_after(30):
                while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            decision = bench.send(TimerFired(key=f"{TRIAL}/deadline", due_s=1.0))
            assert list(decision.cancels) == [drive.key]
            tasks.cancel_scope.cancel()

    trio.run(main)
    group = (tmp_path / "pid").read_text()
    until_s = time.monotonic() + 20.0
    while _of_group(group) and time.monotonic() < until_s:  # what was killed needs a moment to be gone
        time.sleep(0.02)
    assert _of_group(group) == []


def _of_group(group: str) -> list[str]:
    return [
        place.parent.name
        for place in Path("/proc").glob("[0-9]*/stat")
        if (fields := _stat(place)) and fields[2] == group and fields[0] != "Z"
    ]


def _stat(place: Path) -> list[str]:
    try:
        return place.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
