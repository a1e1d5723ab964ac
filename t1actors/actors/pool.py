"""Sandbox pool: gives every trial a sandbox, runs its commands, seals what it left, reclaims the rest.

Guarantees:
- Sandboxes are created in index order under the token bucket and the cap on live ones; what each waited for is recorded.
- A command runs once per (trial, turn): the sandbox's shim answers by key when the pool was restarted in between. A sandbox
  that is gone is made again, with the commands that were run in it (``restoring``).
- Only infrastructure makes a TrialFailed; what the agent does to itself ends as an exit code, and is graded.
- Every sandbox is reclaimed, also of cancelled and failed trials, and only when nothing of its trial is under way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from t1actors.actors.restoring import Diverged, History, Restored, Restoring
from t1actors.actors.task_files import TaskFiles
from t1actors.events import (
    AnyEvent,
    EffectFinished,
    EffectIntended,
    EpisodeEnded,
    ObservationDiverged,
    SandboxReady,
    SandboxReclaimed,
    SandboxRequested,
    SandboxRestored,
    SandboxSealed,
    StepOpened,
    TrialCancelled,
    TrialFailed,
    TrialReplaced,
    TrialSpec,
    TurnExecuted,
    TurnSampled,
    UnknownEvent,
)
from t1actors.harness.native import observation_text
from t1actors.payloads import pack
from t1actors.runtime.actor import NOTHING, ActorContext, Decision, Effect, Performing, Unrecoverable
from t1actors.sandbox.admission import Admission, TokenBucket
from t1actors.sandbox.choice import make_backend as configured_backend
from t1actors.sandbox.errors import SandboxDied, SandboxError, SandboxGone, SandboxUnavailable
from t1actors.sandbox.errors import SandboxSealed as SealedMeanwhile
from t1actors.sandbox.interface import Limits, RunRequest, RunResult, SandboxBackend, SandboxSpec
from t1actors.sandbox.pool import SandboxPool
from t1actors.tasks.layers import environment_layers
from t1actors.tasks.task import Task, TaskError

COMMAND_MARGIN_S = 30.0
"""A command's effect may outlast the command's own limit by this: the shim must kill, collect and answer."""


RECLAIM = "/kill"
RECLAIM_DEADLINE_S = 60.0


class Create(Effect, frozen=True, kw_only=True):
    """Make the trial's sandbox, once it is admitted."""

    trial: str
    task: str


class Run(Effect, frozen=True, kw_only=True):
    """Run one turn's command; the key makes it once."""

    trial: str
    turn: int
    command: str


class Seal(Effect, frozen=True, kw_only=True):
    """End the trial's processes and store what was written."""

    trial: str
    task: str


class Reclaim(Effect, frozen=True, kw_only=True):
    """Kill the trial's sandbox, if it has one."""

    trial: str


@dataclass
class PoolState:
    """``in_play``: trials that commands are run for. ``ending``: trials to be sealed. ``held``: trials that may have a
    sandbox. ``open``: keys of a trial's effects under way, its reclaiming aside. The values are tasks, and keys."""

    in_play: dict[str, str] = field(default_factory=dict[str, str])
    ending: dict[str, str] = field(default_factory=dict[str, str])
    held: set[str] = field(default_factory=set[str])
    open: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    history: History = field(default_factory=History)


class Backend(SandboxBackend, Protocol):
    """One that has to be held open."""

    def running(self) -> AbstractAsyncContextManager[object]:
        """Sandboxes are made and driven while this is open; they outlive it. Raises ``SandboxUnavailable``."""
        ...


def _configured(context: ActorContext) -> Backend:
    return configured_backend(context.config.sandbox, context.run_dir / "sandboxes", name="pool")


