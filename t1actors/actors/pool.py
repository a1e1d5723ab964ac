"""Sandbox pool: gives every trial a sandbox, runs its commands, seals what it left, reclaims the rest.

Guarantees:
- Sandboxes are created in index order under the token bucket and the cap on live ones; what each waited for is recorded.
- A command runs once per (trial, turn): the sandbox's shim answers by key when the pool was restarted in between. A sandbox
  that is gone is made again, with the commands that were run in it (``restoring``).
- Only infrastructure makes a TrialFailed; what the agent does to itself ends as an exit code, and is graded.
- Every sandbox is reclaimed, also of cancelled and failed trials, and only when nothing of its trial is under way.
- A creation that infrastructure fails is tried again, within a bound, and each time said (SandboxRetried); a task for which
  no sandbox can be made is named (TaskQuarantined), and no trial of it is begun any more.
- Whatever hangs, hangs for a time: each command, each try to create, the wait for it, and the whole trial have deadlines.
- What an earlier pool left that nobody owns is removed when this one starts (SandboxesReaped).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Protocol

import anyio

from t1actors.actors.environments import Environments, Start, image_store
from t1actors.actors.live_tests import LiveTests
from t1actors.actors.pool_admission import admission
from t1actors.actors.pool_effects import (
    DEADLINE,
    REAP,
    RECLAIM,
    Create,
    Reap,
    Reclaim,
    Run,
    Seal,
    run_key,
    start_key,
    trial_of,
)
from t1actors.actors.pool_events import diverged, executed, failed, not_made, quarantined, restored, retried
from t1actors.actors.pool_state import PoolState, fold_pool
from t1actors.actors.quarantine import QUARANTINED
from t1actors.actors.restoring import Diverged, Restoring
from t1actors.actors.task_files import TaskFiles
from t1actors.actors.verdicts import retries_of
from t1actors.events import (
    ActorStarted,
    AnyEvent,
    CommandRequested,
    EffectFinished,
    EpisodeEnded,
    Payload,
    SandboxesReaped,
    SandboxReady,
    SandboxReclaimed,
    SandboxRequested,
    SandboxSealed,
    StepOpened,
    TimerFired,
    TrialCancelled,
    TrialFailed,
    TrialReplaced,
    TrialSpec,
    TurnExecuted,
    TurnSampled,
    UnknownEvent,
)
from t1actors.harness.choice import make_hands
from t1actors.harness.interface import HarnessError
from t1actors.images.errors import BuildFailed, ImageError, ImageMissing
from t1actors.payloads import pack
from t1actors.runtime.actor import NOTHING, ActorContext, Decision, Effect, Performing, Unrecoverable, Wait
from t1actors.sandbox.admission import Admission
from t1actors.sandbox.choice import limits_of
from t1actors.sandbox.choice import make_backend as configured_backend
from t1actors.sandbox.errors import SandboxDied, SandboxError, SandboxGone, SandboxUnavailable
from t1actors.sandbox.errors import SandboxSealed as SealedMeanwhile
from t1actors.sandbox.interface import Leftover, RunRequest, RunResult, SandboxBackend, SandboxSpec
from t1actors.sandbox.pool import PoolCreated, SandboxPool
from t1actors.sandbox.retries import Retry, is_infrastructure
from t1actors.tasks.task import Task, TaskError
from t1actors.verify.verdict import NO_ISOLATION

COMMAND_MARGIN_S = 30.0
"""A command's effect may outlast the command's own limit by this: the shim must kill, collect and answer."""
RECLAIM_DEADLINE_S = 60.0
_TROUBLE = (SandboxError, ImageError, TaskError, HarnessError, TimeoutError)
"""What infrastructure can do to a turn or a seal."""


class Backend(SandboxBackend, Protocol):
    """One that has to be held open."""

    def running(self) -> AbstractAsyncContextManager[object]:
        """Sandboxes are made and driven while this is open; they outlive it. Raises ``SandboxUnavailable``."""
        ...


def _configured(context: ActorContext) -> Backend:
    sandbox = context.config.sandbox
    return configured_backend(sandbox, context.run_dir / "sandboxes", name="pool", images=image_store(sandbox))


class Pool:
    """See the module."""

    reads = frozenset({"publisher", "sampler", "assembler"})
    effect_type = Create | Run | Seal | Reclaim | Reap

    def __init__(
        self,
        context: ActorContext,
        make_backend: Callable[[ActorContext], Backend] = _configured,
        make_admission: Callable[[ActorContext], Admission] = admission,
    ) -> None:
        """``make_backend``: what makes sandboxes; ``make_admission``: when it may. Raises ``Unrecoverable``."""
        config = context.config
        self._config = config
        self._blobs = context.blobs
        self._hands = make_hands(config.rollout)
        self._tasks = TaskFiles(config.tasks, context.run_dir)
        self._environments = Environments(config.sandbox, image_store(config.sandbox))
        self._backend = make_backend(context)
        self._pool = SandboxPool(self._backend, make_admission(context), retries_of(config))
        self._retried: dict[str, list[Retry]] = {}
        """By trial, what is not said yet."""
        self._leftovers: list[Leftover] = []
        self._live_tests = LiveTests(context, self._tasks, self._backend)
        self._state = PoolState()
        self._restoring = Restoring(lambda: self._state.history, self._pool.renew, self._shown, self._make_again)

    def initial(self) -> PoolState:
        return self._state

    def fold(self, state: PoolState, event: AnyEvent | UnknownEvent) -> PoolState:
        return fold_pool(state, event)

    def decide(self, state: PoolState, event: AnyEvent | UnknownEvent) -> Decision:
        match event:
            case ActorStarted() if event.actor == "pool":
                return Decision(effects=[Reap(key=f"{REAP}{event.epoch}", deadline_s=RECLAIM_DEADLINE_S)])
            case StepOpened():
                return self._request(event.trials)
            case TrialReplaced():
                return self._request((event.replacement,))
            case TurnSampled() if event.execute and event.trial in state.in_play:
                return Decision(effects=[self._run_effect(event.trial, event.turn, event.command)])
            case CommandRequested() if event.trial in state.in_play:
                return Decision(effects=[self._run_effect(event.trial, event.number, event.command)])
            case EpisodeEnded() if event.trial in state.ending:
                commands = max(event.turns, len(state.history.commands.get(event.trial, ())))
                deadline_s = self._config.sandbox.create_deadline_s + self._restore_s(commands)
                deadline_s += self._live_tests.deadline_s
                key = f"{event.trial}/seal"
                task = state.ending[event.trial]
                return Decision(effects=[Seal(key=key, trial=event.trial, task=task, deadline_s=deadline_s)])
            case TrialCancelled() | TrialFailed() if event.trial in state.held:
                return self._stop(state, event.trial)
            case TimerFired() if (trial := trial_of(event.key)) in state.in_play | state.ending:
                detail = f"not sealed {self._config.rollout.trial_deadline_s:.0f} s after its sandbox was there"
                failed = TrialFailed(trial=trial, cause="deadline", detail=detail)
                return replace(self._stop(state, trial), events=[failed])
            case EffectFinished() if event.key.startswith(REAP) or event.key.endswith(DEADLINE):
                return NOTHING
            case EffectFinished():
                return self._finished(state, event)
            case _:
                return NOTHING

    async def perform(self, effect: Effect, performing: Performing) -> Sequence[AnyEvent]:
        match effect:
            case Create():
                return self._after_retries(effect.trial, await self._create(effect, performing))
            case Run():
                return self._after_retries(effect.trial, await self._run(effect))
            case Seal():
                return self._after_retries(effect.trial, await self._seal(effect))
            case Reap():
                return await self._reap()
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
                self._leftovers = await self._pool.reap()
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

    def _run_effect(self, trial: str, turn: int, command: str) -> Run:
        deadline_s = self._hands.limit_s + COMMAND_MARGIN_S + self._restore_s(turn)
        return Run(key=run_key(trial, turn), trial=trial, turn=turn, command=command, deadline_s=deadline_s)

    def _restore_s(self, turns: int) -> float:
        """The longest that it may take to make a sandbox again in which so many commands were run."""
        return self._config.sandbox.create_deadline_s + (turns + 1) * self._hands.limit_s

    def _finished(self, state: PoolState, event: EffectFinished) -> Decision:
        trial, _, what = event.key.partition("/")
        going_on = trial in state.in_play | state.ending
        if event.status == "deadline" and going_on:
            detail = f"{what} took longer than its deadline ({event.seconds:.1f} s)"
            failed = TrialFailed(trial=trial, cause="deadline", detail=detail)
            reclaim = Reclaim(key=f"{trial}{RECLAIM}", trial=trial, deadline_s=RECLAIM_DEADLINE_S)
            return Decision(events=[failed], effects=[reclaim], cancels=[f"{trial}{DEADLINE}"])
        if what == "create" and going_on:
            seconds = self._config.rollout.trial_deadline_s
            return Decision(effects=[Wait(key=f"{trial}{DEADLINE}", seconds=seconds)])
        due = state.quarantine.due(self._config.sandbox.quarantine_after)
        reclaim = self._reclaim_if_idle(state, trial)
        return Decision(
            events=[quarantined(task, tries) for task, tries in due],
            effects=reclaim,
            cancels=[f"{trial}{DEADLINE}"] if reclaim else [],
        )

    def _stop(self, state: PoolState, trial: str) -> Decision:
        """End all that is under way for the trial; it is reclaimed now, or once that has ended."""
        under_way = sorted(state.open.get(trial, ()))
        reclaim = Reclaim(key=f"{trial}{RECLAIM}", trial=trial, deadline_s=RECLAIM_DEADLINE_S)
        return Decision(cancels=[*under_way, f"{trial}{DEADLINE}"], effects=[] if under_way else [reclaim])

    def _reclaim_if_idle(self, state: PoolState, trial: str) -> list[Effect]:
        """A trial that is out of play is reclaimed once nothing of it is under way, so that no creation comes after."""
        if trial not in state.held or trial in state.in_play or trial in state.ending or trial in state.open:
            return []
        return [Reclaim(key=f"{trial}{RECLAIM}", trial=trial, deadline_s=RECLAIM_DEADLINE_S)]

    # --- effects --------------------------------------------------------------------------------------------------------

    async def _create(self, effect: Create, performing: Performing) -> Sequence[AnyEvent]:
        config = self._config.sandbox
        started_s = anyio.current_time()
        if why := self._state.quarantine.tasks.get(effect.task):
            detail = f"no sandbox can be made for task {effect.task}: {why}"
            return [TrialFailed(trial=effect.trial, cause=QUARANTINED, detail=detail)]
        try:
            task = self._tasks.read(effect.task)
            self._live_tests.check(task)
            start = await self._environments.of(task)
            image_s = anyio.current_time() - started_s
            made = await self._made(self._spec(effect.trial, task, start))
            screen = await self._started(effect.trial)
        except TaskError as error:
            return [not_made(effect.trial, "task", str(error), own_fault=True)]
        except SandboxUnavailable:
            raise  # the fork server is gone, or the host changed: a restarted pool finds out, a failed trial would not
        except TimeoutError as error:
            detail = f"no sandbox within {config.create_deadline_s:g} s (sandbox.create_deadline_s)"
            return [not_made(effect.trial, type(error).__name__, detail)]
        except SandboxError as error:
            own_fault = not is_infrastructure(error)
            return [not_made(effect.trial, type(error).__name__, str(error), own_fault=own_fault)]
        except (BuildFailed, ImageMissing, HarnessError) as error:
            return [not_made(effect.trial, type(error).__name__, str(error), own_fault=True)]
        except ImageError as error:  # the store's fault, and no task's
            return [failed(effect.trial, error)]
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
                image=start.image,
                screen=screen,
            )
        ]

    def _spec(self, trial: str, task: Task, start: Start) -> SandboxSpec:
        limits = limits_of(self._config.sandbox, command_s=self._hands.limit_s)
        return SandboxSpec(
            key=trial,
            workdir=task.workdir,
            env=start.env,
            limits=self._live_tests.limits(task, limits),
            lease_s=self._config.sandbox.lease_s,
            layers=start.layers,
            base=start.base,
            network=start.network,
            refused_addresses=self._config.sandbox.refused_addresses,
        )

    async def _make_again(self, trial: str) -> None:
        """A fresh sandbox for the trial. Raises ``_TROUBLE``."""
        name = self._state.in_play.get(trial) or self._state.ending.get(trial)
        if name is None:
            raise SandboxGone(f"sandbox {trial} is gone, and its trial is over")
        await self._pool.kill(trial)  # whatever is left of it
        task = self._tasks.read(name)
        start = await self._environments.of(task, self._state.images.get(trial, ""))
        await self._made(self._spec(trial, task, start))
        await self._started(trial)

    async def _started(self, trial: str) -> str:
        """What the terminal of the trial's new sandbox shows. Raises ``HarnessError``, ``SandboxError``."""
        request = self._hands.start(start_key(trial))
        return "" if request is None else self._hands.screen(await self._pool.run(trial, request))

    async def _made(self, spec: SandboxSpec) -> PoolCreated:
        def note(retry: Retry) -> None:
            self._retried.setdefault(retry.key, []).append(retry)

        return await self._pool.create(spec, deadline_s=self._config.sandbox.create_deadline_s, on_retry=note)

    def _after_retries(self, trial: str, events: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
        return [*(retried(retry) for retry in self._retried.pop(trial, ())), *events]

    async def _reap(self) -> Sequence[AnyEvent]:
        """What was found at the start, and since."""
        found, self._leftovers = [*self._leftovers, *await self._pool.reap()], []
        kinds = Counter(leftover.kind for leftover in found)
        trouble = tuple(
            f"{leftover.kind} {leftover.name}: {leftover.trouble}" for leftover in found if leftover.trouble
        )
        return [SandboxesReaped(found=dict(sorted(kinds.items())), trouble=trouble)] if found else []

    async def _shown(self, trial: str, turn: int, command: str) -> str | None:
        try:
            return self._hands.observation(command, await self._performed(trial, turn, command))
        except SandboxDied as error:
            if error.cause == "memory":
                return None
            raise SandboxGone(f"sandbox {trial}, made again, died when turn {turn} was run again: {error}") from error

    async def _performed(self, trial: str, turn: int, command: str) -> RunResult | None:
        request = self._request_of(trial, turn, command)
        return None if request is None else await self._pool.run(trial, request)

    def _request_of(self, trial: str, turn: int, command: str) -> RunRequest | None:
        return self._hands.request(run_key(trial, turn), command)

    async def _run(self, effect: Run) -> Sequence[AnyEvent]:
        started_s = anyio.current_time()
        try:
            remade, result = await self._restoring.inside(
                effect.trial, lambda: self._performed(effect.trial, effect.turn, effect.command)
            )
        except Diverged as found:
            return diverged(effect.trial, found)
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
        except _TROUBLE as error:
            return [failed(effect.trial, error)]
        return [
            *restored(effect.trial, remade),
            executed(effect.trial, effect.turn, self._hands.observation(effect.command, result), result),
        ]

    async def _seal(self, effect: Seal) -> Sequence[AnyEvent]:
        started_s = anyio.current_time()
        try:
            remade, (tested, layer) = await self._restoring.inside(
                effect.trial, lambda: self._tested_and_sealed(effect)
            )
        except Diverged as found:
            return diverged(effect.trial, found)
        except _TROUBLE as error:
            return [failed(effect.trial, error)]
        return [
            *restored(effect.trial, remade),
            SandboxSealed(
                trial=effect.trial,
                task=effect.task,
                layer=pack(self._blobs, layer),
                image=self._state.images.get(effect.trial, ""),
                seconds=anyio.current_time() - started_s,
                tested=tested,
            ),
        ]

    async def _tested_and_sealed(self, effect: Seal) -> tuple[Payload | None, bytes]:
        image = self._state.images.get(effect.trial, "")
        isolation = self._state.isolations.get(effect.trial, NO_ISOLATION)
        tested = await self._live_tests.run(effect.trial, effect.task, image, isolation)
        return tested, await self._pool.seal(effect.trial)
