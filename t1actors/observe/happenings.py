"""What is worth a line while a run goes on: pure functions from a frame, already folded, to happenings, and from a view
and a time to how it stands.

The JSON display prints every happening's fields (their names are documented in ``docs/reports.md`` and stay); the plain
display prints the text of those that are not ``detail``: a line a step, and what went wrong.
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
    DiskFreed,
    DiskLow,
    JournalCut,
    LogTrimmed,
    ObservationDiverged,
    ReplicaReclaimed,
    RunFailed,
    RunFinished,
    RunPaused,
    RunStarted,
    RunStopped,
    SandboxesReaped,
    SandboxRestored,
    SandboxRetried,
    StepOpened,
    StopRequested,
    TaskQuarantined,
    TrialFailed,
    TrialReplaced,
    UnknownEvent,
    WeightsPublished,
)
from t1actors.observe.crew import work
from t1actors.observe.progress import Silence, sampled_step, step_name, step_seconds, time_left, trials_graded
from t1actors.observe.quantities import duration, duration_range, figure, percent, seconds, size
from t1actors.observe.stop import phase_words, stop_words
from t1actors.observe.view import RunView, StepView

Field = str | int | float | None


@dataclass(frozen=True)
class Happening:
    """``kind`` and ``fields`` for programs, ``text`` for people; ``detail``: for programs only."""

    kind: str
    text: str
    fields: dict[str, Field] = field(default_factory=dict[str, Field])
    detail: bool = False


def happenings(view: RunView, events: Sequence[AnyEvent | UnknownEvent]) -> list[Happening]:
    """What ``events`` (one frame's, folded into ``view``) have to say, in order."""
    return [happening for event in events for happening in _happenings(view, event)]


def standing(view: RunView) -> Happening:
    """How far the run is, between two lines that say that something happened."""
    step = sampled_step(view)
    if step is None:
        actors = [a for a in view.actors.values() if a.starts]
        ready = sum(a.phase == "ready" for a in actors)
        text = f"no step yet, {ready} of {len(actors)} actors ready"
        return Happening("progress", text, {"ready": ready, "actors": len(actors)})
    graded, wanted = trials_graded(step)
    phases = [t.phase for t in step.trials.values()]
    counts = {name: phases.count(name) for name in ("working", "waiting", "failed")}
    said = [f"{count} {name}" for name, count in counts.items() if count]
    if step.sealed_ns is not None and step.done_ns is None:
        said = ["training"]
    text = f"{step_name(step)}: {graded}/{wanted} trials graded" + "".join(f", {words}" for words in said)
    fields: dict[str, Field] = {"step": step.step, "purpose": step.purpose, "graded": graded, "wanted": wanted}
    return Happening("progress", text, fields | counts)


def silent(quiet: Silence) -> Happening:
    """That nothing happens, what is waited for, and the deadline that ends it."""
    text = f"no event for {seconds(quiet.seconds)}"
    waiting = quiet.waiting_for
    if waiting is not None and waiting.deadline_s is not None:
        text += f", deadline {seconds(waiting.deadline_s)} ({work(waiting)})"
    elif waiting is not None:
        text += f" ({work(waiting)}, no deadline)"
    elif quiet.missing:
        text += f" (waiting for {', '.join(quiet.missing)} to start)"
    fields: dict[str, Field] = {
        "seconds": quiet.seconds,
        "actor": waiting.actor if waiting is not None else "",
        "waiting_for": waiting.key if waiting is not None else "",
        "deadline_s": waiting.deadline_s if waiting is not None else None,
        "left_s": quiet.left_s,
    }
    return Happening("silence", text, fields)


def _happenings(view: RunView, event: AnyEvent | UnknownEvent) -> list[Happening]:
    match event:
        case RunStarted() | RunFinished() | RunFailed() | RunStopped():
            return [_of_run(event)]
        case StopRequested():
            return [Happening("stop_requested", stop_words(view), {"by": event.by, "phase": phase_words(view)})]
        case RunPaused():
            return [Happening("run_paused", f"paused before step {event.step}", {"step": event.step})]
        case ActorStarted() | ActorReady() | ActorStopped():
            return _of_actor(view, event)
        case ReplicaReclaimed():
            text = f"{event.replica} was given up, the others go on without it until the run is started again: {event.reason}"
            return [Happening("replica_reclaimed", text, {"replica": event.replica, "reason": event.reason})]
        case DiskLow():
            text = (
                f"only {size(event.free_bytes)} of disk are free: no step opens until there is more (run.low_disk_mb); "
                "`t1 log trim` makes room in runs at rest, run.keep_steps in a new one"
            )
            return [Happening("disk_low", text, {"free_bytes": event.free_bytes})]
        case DiskFreed():
            text = f"{size(event.free_bytes)} of disk are free again: the run goes on"
            return [Happening("disk_freed", text, {"free_bytes": event.free_bytes})]
        case JournalCut():
            text = (
                f"journal {event.journal} was cut before event {event.from_sequence:,}, {event.reason}; the rest, "
                f"{size(event.size_bytes)}, is in {event.path}"
            )
            fields = {"journal": event.journal, "from_sequence": event.from_sequence, "path": event.path}
            return [Happening("journal_cut", text, fields)]
        case LogTrimmed():
            freed = event.segment_bytes + event.blob_bytes
            text = f"trimmed: {size(freed)} deleted, steps from {event.first_step} on replay"
            given_up = ", ".join(event.given_up)
            if given_up:
                text += (
                    f"; more stays for {given_up}, given up until the run is stopped and resumed (`t1 run --resume`)"
                )
            if event.trouble:
                text = f"not trimmed, to be tried again: {event.trouble}"
            fields = {"first_step": event.first_step, "freed_bytes": freed, "trouble": event.trouble}
            fields["given_up"] = given_up
            return [Happening("log_trimmed", text, fields)]
        case StepOpened() | BatchSealed() | BatchShort() | CriticUpdated() | ActorUpdated():
            return _of_step(view, event)
        case WeightsPublished():
            text = f"version {event.version_index} published: {size(event.size_bytes)} in {duration(event.seconds)}"
            fields: dict[str, Field] = {"version": event.version, "version_index": event.version_index}
            return [Happening("weights_published", text, fields, detail=True)]
        case TrialFailed():
            detail = f" ({event.detail})" if event.detail else ""
            text = f"trial {event.trial} failed, not counted: {event.cause}{detail}"
            fields = {"trial": event.trial, "cause": event.cause, "detail": event.detail}
            return [Happening("trial_failed", text, fields)]
        case SandboxRetried() | TaskQuarantined() | SandboxesReaped():
            return [_of_pool(event)]
        case SandboxRestored():
            text = f"sandbox of trial {event.trial} was lost and made again: {event.turns} commands were run again"
            fields = {"trial": event.trial, "turns": event.turns, "seconds": event.seconds}
            return [Happening("sandbox_restored", text, fields, detail=True)]
        case ObservationDiverged():
            text = f"trial {event.trial}: turn {event.turn}, run again in a new sandbox, shows something else"
            fields = {"trial": event.trial, "turn": event.turn}
            return [Happening("observation_diverged", text, fields)]
        case TrialReplaced():
            new = event.replacement.trial
            text = f"trial {event.failed} is replaced by {new} ({event.cause})"
            fields = {"trial": event.failed, "replacement": new, "cause": event.cause}
            return [Happening("trial_replaced", text, fields, detail=True)]
        case _:
            return []


def _of_pool(event: SandboxRetried | TaskQuarantined | SandboxesReaped) -> Happening:
    fields: dict[str, Field]
    match event:
        case SandboxRetried():
            what = "grading" if event.grading else "trial"
            text = f"sandbox of {what} {event.trial} is tried again after {duration(event.pause_s)}: {event.cause}"
            fields = {"trial": event.trial, "attempt": event.attempt, "cause": event.cause, "detail": event.detail}
            return Happening("sandbox_retried", text, fields, detail=True)
        case TaskQuarantined():
            text = (
                f"task {event.task} is drawn no more, no sandbox could be made in {event.tries} trials: {event.detail}"
            )
            fields = {"task": event.task, "tries": event.tries, "cause": event.cause, "detail": event.detail}
            return Happening("task_quarantined", text, fields)
        case SandboxesReaped():
            kinds = ", ".join(f"{count} x {kind}" for kind, count in event.found.items())
            left = f"; not removed: {'; '.join(event.trouble)}" if event.trouble else ""
            text = f"sandboxes that nobody owned any more were removed: {kinds}{left}"
            fields = {"found": sum(event.found.values()), "trouble": "; ".join(event.trouble)}
            return Happening("sandboxes_reaped", text, fields, detail=not event.trouble)


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


def _of_actor(view: RunView, event: ActorStarted | ActorReady | ActorStopped) -> list[Happening]:
    actor = view.actors[event.actor]
    fields: dict[str, Field]
    match event:
        case ActorStarted():
            if actor.restarts == 0:
                return []
            text = f"{event.actor} started again (restart {actor.restarts}, process {event.pid})"
            return [Happening("actor_restarted", text, {"actor": event.actor, "restarts": actor.restarts})]
        case ActorReady():
            memory = f", {size(event.rss_bytes)} of memory" if event.rss_bytes else ""
            text = f"{event.actor} ready after {duration(event.seconds)}{memory}"
            fields = {"actor": event.actor, "seconds": event.seconds, "rss_bytes": event.rss_bytes}
            return [Happening("actor_ready", text, fields, detail=not actor.restarts)]
        case ActorStopped():
            well = event.exit_code == 0
            text = f"{event.actor} stopped" + ("" if well else f": {event.reason}")
            fields = {"actor": event.actor, "exit_code": event.exit_code, "reason": event.reason}
            return [Happening("actor_stopped", text, fields, detail=well)]


def _actors_ready(view: RunView) -> Happening:
    """Said once a session, with the first step that opens: only then is it known that no more actors are to come."""
    actors = [a for a in view.actors.values() if a.starts]
    ready = [a for a in actors if a.phase == "ready"]
    slowest_s = max((a.start_s for a in ready), default=0.0)
    memory_bytes = sum(a.rss_bytes for a in ready)
    count = f"{len(ready)}" if len(ready) == len(actors) else f"{len(ready)} of {len(actors)}"
    text = f"{count} actors ready after {duration(slowest_s)}"
    text += f", {size(memory_bytes)} of memory" if memory_bytes else ""
    fields: dict[str, Field] = {"actors": len(ready), "seconds": slowest_s, "rss_bytes": memory_bytes}
    return Happening("actors_ready", text, fields)


def _of_step(
    view: RunView, event: StepOpened | BatchSealed | BatchShort | CriticUpdated | ActorUpdated
) -> list[Happening]:
    step = view.steps.get(event.step)
    if step is None:
        return []
    found = _part_of_step(step, event)
    if isinstance(event, StepOpened):
        since_ns = view.pauses[-1].end_ns if view.pauses else 0
        first = all(s is step or s.opened_ns < since_ns for s in view.steps.values())
        if first and any(actor.phase == "ready" for actor in view.actors.values()):
            found.insert(0, _actors_ready(view))
    ends = isinstance(event, CriticUpdated | ActorUpdated) or (
        isinstance(event, BatchSealed) and step.purpose == "evaluate"
    )
    # The view stands just behind this event: if the step is done, this event ended it.
    return [*found, _step_done(view, step)] if ends and step.done_ns is not None else found


def _part_of_step(
    step: StepView, event: StepOpened | BatchSealed | BatchShort | CriticUpdated | ActorUpdated
) -> list[Happening]:
    name = f"step {event.step}"
    fields: dict[str, Field]
    match event:
        case StepOpened():
            how = "greedy" if event.temperature == 0 else f"temperature {event.temperature:g}"
            text = f"{name} opened: {event.purpose}, {len(event.trials)} trials, version {event.version_index}, {how}"
            fields = {"step": event.step, "purpose": event.purpose, "trials": len(event.trials)}
            fields |= {"version_index": event.version_index, "temperature": event.temperature}
            return [Happening("step_opened", text, fields, detail=True)]
        case BatchSealed():
            text = f"{name} batch: {len(event.items)} of {event.launched} trials, reward {figure(step.reward_mean)}"
            fields = {"step": event.step, "purpose": event.purpose, "trials": len(event.items), "failed": event.failed}
            fields |= {"cancelled": event.cancelled, "reward": step.reward_mean, "fraction": step.fraction_mean}
            return [Happening("batch_sealed", text, fields, detail=True)]
        case BatchShort():
            causes = ", ".join(f"{n} x {cause}" for cause, n in sorted(event.causes.items()))
            text = f"{name} can have only {event.possible} of {event.wanted} trials: {causes}"
            fields = {"step": event.step, "possible": event.possible, "wanted": event.wanted}
            return [Happening("batch_short", text, fields)]
        case CriticUpdated():
            text = f"{name} critic: explained variance {figure(event.explained_variance)}, {duration(event.seconds)}"
            fields = {"step": event.step, "explained_variance": event.explained_variance, "loss": event.loss}
            return [Happening("critic_updated", text, fields, detail=True)]
        case ActorUpdated():
            text = f"{name} actor: engine gap {figure(event.engine_gap_mean)}, {duration(event.seconds)}"
            fields = {"step": event.step, "engine_gap_mean": event.engine_gap_mean, "staleness": event.staleness}
            fields |= {"engine_gap_max": event.engine_gap_max, "clip_share": event.clip_share, "kl": event.kl}
            return [Happening("actor_updated", text, fields, detail=True)]


def _step_done(view: RunView, step: StepView) -> Happening:
    done, planned = sum(s.done_ns is not None for s in view.steps.values()), view.planned_steps
    took_s = step_seconds(view)[step.step]
    cancelled = sum(t.phase == "cancelled" for t in step.trials.values())
    left = time_left(view)
    said = [f"reward {figure(step.reward_mean)}", f"passed {percent(step.fraction_mean)}", f"{len(step.kept)} trials"]
    said += [f"{step.failed} failed"] if step.failed else []
    said += [f"{cancelled} cancelled"] if cancelled else []
    fields: dict[str, Field] = {"step": step.step, "purpose": step.purpose, "done": done, "planned": planned}
    fields |= {"reward": step.reward_mean, "fraction": step.fraction_mean, "trials": len(step.kept)}
    fields |= {"failed": step.failed, "cancelled": cancelled, "turns": step.turns_mean}
    variance = step.values.explained_variance if step.values is not None else None
    if variance is not None:
        said.append(f"EV {variance:.2f}")
    fields["explained_variance"] = variance
    if (update := step.actor) is not None:
        said += [f"gap {figure(update.engine_gap_mean)}", f"clip {percent(update.clip_share)}"]
        said += [f"KL {figure(update.kl)}", f"stale {update.staleness}"]
    fields |= {
        "engine_gap_mean": update.engine_gap_mean if update is not None else None,
        "clip_share": update.clip_share if update is not None else None,
        "kl": update.kl if update is not None else None,
        "staleness": update.staleness if update is not None else None,
        "seconds": took_s,
        "left_low_s": left.low_s if left is not None else None,
        "left_high_s": left.high_s if left is not None else None,
    }
    of = f"/{planned}" if planned is not None else ""
    text = f"{step_name(step)} ({done}{of} done): {', '.join(said)}, {duration(took_s)}"
    text += f"; {duration_range(left.low_s, left.high_s)} left" if left is not None else ""
    return Happening("step_done", text, fields)
