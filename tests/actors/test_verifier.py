"""The verifier's decisions: what is graded, and that a grading that never came is nobody's reward."""

from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from t1actors import config as cfg
from t1actors.actors.verifier import Grade, Verifier
from t1actors.events import EffectFinished, Graded, Payload, SandboxRetried, SandboxSealed, TrialCancelled
from t1actors.log.blobs import MemoryBlobs
from t1actors.payloads import pack
from t1actors.runtime.actor import ActorContext, Performing
from t1actors.sandbox.archive import EMPTY
from t1actors.sandbox.retries import Retry
from t1actors.tasks.task import Task
from t1actors.verify.verdict import Verdict

SEALED = SandboxSealed(
    trial="s0.t0", task="l1-100000000", layer=Payload(digest="00", size_bytes=0, inline=b""), seconds=0.1
)


@pytest.fixture
def verifier(tmp_path: Path) -> Verifier:
    return Verifier(
        ActorContext("verifier", tmp_path, cfg.resolve(preset="smoke").config, MemoryBlobs(), 1, lambda: 0.0)
    )


def test_a_sealed_trial_is_graded_within_a_deadline(verifier: Verifier) -> None:
    state = verifier.fold(verifier.initial(), SEALED)
    [effect] = verifier.decide(state, SEALED).effects
    assert isinstance(effect, Grade)
    assert effect.deadline_s is not None


def test_a_grading_out_of_time_leaves_the_trial_unmeasured(verifier: Verifier) -> None:
    state = verifier.fold(verifier.initial(), SEALED)
    late = EffectFinished(key="s0.t0/grade", status="deadline", seconds=9.0)
    [graded] = verifier.decide(verifier.fold(state, late), late).events
    assert isinstance(graded, Graded)
    assert (graded.outcome, graded.reward) == ("infra", None)


def test_a_cancelled_trial_is_not_graded(verifier: Verifier) -> None:
    state = verifier.fold(verifier.initial(), SEALED)
    cancelled = TrialCancelled(trial="s0.t0", step=0, cause="batch complete")
    decision = verifier.decide(verifier.fold(state, cancelled), cancelled)
    assert list(decision.cancels) == ["s0.t0/grade"]
    assert not state.sealed


def test_tries_to_make_the_graders_sandbox_are_said_before_the_verdict(
    verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = Retry("s0.t0", 1, "TimeoutError", "too slow", 0.2)

    async def grade(task: Task, layer: bytes, *, key: str, base: str) -> Verdict:
        return Verdict("infra", detail="later", retried=(retry,))

    async def report(done: float, total: float, unit: str) -> None: ...

    monkeypatch.setattr(verifier._verifier, "grade", grade)
    sealed = replace(SEALED, layer=pack(verifier._blobs, EMPTY))
    verifier.fold(verifier.initial(), sealed)
    effect = Grade(key="s0.t0/grade", trial="s0.t0")
    retried, graded = trio.run(verifier.perform, effect, Performing(attempt=1, report=report))
    assert isinstance(retried, SandboxRetried)
    assert (retried.trial, retried.cause, retried.grading) == ("s0.t0", "TimeoutError", True)
    assert isinstance(graded, Graded)
    assert (graded.outcome, graded.reward) == ("infra", None)
