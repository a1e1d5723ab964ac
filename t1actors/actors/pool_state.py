"""What the log says of the pool's part: which trials are in play, what is under way for them, and what was run in them."""

from __future__ import annotations

from dataclasses import dataclass, field

from t1actors.actors.pool_effects import is_work, trial_of
from t1actors.actors.quarantine import Quarantine
from t1actors.actors.restoring import History
from t1actors.events import (
    AnyEvent,
    CommandRequested,
    EffectFinished,
    EffectIntended,
    EpisodeEnded,
    Isolation,
    SandboxReady,
    SandboxReclaimed,
    SandboxSealed,
    StepOpened,
    TaskQuarantined,
    TrialCancelled,
    TrialFailed,
    TrialReplaced,
    TurnExecuted,
    TurnSampled,
    UnknownEvent,
)


@dataclass
class PoolState:
    """``in_play``: trials that commands are run for. ``ending``: trials to be sealed. ``held``: trials that may have a
    sandbox. ``open``: keys of a trial's effects under way, its reclaiming aside. The values are tasks, and keys. ``images``:
    what the sandboxes of ``held`` trials were made of, where that is not the host; ``isolations``: how they are held."""

    in_play: dict[str, str] = field(default_factory=dict[str, str])
    ending: dict[str, str] = field(default_factory=dict[str, str])
    held: set[str] = field(default_factory=set[str])
    open: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    history: History = field(default_factory=History)
    quarantine: Quarantine = field(default_factory=Quarantine)
    images: dict[str, str] = field(default_factory=dict[str, str])
    isolations: dict[str, Isolation] = field(default_factory=dict[str, Isolation])


def fold_pool(state: PoolState, event: AnyEvent | UnknownEvent) -> PoolState:
    """The state after ``event``. Pure."""
    match event:
        case StepOpened():
            state.in_play.update((spec.trial, spec.task) for spec in event.trials)
            state.held.update(spec.trial for spec in event.trials)
        case TrialReplaced():
            state.in_play[event.replacement.trial] = event.replacement.task
            state.held.add(event.replacement.trial)
        case EpisodeEnded() if event.trial in state.in_play:
            state.ending[event.trial] = state.in_play.pop(event.trial)
        case SandboxReady():
            if event.trial in state.in_play:
                state.quarantine.succeeded(state.in_play[event.trial])
            if event.trial in state.held:
                state.isolations[event.trial] = event.isolation
                if event.image:
                    state.images[event.trial] = event.image
        case TaskQuarantined():
            state.quarantine.fold(event)
        case TrialCancelled() | TrialFailed() | SandboxSealed():
            task = state.in_play.pop(event.trial, None)
            state.ending.pop(event.trial, None)
            if isinstance(event, TrialFailed) and task is not None:
                state.quarantine.failed(task, event)
        case SandboxReclaimed():
            state.held.discard(event.trial)
            state.history.forget(event.trial)
            state.images.pop(event.trial, None)
            state.isolations.pop(event.trial, None)
        case TurnSampled() | CommandRequested() | TurnExecuted() if event.trial in state.held:
            state.history.fold(event)
        case EffectIntended() if is_work(event.key):
            state.open.setdefault(trial_of(event.key), set()).add(event.key)
        case EffectFinished() if is_work(event.key):
            trial = trial_of(event.key)
            state.open[trial].discard(event.key)
            if not state.open[trial]:
                del state.open[trial]
        case _:
            pass
    return state
