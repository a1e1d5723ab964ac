"""The fold of a log into a ``RunView``. Pure: no clock, no files; the view belongs to the caller, who passes it on.

Guarantees: the view after a frame depends only on the frames folded so far, taken in causal order, not on how they
were cut into calls; events of unknown kinds are counted and skipped, so an older program can watch a newer run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from t1kernels.hashes import differences

from t1actors.config import ConfigError, from_toml
from t1actors.events import (
    ActorReady,
    ActorStarted,
    ActorStopped,
    ActorUpdated,
    AnyEvent,
    BarrierOpened,
    BatchSealed,
    BatchShort,
    CriticUpdated,
    EffectFinished,
    EffectIntended,
    EpisodeEnded,
    Graded,
    ModelExported,
    ProgressReported,
    ReplicaReclaimed,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    SandboxReady,
    SandboxSealed,
    StepOpened,
    StopRequested,
    Tensor,
    TrajectoryAssembled,
    TrialCancelled,
    TrialFailed,
    TrialReplaced,
    TrialSpec,
    TurnExecuted,
    TurnSampled,
    UnknownEvent,
    ValuesEstimated,
    WeightsPublished,
    decode,
)
from t1actors.log.frame import Frame
from t1actors.observe.families import by_family
from t1actors.observe.view import TIMER, ActorView, Intent, Pause, RunView, Span, StepView, TrialView


def fold(view: RunView, frames: Iterable[Frame]) -> RunView:
    """``view`` with the frames' events applied, in the order given."""
    for frame in frames:
        fold_frame(view, frame)
    return view


def fold_frame(view: RunView, frame: Frame) -> tuple[AnyEvent | UnknownEvent, ...]:
    """Apply one frame to ``view`` and return its events, decoded."""
    wall_ns = frame.head.wall_ns
    before_ns = view.last_ns
    view.first_ns = wall_ns if view.first_ns is None else min(view.first_ns, wall_ns)
    view.last_ns = wall_ns if view.last_ns is None else max(view.last_ns, wall_ns)
    events = tuple(decode(raw) for raw in frame.events)
    for raw, event in zip(frame.events, events, strict=True):
        if isinstance(event, RunStarted) and before_ns is not None:
            view.pauses.append(Pause(before_ns, max(before_ns, wall_ns)))
        view.attribution.note(event)
        view.sandboxes.fold(event)
        _apply(view, frame.journal, wall_ns, event)
        number = view.attribution.step(event)
        step = view.steps.get(number) if number is not None else None
        (step.size_bytes if step else view.run_bytes)["events"] += len(raw)
    if events:
        view.as_of[frame.journal] = frame.next_sequence - 1
    return events


def _apply(view: RunView, journal: str, wall_ns: int, event: AnyEvent | UnknownEvent) -> None:
    match event:
        case EffectIntended() | EffectFinished() | ProgressReported():
            _fold_effect(_actor(view, journal), wall_ns, event)
        case RunStarted() | RunStopped() | RunFinished() | RunFailed() | ModelExported() | WeightsPublished():
            _fold_run(view, event)
        case StopRequested():
            view.stop_requested = True
        case ActorStarted() | ActorReady() | ActorStopped() | ReplicaReclaimed():
            _fold_actor(view, wall_ns, event)
        case StepOpened() | BatchSealed() | BatchShort() | ValuesEstimated() | CriticUpdated() | ActorUpdated():
            _fold_step(view, wall_ns, event)
        case BarrierOpened():
            view.barrier_ns = wall_ns
        case UnknownEvent():
            view.unknown_events += 1
        case _:
            _fold_trial(view, event)


# --- the run and its processes ----------------------------------------------------------------------------------------


def _fold_run(
    view: RunView, event: RunStarted | RunStopped | RunFinished | RunFailed | ModelExported | WeightsPublished
) -> None:
    match event:
        case RunStarted():
            view.run = event.run
            view.code_version = event.code_version
            view.environment = event.environment
            view.sessions += 1
            _fold_numerics(view, event)
            view.stopped_reason = None
            view.failed_reason = ""
            view.stop_requested = False
            for actor in view.actors.values():  # whatever became of them, they are not up now
                actor.phase = "starting"
            try:
                view.config = from_toml(event.config_toml, origin="the log's RunStarted")
            except ConfigError:
                view.config = None  # written by a version with other keys: the figures need no configuration
        case RunStopped():
            view.stopped_reason = event.reason
            if event.cpu_s is not None:
                view.cpu_s = (view.cpu_s or 0.0) + event.cpu_s
                view.cpu_sessions += 1
        case RunFinished():
            view.finished = True
        case RunFailed():
            view.failed_reason = event.reason
        case ModelExported():
            view.model_folder = event.folder
        case WeightsPublished():
            view.published += 1
            view.published_bytes += event.size_bytes


