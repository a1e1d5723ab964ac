"""Verifier: grades sealed file systems, each in a sandbox of its own, and computes the reward outside.

Guarantees: grading is idempotent (its input is a sealed layer, by digest) and holds nothing of the trial's sandbox; a fault
of the infrastructure is outcome "infra", never a reward; only outcome "graded" carries one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from t1actors.actors.task_files import TaskFiles
from t1actors.events import AnyEvent, EffectFinished, Graded, SandboxSealed, TrialCancelled, UnknownEvent
from t1actors.payloads import unpack
from t1actors.runtime.actor import NOTHING, ActorContext, Decision, Effect, Performing, Unrecoverable
from t1actors.sandbox.choice import make_backend
from t1actors.sandbox.errors import SandboxUnavailable
from t1actors.sandbox.interface import Limits
from t1actors.tasks.task import TaskError
from t1actors.verify.grade import grade
from t1actors.verify.reward import reward
from t1actors.verify.tools import find_tools
from t1actors.verify.verdict import NO_ISOLATION, VerifyError

GRADE_MARGIN_S = 60.0
"""Room for creating and reclaiming the grader's sandbox, and for waiting for a grading slot, beside the grading itself."""


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
        self._backend = make_backend(context.config.sandbox, context.run_dir / "graders", name="verifier")
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
            sandbox = self._config.sandbox
            verdict = await grade(
                task,
                bytes(unpack(self._blobs, sealed.layer)),
                self._backend,
                key=effect.trial,
                deadline_s=self._config.verify.deadline_s,
                lease_s=self._config.verify.deadline_s + GRADE_MARGIN_S,
                limits=Limits(
                    memory_mb=sandbox.memory_mb,
                    disk_mb=sandbox.disk_mb,
                    processes=sandbox.processes,
                    output_bytes=sandbox.output_bytes,
                    command_s=self._config.verify.deadline_s,
                ),
            )
        performing.phases.update(verdict.phases)
        return [
            Graded(
                trial=effect.trial,
                task=sealed.task,
                outcome=verdict.outcome,
                assertions=verdict.assertions,
                passed=verdict.passed,
                expected=verdict.expected,
                reward=reward(verdict, self._config.verify.reward_scale),
                layer_digest=sealed.layer.digest,
                tests_digest=verdict.tests_digest,
                tools_digest=verdict.tools_digest,
                isolation=verdict.isolation,
                seconds=verdict.seconds,
                detail=verdict.detail,
            )
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            find_tools()
            async with self._backend.running():
                yield
        except (SandboxUnavailable, VerifyError) as error:
            raise Unrecoverable(str(error)) from error


def _trial_of(key: str) -> str:
    return key.partition("/")[0]


def _ungraded(sealed: SandboxSealed, detail: str) -> Graded:
    """Nothing could be graded: nobody's reward."""
    return Graded(
        trial=sealed.trial,
        task=sealed.task,
        outcome="infra",
        assertions=(),
        passed=0,
        expected=0,
        reward=None,
        layer_digest=sealed.layer.digest,
        tests_digest="",
        tools_digest="",
        isolation=NO_ISOLATION,
        seconds=0.0,
        detail=detail,
    )
