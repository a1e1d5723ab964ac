"""Verifier: grades sealed file systems, each in a sandbox of its own, and computes the reward outside.

Guarantees: grading is idempotent (its input is a sealed layer by digest, or what the tests left in the trial's own
sandbox) and holds nothing of the trial's sandbox; a grader's sandbox that infrastructure fails to make is tried again as
trials' are, and each time said (SandboxRetried); a fault of the infrastructure is outcome "infra", never a reward; only
outcome "graded" carries one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from t1actors.actors.environments import image_store
from t1actors.actors.task_files import TaskFiles
from t1actors.actors.verdicts import TOOLS_FOLDER, verdict_on, verifier_of
from t1actors.events import (
    AnyEvent,
    EffectFinished,
    Graded,
    SandboxRetried,
    SandboxSealed,
    TrialCancelled,
    UnknownEvent,
)
from t1actors.runtime.actor import NOTHING, ActorContext, Decision, Effect, Performing, Unrecoverable
from t1actors.sandbox.choice import make_backend
from t1actors.sandbox.errors import SandboxUnavailable
from t1actors.sandbox.retries import Retry
from t1actors.tasks.task import TaskError
from t1actors.verify.reward import reward
from t1actors.verify.tools import find_tools
from t1actors.verify.verdict import Verdict, VerifyError

GRADE_MARGIN_S = 60.0
"""Room for creating and reclaiming the grader's sandbox, and for waiting for a grading slot, beside the grading
itself."""


class Grade(Effect, frozen=True, kw_only=True):
    """Grade what ``trial`` left."""

    trial: str


@dataclass
class VerifierState:
    """``sealed``: trials whose sealed layer has no verdict yet."""

    sealed: dict[str, SandboxSealed] = field(default_factory=dict[str, SandboxSealed])


class Verifier:
    """See the module."""

    reads = frozenset({"pool", "assembler"})
    effect_type = Grade

    def __init__(self, context: ActorContext) -> None:
        self._config = context.config
        self._blobs = context.blobs
        self._tasks = TaskFiles(context.config.tasks, context.run_dir)
        sandbox = context.config.sandbox
        self._backend = make_backend(sandbox, context.run_dir / "graders", name="verifier", images=image_store(sandbox))
        self._verifier = verifier_of(context.config, self._backend, cache=context.run_dir / TOOLS_FOLDER)
        self._slots = anyio.Semaphore(context.config.verify.parallel)
        self._state = VerifierState()

    def initial(self) -> VerifierState:
        return self._state

    def fold(self, state: VerifierState, event: AnyEvent | UnknownEvent) -> VerifierState:
        match event:
            case SandboxSealed():
                state.sealed[event.trial] = event
            case Graded() | TrialCancelled():
                state.sealed.pop(event.trial, None)
            case _:
                pass
        return state

    def decide(self, state: VerifierState, event: AnyEvent | UnknownEvent) -> Decision:
        match event:
            case SandboxSealed():
                deadline_s = self._config.verify.deadline_s + self._config.rollout.trial_deadline_s
                return Decision(effects=[Grade(key=f"{event.trial}/grade", trial=event.trial, deadline_s=deadline_s)])
            case EffectFinished() if event.status == "deadline" and (sealed := state.sealed.get(_trial_of(event.key))):
                return Decision(
                    events=[_ungraded(sealed, f"not graded within {event.seconds:.0f} s, waiting included")]
                )
            case TrialCancelled():
                return Decision(cancels=[f"{event.trial}/grade"])
            case _:
                return NOTHING

    async def perform(self, effect: Effect, performing: Performing) -> Sequence[AnyEvent]:
        assert isinstance(effect, Grade)
        sealed = self._state.sealed.get(effect.trial)
        if sealed is None:
            return []
        try:
            task = self._tasks.read(sealed.task)
        except TaskError as error:
            return [_ungraded(sealed, str(error))]
        queued_s = anyio.current_time()
        async with self._slots:
            performing.phases["queue"] = anyio.current_time() - queued_s
            try:
                verdict = await verdict_on(sealed, task, self._verifier, self._blobs, key=effect.trial)
            except TaskError as error:
                return [_ungraded(sealed, str(error))]
            except VerifyError as error:  # a package that tests need is not installed: no trial of theirs can be graded
                raise Unrecoverable(str(error)) from error
        performing.phases.update(verdict.phases)
        again = [_retried(sealed.trial, retry) for retry in verdict.retried]
        return [*again, graded(sealed, verdict, self._config.verify.reward_scale)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            find_tools()
            async with self._backend.running():
                await self._backend.reap()
                yield
        except (SandboxUnavailable, VerifyError) as error:
            raise Unrecoverable(str(error)) from error


def _trial_of(key: str) -> str:
    return key.partition("/")[0]


def _ungraded(sealed: SandboxSealed, detail: str) -> Graded:
    """Nothing could be graded: nobody's reward."""
    return graded(sealed, Verdict("infra", detail=detail), 1.0)


def _retried(trial: str, retry: Retry) -> SandboxRetried:
    return SandboxRetried(
        trial=trial,
        attempt=retry.attempt,
        cause=retry.cause,
        detail=retry.detail,
        pause_s=retry.pause_s,
        grading=True,
    )


def graded(sealed: SandboxSealed, verdict: Verdict, scale: float) -> Graded:
    """The event that states ``verdict``."""
    return Graded(
        trial=sealed.trial,
        task=sealed.task,
        outcome=verdict.outcome,
        assertions=verdict.assertions,
        passed=verdict.passed,
        expected=verdict.expected,
        reward=reward(verdict, scale),
        layer_digest=sealed.layer.digest,
        tests_digest=verdict.tests_digest,
        tools_digest=verdict.tools_digest,
        isolation=verdict.isolation,
        seconds=verdict.seconds,
        detail=verdict.detail,
        mode=verdict.mode,
        channel=verdict.channel,
        tool_layer_digest=verdict.tool_layer_digest,
        stand_ins=verdict.stand_ins,
        warnings=verdict.warnings,
    )