def _fold_numerics(view: RunView, event: RunStarted) -> None:
    view.kernels = view.kernels or event.kernels
    if not view.numerics:
        view.numerics = event.numerics
    elif event.numerics and (found := differences(view.numerics, event.numerics)):
        view.other_bits[view.sessions] = tuple(found)


def _actor(view: RunView, name: str) -> ActorView:
    if name not in view.actors:
        view.actors[name] = ActorView(name=name, journal=name)
    return view.actors[name]


def _fold_actor(
    view: RunView, wall_ns: int, event: ActorStarted | ActorReady | ActorStopped | ReplicaReclaimed
) -> None:
    match event:
        case ActorStarted():
            actor = _actor(view, event.actor)
            actor.journal = event.journal
            actor.epoch = event.epoch
            if actor.starts and actor.session != view.sessions:
                actor.resumes += 1
            actor.session = view.sessions
            actor.starts += 1
            actor.phase = "starting"
        case ActorReady():
            actor = _actor(view, event.actor)
            actor.phase = "ready"
            actor.ready_ns = wall_ns
            actor.start_s = event.seconds
            actor.rss_bytes = event.rss_bytes
        case ActorStopped():
            actor = _actor(view, event.actor)
            actor.phase = "stopped"
            actor.exits.append(f"exit {event.exit_code}: {event.reason}")
        case ReplicaReclaimed():
            actor = _actor(view, event.replica)
            actor.phase = "stopped"
            actor.exits.append(f"reclaimed: {event.reason}")


def _fold_effect(actor: ActorView, wall_ns: int, event: EffectIntended | EffectFinished | ProgressReported) -> None:
    match event:
        case EffectIntended():
            if event.key not in actor.intents and event.effect_kind != TIMER:
                actor.busy[_verb(event.key)] += 1
            actor.intents[event.key] = Intent(
                actor=actor.name,
                key=event.key,
                effect_kind=event.effect_kind,
                since_ns=wall_ns,
                deadline_s=event.deadline_s,
                total=event.expected_total,
                unit=event.unit,
            )
        case EffectFinished():
            intent = actor.intents.pop(event.key, None)
            if intent is not None and intent.effect_kind != TIMER:
                actor.busy[_verb(event.key)] -= 1
        case ProgressReported():
            intent = actor.intents.get(event.key)
            if intent is not None:
                intent.done, intent.total, intent.unit = event.done, event.total, event.unit


def _verb(key: str) -> str:
    return key.rpartition("/")[2]


# --- steps ------------------------------------------------------------------------------------------------------------


def _fold_step(
    view: RunView,
    wall_ns: int,
    event: StepOpened | BatchSealed | BatchShort | ValuesEstimated | CriticUpdated | ActorUpdated,
) -> None:
    if isinstance(event, StepOpened):
        step = StepView(
            step=event.step,
            purpose=event.purpose,
            version=event.version,
            version_index=event.version_index,
            batch_size=event.batch_size,
            temperature=event.temperature,
            opened_ns=wall_ns,
            opened_at=dict(view.as_of),
        )
        view.steps[event.step] = step
        if view.barrier_ns is not None:  # it ends in the frame that opens the first step behind it
            step.spans.append(Span("barrier", view.barrier_ns, wall_ns))
            view.barrier_ns = None
        for spec in event.trials:
            _launch(view, step, spec)
        return
    step = view.steps.get(event.step)
    if step is None:
        return
    match event:
        case BatchSealed():
            step.sealed_ns = wall_ns
            step.kept = tuple(step.trials[item.trial] for item in event.items if item.trial in step.trials)
            step.lost_by_family, step.lost_by_length = event.lost_by_family, event.lost_by_length
            step.spans.append(Span("rollout", step.opened_ns, wall_ns))
        case BatchShort():
            step.short_of = event.wanted - event.possible
        case ValuesEstimated():
            step.values = event
            step.spans.append(_span_before(wall_ns, "values", event.seconds))
            step.size_bytes["values"] += _blob_bytes(event.values)
        case CriticUpdated():
            step.critic = event
            step.spans.append(_span_before(wall_ns, "critic", event.seconds))
            step.size_bytes["critic state"] += event.state.size_bytes
        case ActorUpdated():
            step.actor = event
            step.spans.append(_span_before(wall_ns, "actor", event.seconds))
            step.size_bytes["weights"] += event.weights.size_bytes
            step.size_bytes["actor state"] += event.state.size_bytes
            step.size_bytes["tokens"] += _blob_bytes(event.tokens)
    if step.done_ns is None and _is_done(step):
        step.done_ns = wall_ns


