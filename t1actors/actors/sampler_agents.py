"""The sampler of a run whose trials are driven by programs (``rollout.harness = "command"``).

A trial is one effect, Drive: it starts the program, serves it the model and the sandbox, and ends with it. What the
program's calls come to is told while the effect goes on (``Performing.tell``): TurnSampled for a call of the model,
CommandRequested for one of the sandbox, which the pool answers with TurnExecuted.

Guarantees, besides the sampler's:
- A call is answered only when its turn, or the result of its command, is durable.
- A program that is started again, because the sampler or the program was killed, is answered from the log as long as it
  calls as before. Where it asks the model something else the session forks; where it asks the sandbox for something else, the
  trial is unmeasured: it stands in a sandbox that another start of it has worked in.
- A program that ends by itself after a turn is graded; one that never took a turn, cannot be started, or is killed again and
  again is no reward.
- Whatever ends a trial ends its program, with all that is in its process group.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio import to_thread

from t1actors.actors.sampler import LiveTrial, Load, Sampler, SamplerState
from t1actors.engine.interface import Engine
from t1actors.events import (
    AnyEvent,
    CommandRequested,
    EffectFinished,
    EpisodeEnd,
    EpisodeEnded,
    SandboxReady,
    TrialFailed,
    TurnExecuted,
    TurnSampled,
    UnknownEvent,
)
from t1actors.harness.command.driving import Driving, Known
from t1actors.harness.command.face import Face
from t1actors.harness.command.process import Ended, run_program, tail_of
from t1actors.harness.endpoint.serving import listening
from t1actors.harness.endpoint.settings import Settings
from t1actors.models.folder import model_folder
from t1actors.models.tokenizer import Tokenizer
from t1actors.nursery import task_group
from t1actors.runtime.actor import ActorContext, Decision, Effect, Performing, Wait
from t1actors.tito.record import Geometry
from t1actors.tito.render.choice import renderer_for

STARTS = 3
"""A program that a signal killed is started again, so often in all."""


class Drive(Effect, frozen=True, kw_only=True):
    """Have the program of ``trial`` run, to its end."""

    trial: str


class Hand(Effect, frozen=True, kw_only=True):
    """Hand the result of command ``number`` to the program of ``trial`` that waits for it."""

    trial: str
    number: int


class AgentSampler(Sampler):
    """See the module."""

    effect_type = Drive | Hand | Load | Wait

    def __init__(self, context: ActorContext, make_engine: Callable[[ActorContext], Engine] | None = None) -> None:
        super().__init__(context, make_engine)
        folder = model_folder(context.config.model.policy)
        self._renderer = renderer_for(Tokenizer.from_folder(folder))
        self._geometry = Geometry.of_model_config((folder / "config.json").read_bytes())
        self._argv = shlex.split(context.config.rollout.command)
        self._place = context.run_dir.absolute() / "agents"
        self._face = Face()
        self._base_url = ""
        self._driven: dict[str, Driving] = {}

    def fold(self, state: SamplerState, event: AnyEvent | UnknownEvent) -> SamplerState:
        """As the sampler's; a trial is its calls and commands."""
        match event:
            case TurnSampled() if event.trial in state.trials:
                trial = state.trials[event.trial]
                trial.calls.append(event)
                trial.turns = event.turn + 1
            case CommandRequested() if event.trial in state.trials:
                state.trials[event.trial].commands.append(event.command)
            case TurnExecuted() if event.trial in state.trials:
                state.trials[event.trial].shown[event.turn] = event.observation
            case EffectFinished() if event.key.endswith("/drive"):
                state.sampling.pop(event.key.partition("/")[0], None)
            case _:
                return super().fold(state, event)
        return state

    def decide(self, state: SamplerState, event: AnyEvent | UnknownEvent) -> Decision:
        """As the sampler's; a trial is one effect."""
        match event:
            case SandboxReady() if event.trial in state.trials:
                deadline_s = self._config.rollout.agent_deadline_s
                drive = Drive(key=self._work_key(event.trial, 0), trial=event.trial, deadline_s=deadline_s)
                return Decision(effects=[drive, Wait(key=f"{event.trial}/deadline", seconds=deadline_s)])
            case TurnExecuted() if event.trial in state.trials:
                if event.sandbox_died:
                    ended = self._ended(state.trials[event.trial], "sandbox_limit", "its sandbox died")
                    return Decision(events=[ended], cancels=[self._work_key(event.trial, 0), f"{event.trial}/deadline"])
                key = f"{event.trial}/{event.turn}/hand"
                return Decision(effects=[Hand(key=key, trial=event.trial, number=event.turn)])
            case EffectFinished() if event.key.endswith("/drive"):
                return self._after_sample(state, event)
            case _:
                return super().decide(state, event)

    async def perform(self, effect: Effect, performing: Performing) -> Sequence[AnyEvent]:
        match effect:
            case Drive():
                return await self._drive(effect.trial, performing)
            case Hand():
                if effect.trial in self._driven:
                    self._driven[effect.trial].commands.look()
                return []
            case _:
                return await super().perform(effect, performing)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._place.mkdir(parents=True, exist_ok=True)
        async with super().running(), listening(self._face) as self._base_url:
            yield

    # --- decisions ------------------------------------------------------------------------------------------------------

    def _work_key(self, trial: str, turn: int) -> str:
        return f"{trial}/drive"

    def _ended(self, trial: LiveTrial, reason: EpisodeEnd, detail: str) -> AnyEvent:
        """The trial's end; without one turn there is nothing to be graded."""
        name = trial.spec.trial
        if trial.turns == 0:
            return TrialFailed(trial=name, cause="agent", detail=f"not one call of the model: {detail}")
        return EpisodeEnded(trial=name, reason=reason, turns=trial.turns)

    # --- effects --------------------------------------------------------------------------------------------------------

    async def _drive(self, name: str, performing: Performing) -> Sequence[AnyEvent]:
        live = self._state.trials.get(name)
        if live is None or self._missed:  # ended between the intent and a restart
            return []
        log_path, told_path = self._place / f"{name}.log", self._place / f"{name}.instruction"
        await to_thread.run_sync(told_path.write_text, live.instruction)
        for start in range(1, STARTS + 1):
            driving = self._served(live, performing)
            await to_thread.run_sync(driving.restore)
            ended = await self._run(driving, name, log_path, told_path)
            if name not in self._state.trials:
                return []
            if ended is None or ended.how != "signal" or start == STARTS:
                return [self._end_of(live, driving, ended, log_path)]
        raise AssertionError("the last start returns")

    def _served(self, live: LiveTrial, performing: Performing) -> Driving:
        rollout, spec = self._config.rollout, live.spec

        async def ask(number: int, command: str) -> bool:
            return await performing.tell([CommandRequested(trial=spec.trial, number=number, command=command)])

        return Driving(
            Known(trial=spec.trial, task=spec.task, calls=live.calls, commands=live.commands, shown=live.shown),
            engine=self._engine,
            renderer=self._renderer,
            geometry=self._geometry,
            settings=Settings(
                max_ids=rollout.max_ids,
                max_new_tokens=rollout.max_new_tokens,
                temperature=live.temperature,
                seed=spec.seed,
                max_turns=spec.turn_limit,
            ),
            blobs=self._blobs,
            tell=performing.tell,
            ask=ask,
        )

    async def _run(self, driving: Driving, name: str, log_path: Path, told_path: Path) -> Ended | None:
        """How the program ended; None: it was ended, because ``driving`` is over."""
        found: list[Ended] = []
        url = f"{self._base_url}/sessions/{name}"
        env = {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": driving.token,
            "T1_TRIAL": name,
            "T1_INSTRUCTION_FILE": str(told_path),
            "T1_SANDBOX_URL": f"{url}/sandbox",
            **_without_proxy(),
        }
        self._driven[name], self._face.trials[name] = driving, driving.app
        try:
            async with task_group() as tasks:

                async def program() -> None:
                    found.append(await run_program(self._argv, env, log_path))
                    tasks.cancel_scope.cancel()

                tasks.start_soon(program)
                await driving.over.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                del self._driven[name], self._face.trials[name]
                await driving.close()
        return found[0] if found and not driving.over.is_set() else None

    def _end_of(self, live: LiveTrial, driving: Driving, ended: Ended | None, log_path: Path) -> AnyEvent:
        name = live.spec.trial
        if driving.diverged:
            return TrialFailed(trial=name, cause="agent_diverged", detail=driving.diverged)
        if ended is None:
            return self._ended(live, "turn_limit", "it may take none")
        detail = f"{ended.text}; it printed last: {tail_of(log_path)!r} ({log_path})"
        match ended.how:
            case "exit":
                refused = driving.refused == "context_length_exceeded"
                failed: EpisodeEnd = "token_limit" if refused else "agent_failed"
                return self._ended(live, "submitted" if ended.number == 0 else failed, detail)
            case "signal":
                return TrialFailed(trial=name, cause="agent_killed", detail=f"killed {STARTS} times: {detail}")
            case "lacking":
                return TrialFailed(trial=name, cause="agent", detail=f"it cannot be started: {ended.text}")


def _without_proxy() -> dict[str, str]:
    """What keeps a program's clients from asking a proxy for this machine."""
    spared = {name: os.environ.get(name, "") for name in ("NO_PROXY", "no_proxy")}
    return {name: f"{hosts},127.0.0.1".lstrip(",") for name, hosts in spared.items()}
