"""What is worth a line while a run goes on: pure functions from a frame, already folded, to happenings.

The plain display prints their text, the JSON display their fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from t1actors.events import (
    ActorReady,
    ActorStarted,
    ActorStopped,
    ActorUpdated,
    AnyEvent,
    BatchSealed,
    BatchShort,
    CriticUpdated,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    StepOpened,
    TrialFailed,
    TrialReplaced,
    UnknownEvent,
    WeightsPublished,
)
from t1actors.observe.progress import time_left
from t1actors.observe.quantities import duration, duration_range, figure, percent, size
from t1actors.observe.view import RunView

Field = str | int | float | None


@dataclass(frozen=True)
class Happening:
    """``kind`` and ``fields`` for programs, ``text`` for people."""

    kind: str
    text: str
    fields: dict[str, Field] = field(default_factory=dict[str, Field])


def happenings(view: RunView, events: Sequence[AnyEvent | UnknownEvent]) -> list[Happening]:
    """What ``events`` (one frame's, folded into ``view``) have to say, in order."""
    found = [_happening(view, event) for event in events]
    return [h for h in found if h is not None]


def _happening(view: RunView, event: AnyEvent | UnknownEvent) -> Happening | None:
    match event:
        case RunStarted() | RunFinished() | RunFailed() | RunStopped():
            return _of_run(event)
        case ActorStarted() | ActorReady() | ActorStopped():
            return _of_actor(view, event)
        case StepOpened() | BatchSealed() | BatchShort() | CriticUpdated() | ActorUpdated():
            return _of_step(view, event)
        case WeightsPublished():
            text = f"version {event.version_index} published: {size(event.size_bytes)} in {duration(event.seconds)}"
            return Happening(
                "weights_published", text, {"version": event.version, "version_index": event.version_index}
            )
        case TrialFailed():
            text = f"trial {event.trial} failed, not counted: {event.cause}" + (
                f" ({event.detail})" if event.detail else ""
            )
            return Happening("trial_failed", text, {"trial": event.trial, "cause": event.cause, "detail": event.detail})
        case TrialReplaced():
            new = event.replacement.trial
            text = f"trial {event.failed} is replaced by {new} ({event.cause})"
            return Happening("trial_replaced", text, {"trial": event.failed, "replacement": new, "cause": event.cause})
        case _:
            return None


def _of_run(event: RunStarted | RunFinished | RunFailed | RunStopped) -> Happening:
    match event:
        case RunStarted():
            verb = "resumed" if event.resumed else "started"
            text = f"run {event.run} {verb} (configuration {event.config_digest[:12]}, code {event.code_version})"
            return Happening(f"run_{verb}", text, {"run": event.run, "config_digest": event.config_digest})
        case RunFinished():
            text = f"run finished: {event.steps} steps, final version {event.version[:12]}"
            return Happening("run_finished", text, {"steps": event.steps, "version": event.version})
        case RunFailed():
            return Happening("run_failed", f"run failed: {event.reason}", {"step": event.step, "reason": event.reason})
        case RunStopped():
            return Happening("run_stopped", f"run stopped: {event.reason}", {"reason": event.reason})


def _of_actor(view: RunView, event: ActorStarted | ActorReady | ActorStopped) -> Happening | None:
    match event:
        case ActorStarted():
            restarts = view.actors[event.actor].restarts
            if restarts == 0:
                return None
            text = f"{event.actor} started again (restart {restarts}, process {event.pid})"
            return Happening("actor_restarted", text, {"actor": event.actor, "restarts": restarts})
        case ActorReady():
            text = f"{event.actor} ready after {duration(event.seconds)}" + (
                f", {size(event.rss_bytes)} of memory" if event.rss_bytes else ""
            )
            return Happening("actor_ready", text, {"actor": event.actor, "seconds": event.seconds})
        case ActorStopped():
            text = f"{event.actor} stopped" + (f": {event.reason}" if event.exit_code else "")
            return Happening("actor_stopped", text, {"actor": event.actor, "exit_code": event.exit_code})


def _of_step(
    view: RunView, event: StepOpened | BatchSealed | BatchShort | CriticUpdated | ActorUpdated
) -> Happening | None:
    step = view.steps.get(event.step)
    if step is None:
        return None
    name = f"step {event.step}"
    fields: dict[str, Field]
    match event:
        case StepOpened():
            how = "greedy" if event.temperature == 0 else f"temperature {event.temperature:g}"
            text = f"{name} opened: {event.purpose}, {len(event.trials)} trials, version {event.version_index}, {how}"
            fields = {"step": event.step, "purpose": event.purpose, "trials": len(event.trials)}
            return Happening("step_opened", text, fields)
        case BatchSealed():
            text = (
                f"{name} batch: {len(event.items)} of {event.launched} trials, reward {figure(step.reward_mean)}, "
                f"passed {percent(step.fraction_mean)}, {figure(step.turns_mean, 1)} turns, "
                f"{event.failed} failed, {event.cancelled} cancelled, {duration(step.seconds('rollout'))}"
            )
            fields = {"step": event.step, "purpose": event.purpose, "trials": len(event.items), "failed": event.failed}
            fields |= {"cancelled": event.cancelled, "reward": step.reward_mean, "fraction": step.fraction_mean}
            return Happening("batch_sealed", text, fields)
        case BatchShort():
            causes = ", ".join(f"{n} x {cause}" for cause, n in sorted(event.causes.items()))
            text = f"{name} can have only {event.possible} of {event.wanted} trials: {causes}"
            return Happening("batch_short", text, {"step": event.step, "possible": event.possible})
        case CriticUpdated():
            text = f"{name} critic: explained variance {figure(event.explained_variance)}, {duration(event.seconds)}"
            fields = {"step": event.step, "explained_variance": event.explained_variance, "loss": event.loss}
            return Happening("critic_updated", text, fields)
        case ActorUpdated():
            left = time_left(view)
            text = (
                f"{name} actor: engine gap {figure(event.engine_gap_mean)} (largest {figure(event.engine_gap_max)}), "
                f"clipped {percent(event.clip_share)}, KL {figure(event.kl)}, staleness {event.staleness}, "
                f"{duration(event.seconds)}" + (f"; {duration_range(left.low_s, left.high_s)} left" if left else "")
            )
            fields = {"step": event.step, "engine_gap_mean": event.engine_gap_mean, "staleness": event.staleness}
            fields |= {"engine_gap_max": event.engine_gap_max, "clip_share": event.clip_share, "kl": event.kl}
            return Happening("actor_updated", text, fields)