def _is_done(step: StepView) -> bool:
    match step.purpose:
        case "evaluate":
            return step.sealed_ns is not None
        case "recalibrate":
            return step.critic is not None
        case _:
            return step.critic is not None and step.actor is not None


def _span_before(end_ns: int, phase: str, seconds: float) -> Span:
    return Span(phase, end_ns - round(seconds * 1e9), end_ns)


def _blob_bytes(tensor: Tensor) -> int:
    return tensor.data.size_bytes if tensor.data.inline is None else 0


# --- trials -----------------------------------------------------------------------------------------------------------


def _launch(view: RunView, step: StepView, spec: TrialSpec) -> None:
    step.trials[spec.trial] = TrialView(trial=spec.trial, task=spec.task, index=spec.index)


def _fold_trial(view: RunView, event: AnyEvent) -> None:
    if isinstance(event, TrialReplaced):
        step = view.steps.get(event.step)
        if step is not None:
            _launch(view, step, event.replacement)
        return
    name = getattr(event, "trial", None)
    step = view.steps.get(view.attribution.step_of_trial.get(name, -1)) if isinstance(name, str) else None
    if step is None or not isinstance(name, str):
        return
    trial = step.trials[name]
    seconds = step.trial_seconds
    match event:
        case SandboxReady():
            trial.phase = "working"
            seconds["wait for a sandbox"] += event.token_wait_s + event.slot_wait_s + event.image_wait_s
            seconds["create sandbox"] += event.create_s
        case TurnSampled():
            trial.turns = event.turn + 1
            trial.ids += len(event.context_ids) + len(event.sampled_ids)
            trial.sampled += len(event.sampled_ids)
            trial.entropy_sum += event.entropy_mean * len(event.sampled_ids)
            trial.entropy_tokens += len(event.sampled_ids)
            seconds["wait for the engine"] += event.queue_s
            seconds["prefill"] += event.prefill_s
            seconds["decode"] += event.decode_s
        case TurnExecuted():
            seconds["run command"] += event.seconds
            trial.timed_out_turns += event.timed_out
            trial.malformed_turns += event.malformed
        case EpisodeEnded():
            trial.end_reason = event.reason
            trial.phase = "ended"
        case SandboxSealed():
            trial.phase = "sealed"
            seconds["seal"] += event.seconds
            step.size_bytes["layers"] += 0 if event.layer.inline is not None else event.layer.size_bytes
        case Graded():
            trial.phase = "graded"
            trial.outcome, trial.passed, trial.expected, trial.reward = (
                event.outcome,
                event.passed,
                event.expected,
                event.reward,
            )
            if step.purpose == "evaluate" and event.outcome == "graded":
                trial.by_family = by_family(event.assertions)
            seconds["grade"] += event.seconds
            view.outcomes[event.outcome] += 1
            view.gradings[event.task] += 1
            view.ungraded[event.task] += event.outcome != "graded"
        case TrajectoryAssembled():
            trial.phase = "assembled"
            trial.ids, trial.sampled, trial.turns = event.ids, event.sampled, event.turns
            trial.drift_in_loss, trial.non_canonical_turns = event.drift_in_loss, event.non_canonical_turns
            trial.boundaries = Counter(b.case for b in event.boundaries)
            trial.retokenized, trial.placeholders = event.retokenized, event.placeholders
            trial.altered = event.altered
            step.size_bytes["trajectories"] += 0 if event.record.inline is not None else event.record.size_bytes
        case TrialFailed():
            if trial.phase != "failed":
                view.failures[event.cause] += 1
            trial.phase = "failed"
        case TrialCancelled():
            trial.phase = "cancelled"
        case _:
            pass