class Pool:
    """See the module."""

    reads = frozenset({"publisher", "sampler", "assembler"})
    effect_type = Create | Run | Seal | Reclaim

    def __init__(self, context: ActorContext, make_backend: Callable[[ActorContext], Backend] | None = None) -> None:
        """``make_backend``: what makes sandboxes; None: what the configuration says. Raises ``Unrecoverable``."""
        config = context.config
        self._config = config
        self._blobs = context.blobs
        self._tasks = TaskFiles(config.tasks, context.run_dir)
        self._backend = (make_backend or _configured)(context)
        bucket = TokenBucket(config.sandbox.rate_per_s, config.sandbox.burst, monotonic=context.monotonic)
        admission = Admission(bucket, config.sandbox.max_live, monotonic=context.monotonic)
        self._pool = SandboxPool(self._backend, admission)
        self._state = PoolState()
        self._restoring = Restoring(lambda: self._state.history, self._pool.renew, self._shown, self._make_again)

    def initial(self) -> PoolState:
        return self._state

    def fold(self, state: PoolState, event: AnyEvent | UnknownEvent) -> PoolState:
        match event:
            case StepOpened():
                state.in_play.update((spec.trial, spec.task) for spec in event.trials)
                state.held.update(spec.trial for spec in event.trials)
            case TrialReplaced():
                state.in_play[event.replacement.trial] = event.replacement.task
                state.held.add(event.replacement.trial)
            case EpisodeEnded() if event.trial in state.in_play:
                state.ending[event.trial] = state.in_play.pop(event.trial)
            case TrialCancelled() | TrialFailed() | SandboxSealed():
                state.in_play.pop(event.trial, None)
                state.ending.pop(event.trial, None)
            case SandboxReclaimed():
                state.held.discard(event.trial)
                state.history.forget(event.trial)
            case TurnSampled() | TurnExecuted() if event.trial in state.held:
                state.history.fold(event)
            case EffectIntended() if not event.key.endswith(RECLAIM):
                state.open.setdefault(_trial_of(event.key), set()).add(event.key)
            case EffectFinished() if not event.key.endswith(RECLAIM):
                trial = _trial_of(event.key)
                state.open[trial].discard(event.key)
                if not state.open[trial]:
                    del state.open[trial]
            case _:
                pass
        return state

    def decide(self, state: PoolState, event: AnyEvent | UnknownEvent) -> Decision:
        match event:
            case StepOpened():
                return self._request(event.trials)
            case TrialReplaced():
                return self._request((event.replacement,))
            case TurnSampled() if event.execute and event.trial in state.in_play:
                return Decision(effects=[self._run_effect(event)])
            case EpisodeEnded() if event.trial in state.ending:
                deadline_s = self._config.sandbox.create_deadline_s + self._restore_s(event.turns)
                key = f"{event.trial}/seal"
                task = state.ending[event.trial]
                return Decision(effects=[Seal(key=key, trial=event.trial, task=task, deadline_s=deadline_s)])
            case TrialCancelled() | TrialFailed() if event.trial in state.held:
                open_keys = sorted(state.open.get(event.trial, ()))
                return Decision(cancels=open_keys, effects=self._reclaim_if_idle(state, event.trial))
            case EffectFinished():
                return self._finished(state, event)
            case _:
                return NOTHING

    async def perform(self, effect: Effect, performing: Performing) -> Sequence[AnyEvent]:
        match effect:
            case Create():
                return await self._create(effect, performing)
            case Run():
                return await self._run(effect)
            case Seal():
                return await self._seal(effect)
            case Reclaim():
                started_s = anyio.current_time()
                await self._pool.kill(effect.trial)
                self._restoring.forget(effect.trial)
                return [SandboxReclaimed(trial=effect.trial, seconds=anyio.current_time() - started_s)]
            case _:
                raise AssertionError(f"not an effect of the pool: {effect}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with self._backend.running(), anyio.create_task_group() as tasks:
                await self._pool.reattach()
                # A sandbox whose trial waits for the model is not called: its lease is kept here, and ends with the pool.
                tasks.start_soon(self._pool.keep_leases, self._config.sandbox.lease_s / 4)
                yield
                tasks.cancel_scope.cancel()
        except SandboxUnavailable as error:
            raise Unrecoverable(str(error)) from error

    # --- decisions ------------------------------------------------------------------------------------------------------

    def _request(self, trials: Sequence[TrialSpec]) -> Decision:
        return Decision(
            events=[SandboxRequested(trial=spec.trial, task=spec.task) for spec in trials],
            effects=[
                Create(
                    key=f"{s.trial}/create",
                    trial=s.trial,
                    task=s.task,
                    deadline_s=self._config.rollout.trial_deadline_s,
                )
                for s in trials
            ],
        )

    def _run_effect(self, turn: TurnSampled) -> Run:
        deadline_s = self._config.rollout.command_deadline_s + COMMAND_MARGIN_S + self._restore_s(turn.turn)
        key = _run_key(turn.trial, turn.turn)
        return Run(key=key, trial=turn.trial, turn=turn.turn, command=turn.command, deadline_s=deadline_s)

    def _restore_s(self, turns: int) -> float:
        """The longest that it may take to make a sandbox again in which so many commands were run."""
        return self._config.sandbox.create_deadline_s + turns * self._config.rollout.command_deadline_s

    def _finished(self, state: PoolState, event: EffectFinished) -> Decision:
        trial, _, what = event.key.partition("/")
        if event.status != "deadline" or trial not in state.in_play | state.ending:
            return Decision(effects=self._reclaim_if_idle(state, trial))
        detail = f"{what} took longer than its deadline ({event.seconds:.1f} s)"
        reclaim = Reclaim(key=f"{trial}{RECLAIM}", trial=trial, deadline_s=RECLAIM_DEADLINE_S)
        return Decision(events=[TrialFailed(trial=trial, cause="deadline", detail=detail)], effects=[reclaim])

    def _reclaim_if_idle(self, state: PoolState, trial: str) -> list[Effect]:
        """A trial that is out of play is reclaimed once nothing of it is under way, so that no creation comes after."""
        if trial not in state.held or trial in state.in_play or trial in state.ending or trial in state.open:
            return []
        return [Reclaim(key=f"{trial}{RECLAIM}", trial=trial, deadline_s=RECLAIM_DEADLINE_S)]

    # --- effects --------------------------------------------------------------------------------------------------------

    async def _create(self, effect: Create, performing: Performing) -> Sequence[AnyEvent]:
        config = self._config.sandbox
        started_s = anyio.current_time()
        try:
            task = self._tasks.read(effect.task)
            if not config.host_base:
                raise TaskError(
                    f"task {effect.task}: its environment/Dockerfile is FROM {task.environment.base} and there is no image "
                    "store; let the host's own /usr stand in for it with --set sandbox.host_base=true"
                )
            image_s = anyio.current_time() - started_s
            spec = self._spec(effect.trial, task)
            made = await self._pool.create(spec, deadline_s=config.create_deadline_s)
        except TaskError as error:
            return [TrialFailed(trial=effect.trial, cause="task", detail=str(error))]
        except SandboxUnavailable:
            raise  # the fork server is gone, or the host changed: a restarted pool finds out, a failed trial would not
        except (SandboxError, TimeoutError) as error:
            return [TrialFailed(trial=effect.trial, cause=type(error).__name__, detail=str(error))]
        self._restoring.whole(effect.trial)  # nothing was run in it
        performing.phases.update(made.created.phases)
        return [
            SandboxReady(
                trial=effect.trial,
                task_digest=task.digest,
                instruction=task.instruction,
                isolation=made.created.isolation,
                token_wait_s=made.token_wait_s,
                slot_wait_s=made.slot_wait_s,
                image_wait_s=image_s,
                create_s=anyio.current_time() - started_s - image_s - made.token_wait_s - made.slot_wait_s,
            )
        ]

    def _spec(self, trial: str, task: Task) -> SandboxSpec:
        return SandboxSpec(
            key=trial,
            workdir=task.workdir,
            env=task.environment.env,
            limits=self._limits(),
            lease_s=self._config.sandbox.lease_s,
            layers=environment_layers(task),
            base="host",
        )

    async def _make_again(self, trial: str) -> None:
        """A fresh sandbox for the trial. Raises ``TaskError``, ``SandboxError``, ``TimeoutError``."""
        name = self._state.in_play.get(trial) or self._state.ending.get(trial)
        if name is None:
            raise SandboxGone(f"sandbox {trial} is gone, and its trial is over")
        await self._pool.kill(trial)  # whatever is left of it
        spec = self._spec(trial, self._tasks.read(name))
        await self._pool.create(spec, deadline_s=self._config.sandbox.create_deadline_s)

    async def _shown(self, trial: str, turn: int, command: str) -> str | None:
        try:
            return self._observation(await self._pool.run(trial, self._request_of(trial, turn, command)))
        except SandboxDied as error:
            if error.cause == "memory":
                return None
            raise SandboxGone(f"sandbox {trial}, made again, died when turn {turn} was run again: {error}") from error

    def _request_of(self, trial: str, turn: int, command: str) -> RunRequest:
        limit_s = self._config.rollout.command_deadline_s
        return RunRequest(key=_run_key(trial, turn), command=command, limit_s=limit_s)

    def _observation(self, result: RunResult) -> str:
        return observation_text(result.text, result.exit_code, self._config.rollout.observation_chars)

    async def _run(self, effect: Run) -> Sequence[AnyEvent]:
        started_s = anyio.current_time()
        request = self._request_of(effect.trial, effect.turn, effect.command)
        try:
            restored, result = await self._restoring.inside(effect.trial, lambda: self._pool.run(effect.trial, request))
        except Diverged as diverged:
            return _diverged(effect.trial, diverged)
        except SealedMeanwhile:  # the agent's time was up before the command began: graded as it stands
            return []
        except SandboxDied as error:
            if error.cause != "memory":
                return [TrialFailed(trial=effect.trial, cause=type(error).__name__, detail=str(error))]
            return [
                TurnExecuted(
                    trial=effect.trial,
                    turn=effect.turn,
                    observation="",
                    exit_code=137,
                    seconds=anyio.current_time() - started_s,
                    sandbox_died=True,
                    limit_hit="memory",
                )
            ]
        except (SandboxError, TaskError, TimeoutError) as error:
            return [_failed(effect.trial, error)]
        return [
            *_restored(effect.trial, restored),
            TurnExecuted(
                trial=effect.trial,
                turn=effect.turn,
                observation=self._observation(result),
                exit_code=result.exit_code,
                seconds=result.seconds,
                output=result.output,
                truncated_bytes=result.truncated_bytes,
                timed_out=result.timed_out,
                shell_restarted=result.shell_restarted,
                limit_hit=result.limit_hit,
            ),
        ]

    async def _seal(self, effect: Seal) -> Sequence[AnyEvent]:
        started_s = anyio.current_time()
        try:
            restored, layer = await self._restoring.inside(effect.trial, lambda: self._pool.seal(effect.trial))
        except Diverged as diverged:
            return _diverged(effect.trial, diverged)
        except (SandboxError, TaskError, TimeoutError) as error:
            return [_failed(effect.trial, error)]
        return [
            *_restored(effect.trial, restored),
            SandboxSealed(
                trial=effect.trial,
                task=effect.task,
                layer=pack(self._blobs, layer),
                seconds=anyio.current_time() - started_s,
            ),
        ]

    def _limits(self) -> Limits:
        config = self._config.sandbox
        return Limits(
            memory_mb=config.memory_mb,
            disk_mb=config.disk_mb,
            processes=config.processes,
            output_bytes=config.output_bytes,
            command_s=self._config.rollout.command_deadline_s,
        )


def _trial_of(key: str) -> str:
    return key.partition("/")[0]


def _run_key(trial: str, turn: int) -> str:
    return f"{trial}/{turn}/run"


def _failed(trial: str, error: Exception) -> TrialFailed:
    return TrialFailed(trial=trial, cause=type(error).__name__, detail=str(error))


def _restored(trial: str, restored: Restored | None) -> list[AnyEvent]:
    if restored is None:
        return []
    return [SandboxRestored(trial=trial, turns=restored.turns, seconds=restored.seconds)]


def _diverged(trial: str, found: Diverged) -> list[AnyEvent]:
    event = ObservationDiverged(trial=trial, turn=found.turn, recorded=found.recorded, observed=found.observed)
    return [event, _failed(trial, found)]
