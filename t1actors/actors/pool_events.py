"""What the pool says of turns, and of trials whose sandboxes were lost, made again, or cannot be had."""

from __future__ import annotations

from t1actors.actors.quarantine import Tries
from t1actors.actors.restoring import Diverged, Restored
from t1actors.events import (
    AnyEvent,
    ObservationDiverged,
    SandboxRestored,
    SandboxRetried,
    TaskQuarantined,
    TrialFailed,
    TurnExecuted,
)
from t1actors.sandbox.interface import RunResult
from t1actors.sandbox.retries import Retry


def executed(trial: str, turn: int, observation: str, result: RunResult | None) -> TurnExecuted:
    """A turn, and what came of it; ``result`` is None where it could not be read and nothing was done."""
    if result is None:
        return TurnExecuted(trial=trial, turn=turn, observation=observation, exit_code=0, seconds=0.0, malformed=True)
    return TurnExecuted(
        trial=trial,
        turn=turn,
        observation=observation,
        exit_code=result.exit_code,
        seconds=result.seconds,
        output=result.output,
        truncated_bytes=result.truncated_bytes,
        timed_out=result.timed_out,
        shell_restarted=result.shell_restarted,
        limit_hit=result.limit_hit,
    )


def failed(trial: str, error: Exception) -> TrialFailed:
    """The trial ends with ``error``, which infrastructure caused."""
    return TrialFailed(trial=trial, cause=type(error).__name__, detail=str(error))


def not_made(trial: str, cause: str, detail: str, *, own_fault: bool = False) -> TrialFailed:
    """No sandbox could be made for the trial; ``own_fault``: by its task's own doing."""
    return TrialFailed(trial=trial, cause=cause, detail=detail, creating=True, own_fault=own_fault)


def retried(retry: Retry) -> SandboxRetried:
    """Its sandbox is tried again."""
    return SandboxRetried(
        trial=retry.key, attempt=retry.attempt, cause=retry.cause, detail=retry.detail, pause_s=retry.pause_s
    )


def quarantined(task: str, tries: Tries) -> TaskQuarantined:
    """It is enough: the task is drawn no more."""
    return TaskQuarantined(task=task, tries=tries.count, cause=tries.cause, detail=tries.detail)


def restored(trial: str, made: Restored | None) -> list[AnyEvent]:
    """Its sandbox was made again; nothing where it was not."""
    if made is None:
        return []
    return [SandboxRestored(trial=trial, turns=made.turns, seconds=made.seconds)]


def diverged(trial: str, found: Diverged) -> list[AnyEvent]:
    """A sandbox made again shows other things than the first one did."""
    event = ObservationDiverged(trial=trial, turn=found.turn, recorded=found.recorded, observed=found.observed)
    return [event, failed(trial, found)]
