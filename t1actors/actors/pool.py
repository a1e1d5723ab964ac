"""Sandbox pool: gives every trial a sandbox, runs its commands, seals what it left, reclaims the rest.

Guarantees:
- Sandboxes are created in index order under the token bucket and the cap on live ones; what each waited for is recorded.
- A command runs once per (trial, turn): the sandbox's shim answers by key when the pool was restarted in between.
- Only infrastructure makes a TrialFailed; what the agent does to itself ends as an exit code, and is graded.
- Every sandbox is reclaimed, also of cancelled and failed trials.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from t1actors.actors.task_files import TaskFiles
from t1actors.events import (
    AnyEvent,
    EffectFinished,
    EpisodeEnded,
    SandboxReady,
    SandboxReclaimed,
    SandboxRequested,
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
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.errors import SandboxDied, SandboxError, SandboxGone, SandboxUnavailable
from t1actors.sandbox.interface import Limits, RunRequest, SandboxSpec
from t1actors.sandbox.pool import SandboxPool
from t1actors.tasks.layers import environment_layers
from t1actors.tasks.task import TaskError

COMMAND_MARGIN_S = 30.0
"""A command's effect may outlast the command's own limit by this: the shim must kill, collect and answer."""


class Create(Effect, frozen=True, kw_only=True):
    trial: str
    task: str


class Run(Effect, frozen=True, kw_only=True):
    trial: str
    turn: int
    command: str


class Seal(Effect, frozen=True, kw_only=True):
    trial: str
    task: str


class Reclaim(Effect, frozen=True, kw_only=True):
    trial: str


@dataclass
class PoolState:
    """``tasks``: trials that have a sandbox, or are to get one. ``running``: the turn whose command runs."""

    tasks: dict[str, str] = field(default_factory=dict[str, str])
    running: dict[str, int] = field(default_factory=dict[str, int])


class Pool:
    reads = frozenset({"publisher", "sampler", "assembler"})
    effect_type = Create | Run | Seal | Reclaim

    def __init__(self, context: ActorContext) -> None:
        config = context.config
        self._config = config
        self._blobs = context.blobs
        self._tasks = TaskFiles(config.tasks, context.run_dir)
        self._backend = NamespaceBackend(context.run_dir / "sandboxes", name="pool")
        bucket = TokenBucket(config.sandbox.rate_per_s, config.sandbox.burst, monotonic=context.monotonic)
        self._admission = Admission(bucket, config.sandbox.max_live, monotonic=context.monotonic)
        self._pool = SandboxPool(self._backend, self._admission)

    def initial(self) -> PoolState:
        return PoolState()

    def fold(self, state: PoolState, event: AnyEvent | UnknownEvent) -> PoolState:
        match event:
            case StepOpened():
                state.tasks.update((spec.trial, spec.task) for spec in event.trials)
            case TrialReplaced():
                state.tasks[event.replacement.trial] = event.replacement.task
            case TurnSampled() if event.execute and event.trial in state.tasks:
                state.running[event.trial] = event.turn
            case TurnExecuted():
                state.running.pop(event.trial, None)
            case SandboxReclaimed():
                state.tasks.pop(event.trial, None)
                state.running.pop(event.trial, None)
            case _:
                pass
        return state

    def decide(self, state: PoolState, event: AnyEvent | UnknownEvent) -> Decision:
        match event:
            case StepOpened():
                return self._request(event.trials)
            case TrialReplaced():
                return self._request((event.replacement,))
            case TurnSampled() if event.execute and event.trial in state.tasks:
                limit_s = self._config.rollout.command_deadline_s
                return Decision(
                    effects=[
                        Run(
                            key=f"{event.trial}/{event.turn}/run",
                            trial=event.trial,
                            turn=event.turn,
                            command=event.command,
                            deadline_s=limit_s + COMMAND_MARGIN_S,
                        )
                    ]
                )
            case EpisodeEnded() if event.trial in state.tasks:
                deadline_s = self._config.sandbox.create_deadline_s
                return Decision(
                    effects=[
                        Seal(
                            key=f"{event.trial}/seal",
                            trial=event.trial,
                            task=state.tasks[event.trial],
                            deadline_s=deadline_s,
                        )
                    ]
                )
            case TrialCancelled() if event.trial in state.tasks:
                return self._drop(state, event.trial)
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
                return [SandboxReclaimed(trial=effect.trial, seconds=anyio.current_time() - started_s)]
            case _:
                raise AssertionError(f"not an effect of the pool: {effect}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with self._backend.running(), anyio.create_task_group() as tasks:
                await self._pool.reattach()
                tasks.start_soon(self._renew_leases)
                yield
                tasks.cancel_scope.cancel()
        except SandboxUnavailable as error:
            raise Unrecoverable(str(error)) from error

    async def _renew_leases(self) -> None:
        """A sandbox whose trial waits for the model is not called: its lease is kept here, and ends with the pool."""
        while True:
            await anyio.sleep(self._config.sandbox.lease_s / 4)
            for key in sorted(self._admission.live):
                with contextlib.suppress(SandboxGone):  # being created, or reclaimed just now
                    await self._pool.renew(key)

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

    def _drop(self, state: PoolState, trial: str, events: Sequence[AnyEvent] = ()) -> Decision:
        cancels = [f"{trial}/create", f"{trial}/seal"]
        if trial in state.running:
            cancels.append(f"{trial}/{state.running[trial]}/run")
        return Decision(events=events, effects=[Reclaim(key=f"{trial}/kill", trial=trial)], cancels=cancels)

    def _finished(self, state: PoolState, event: EffectFinished) -> Decision:
        trial, _, what = event.key.partition("/")
        if trial not in state.tasks or what == "kill":
            return NOTHING
        if event.status == "deadline":
            failed = TrialFailed(
                trial=trial, cause="deadline", detail=f"{what} took longer than its deadline ({event.seconds:.1f} s)"
            )
            return self._drop(state, trial, [failed])
        if event.status == "failed":
            return self._drop(state, trial)
        if what == "seal" and event.status == "done":
            return Decision(effects=[Reclaim(key=f"{trial}/kill", trial=trial)])
        return NOTHING

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
            spec = SandboxSpec(
                key=effect.trial,
                workdir=task.workdir,
                env=task.environment.env,
                limits=self._limits(),
                lease_s=config.lease_s,
                layers=environment_layers(task),
                base="host",
            )
            made = await self._pool.create(spec, deadline_s=config.create_deadline_s)
        except TaskError as error:
            return [TrialFailed(trial=effect.trial, cause="task", detail=str(error))]
        except (SandboxError, TimeoutError) as error:
            return [TrialFailed(trial=effect.trial, cause=type(error).__name__, detail=str(error))]
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

    async def _run(self, effect: Run) -> Sequence[AnyEvent]:
        started_s = anyio.current_time()
        request = RunRequest(key=effect.key, command=effect.command, limit_s=self._config.rollout.command_deadline_s)
        try:
            result = await self._pool.run(effect.trial, request)
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
        except SandboxError as error:
            return [TrialFailed(trial=effect.trial, cause=type(error).__name__, detail=str(error))]
        return [
            TurnExecuted(
                trial=effect.trial,
                turn=effect.turn,
                observation=observation_text(result.text, result.exit_code, self._config.rollout.observation_chars),
                exit_code=result.exit_code,
                seconds=result.seconds,
                output=result.output,
                truncated_bytes=result.truncated_bytes,
                timed_out=result.timed_out,
                shell_restarted=result.shell_restarted,
                limit_hit=result.limit_hit,
            )
        ]

    async def _seal(self, effect: Seal) -> Sequence[AnyEvent]:
        started_s = anyio.current_time()
        try:
            layer = await self._pool.seal(effect.trial)
        except SandboxError as error:
            return [TrialFailed(trial=effect.trial, cause=type(error).__name__, detail=str(error))]
        return [
            SandboxSealed(
                trial=effect.trial,
                task=effect.task,
                layer=pack(self._blobs, layer),
                seconds=anyio.current_time() - started_s,
            )
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
