"""Assembler: stitches graded trials into trajectories and seals each step's batch.

Guarantees:
- A batch holds the first B *graded* trials of its step, ordered by trial index; which they are is an event.
- An ungraded trial (infrastructure, verifier fault) is never a reward: while fewer than B can finish it is replaced by a new
  trial of the same task, at most ``REPLACEMENTS_PER_TRIAL`` times the launch in all; then BatchShort says what is missing.
  One of a task in quarantine is replaced by one of another task, where the step has no fixed ones; that it was not begun
  costs the step no replacement.
  An interruption of the run ends its sandboxes and is nobody's fault: after it the step may replace as many again.
- The rest is cancelled when the batch is sealed; what was lost is reported by family and by length.
- Late events of trials that are no longer in play are ignored.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from t1actors.actors.quarantine import QUARANTINED
from t1actors.actors.schedule import Schedule
from t1actors.actors.trials import step_of_trial, trial_id, trial_seed
from t1actors.events import (
    AnyEvent,
    BatchItem,
    BatchSealed,
    BatchShort,
    EffectFinished,
    EpisodeEnded,
    Graded,
    LossByGroup,
    Purpose,
    ReplicaReclaimed,
    RunStarted,
    StepOpened,
    TaskQuarantined,
    TrajectoryAssembled,
    TrialCancelled,
    TrialFailed,
    TrialReplaced,
    TrialSpec,
    TurnSampled,
    UnknownEvent,
)
from t1actors.models.folder import model_folder
from t1actors.runtime.actor import NOTHING, ActorContext, Decision, Effect, Performing
from t1actors.tasks.generate import make_named_task, parse_name
from t1actors.tasks.pools import turn_limit
from t1actors.tito.record import Geometry
from t1actors.tito.stitch import stitch
from t1actors.tito.stored import store
from t1actors.train.batch import batch_digest

REPLACEMENTS_PER_TRIAL = 1.0


class Assemble(Effect, frozen=True, kw_only=True):
    """Stitch the graded trial ``trial``."""

    trial: str


@dataclass
class TrialProgress:
    """A trial in play: what it sampled, how it ended, how it was graded."""

    spec: TrialSpec
    step: int
    turns: list[TurnSampled] = field(default_factory=list[TurnSampled])
    ended: EpisodeEnded | None = None
    graded: Graded | None = None


@dataclass
class StepProgress:
    """A step whose batch is not sealed yet."""

    step: int
    purpose: Purpose
    batch_size: int
    temperature: float
    launched: int
    replaceable: int
    """How many failed trials may still be replaced."""
    next_index: int
    specs: dict[str, TrialSpec]
    in_play: set[str]
    assembled: dict[str, BatchItem] = field(default_factory=dict[str, BatchItem])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """Trial -> cause."""
    replaced: set[str] = field(default_factory=set[str])

    def replace_anew(self) -> None:
        """As many failed trials may be replaced as were launched."""
        self.replaceable = math.ceil(REPLACEMENTS_PER_TRIAL * self.launched)

    @property
    def missing(self) -> int:
        return self.batch_size - len(self.assembled) - len(self.in_play)


@dataclass
class AssemblerState:
    """Trials in play, and steps whose batch is not sealed."""

    trials: dict[str, TrialProgress] = field(default_factory=dict[str, TrialProgress])
    steps: dict[int, StepProgress] = field(default_factory=dict[int, StepProgress])
    reclaimed: set[str] = field(default_factory=set[str])
    """Replicas that sample nothing in this session any more."""
    quarantined: set[str] = field(default_factory=set[str])
    """Tasks for which no sandbox can be made."""


class Assembler:
    """See the module."""

    reads = frozenset({"publisher", "pool", "sampler", "verifier"})
    effect_type = Assemble

    def __init__(self, context: ActorContext) -> None:
        self._config = context.config
        self._blobs = context.blobs
        folder = model_folder(context.config.model.policy)
        self._schedule = Schedule(context.config, context.run_dir)
        self._geometry = Geometry.of_model_config((folder / "config.json").read_bytes())
        self._state = AssemblerState()

    def initial(self) -> AssemblerState:
        return self._state

    def fold(self, state: AssemblerState, event: AnyEvent | UnknownEvent) -> AssemblerState:
        match event:
            case RunStarted():
                state.reclaimed.clear()
                for step in state.steps.values():
                    step.replace_anew()
            case ReplicaReclaimed():
                state.reclaimed.add(event.replica)
            case TaskQuarantined():
                state.quarantined.add(event.task)
            case StepOpened():
                specs = {spec.trial: spec for spec in event.trials}
                step = state.steps[event.step] = StepProgress(
                    step=event.step,
                    purpose=event.purpose,
                    batch_size=event.batch_size,
                    temperature=event.temperature,
                    launched=len(specs),
                    replaceable=0,
                    next_index=len(specs),
                    specs=specs,
                    in_play=set(specs),
                )
                step.replace_anew()
                state.trials.update((name, TrialProgress(spec, event.step)) for name, spec in specs.items())
            case TurnSampled() if event.trial in state.trials:
                state.trials[event.trial].turns.append(event)
            case EpisodeEnded() if event.trial in state.trials:
                state.trials[event.trial].ended = event
            case Graded() if event.trial in state.trials:
                if event.outcome == "graded":
                    state.trials[event.trial].graded = event
                else:
                    self._fail(state, event.trial, event.outcome)
            case TrialFailed() if event.trial in state.trials:
                self._fail(state, event.trial, event.cause)
            case TrialReplaced():
                step = state.steps[event.step]
                spec = event.replacement
                step.specs[spec.trial] = spec
                step.next_index = spec.index + 1
                step.replaceable -= 1
                step.replaced.add(event.failed)
                step.in_play.add(spec.trial)
                state.trials[spec.trial] = TrialProgress(spec, event.step)
            case TrajectoryAssembled() if event.trial in state.trials:
                progress = state.trials.pop(event.trial)
                step = state.steps[progress.step]
                step.in_play.discard(event.trial)
                step.assembled[event.trial] = BatchItem(
                    trial=event.trial, index=event.index, trajectory_digest=event.record.digest, reward=event.reward
                )
            case TrialCancelled():
                state.trials.pop(event.trial, None)
            case BatchSealed():
                state.steps.pop(event.step, None)
            case _:
                pass
        return state

    def decide(self, state: AssemblerState, event: AnyEvent | UnknownEvent) -> Decision:
        match event:
            case RunStarted():
                return Decision(events=[e for step in state.steps.values() for e in self._replacements(state, step)])
            case Graded() if event.outcome == "graded" and event.trial in state.trials:
                return Decision(effects=[Assemble(key=f"{event.trial}/assemble", trial=event.trial)])
            case Graded() | TrialFailed():
                return self._replace_or_shorten(state, event.trial)
            case EffectFinished():
                step = step_of_trial(event.key.partition("/")[0])
                return self._seal(state, step)
            case _:
                return NOTHING

    async def perform(self, effect: Effect, performing: Performing) -> Sequence[AnyEvent]:
        assert isinstance(effect, Assemble)
        progress = self._state.trials.get(effect.trial)
        if progress is None:  # cancelled between the intent and now
            return []
        graded, ended, spec = progress.graded, progress.ended, progress.spec
        assert graded is not None
        assert graded.reward is not None
        assert ended is not None
        stitched = stitch(
            progress.turns,
            index=spec.index,
            task=spec.task,
            geometry=self._geometry,
            blobs=self._blobs,
            rule=self._config.tito.stitch,
        )
        stored = store(stitched.record, self._blobs)
        return [
            TrajectoryAssembled(
                trial=spec.trial,
                step=progress.step,
                index=spec.index,
                task=spec.task,
                record=stored.record,
                reward=graded.reward,
                ids=stitched.ids,
                sampled=stitched.sampled,
                turns=len(progress.turns),
                chunks=len(stitched.record.chunks),
                boundaries=stitched.boundaries,
                drift_in_loss=stitched.drift_in_loss,
                non_canonical_turns=stitched.non_canonical_turns,
                end_reason=ended.reason,
                pages=stored.pages,
                retokenized=stitched.retokenized,
                placeholders=stitched.placeholders,
                altered=stitched.altered,
            )
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    # --- decisions ------------------------------------------------------------------------------------------------------

    def _fail(self, state: AssemblerState, trial: str, cause: str) -> None:
        progress = state.trials.pop(trial)
        step = state.steps[progress.step]
        step.in_play.discard(trial)
        step.failed[trial] = cause
        step.replaceable += cause == QUARANTINED

    def _replace_or_shorten(self, state: AssemblerState, trial: str) -> Decision:
        step = state.steps.get(step_of_trial(trial))
        if step is None or trial not in step.failed or trial in step.replaced:
            return NOTHING
        if step.missing <= 0:
            return NOTHING
        task = self._task_instead(state, step, trial, step.next_index)
        if step.replaceable > 0 and task is not None:
            return Decision(events=[self._replacement(state, step, trial, step.next_index, task)])
        if step.in_play:
            return NOTHING
        return self._seal(state, step.step)

    def _replacements(self, state: AssemblerState, step: StepProgress) -> list[TrialReplaced]:
        """For what is missing, as far as there are failed trials that nothing has replaced."""
        replacements: list[TrialReplaced] = []
        room = max(0, min(step.missing, step.replaceable))
        for trial in step.failed:
            index = step.next_index + len(replacements)
            task = self._task_instead(state, step, trial, index)
            if trial not in step.replaced and task is not None and len(replacements) < room:
                replacements.append(self._replacement(state, step, trial, index, task))
        return replacements

    def _task_instead(self, state: AssemblerState, step: StepProgress, trial: str, index: int) -> str | None:
        """Of which task a trial is to replace ``trial``: the same, as long as there can be one of it."""
        task = step.specs[trial].task
        return task if task not in state.quarantined else self._schedule.substitute(step.step, index, state.quarantined)

    def _replacement(
        self, state: AssemblerState, step: StepProgress, trial: str, index: int, task: str
    ) -> TrialReplaced:
        name = trial_id(step.step, index)
        same = step.specs[trial].task == task
        limit = step.specs[trial].turn_limit if same else turn_limit(task, self._config.rollout)
        return TrialReplaced(
            step=step.step,
            temperature=step.temperature,
            failed=trial,
            cause=step.failed[trial],
            reclaimed=tuple(sorted(state.reclaimed)),
            replacement=TrialSpec(
                trial=name, index=index, task=task, seed=trial_seed(self._config.run.seed, name), turn_limit=limit
            ),
        )

    def _seal(self, state: AssemblerState, number: int) -> Decision:
        """The batch, once B trials are in it, or once no more can come."""
        step = state.steps.get(number)
        if step is None:
            return NOTHING
        short = len(step.assembled) < step.batch_size
        if short and step.in_play:
            return NOTHING
        events: list[AnyEvent] = []
        if short:
            causes = dict(sorted(Counter(step.failed.values()).items()))
            events.append(BatchShort(step=number, wanted=step.batch_size, possible=len(step.assembled), causes=causes))
        items = tuple(sorted(step.assembled.values(), key=lambda item: item.index))
        cancelled = sorted(step.in_play, key=lambda trial: step.specs[trial].index)
        events.append(
            BatchSealed(
                step=number,
                purpose=step.purpose,
                items=items,
                digest=batch_digest((item.trajectory_digest, item.reward) for item in items),
                launched=step.launched,
                failed=len(step.failed),
                cancelled=len(cancelled),
                lost_by_family=_lost(step, _families),
                lost_by_length=_lost(step, lambda spec: (f"turn limit {spec.turn_limit}",)),
            )
        )
        events += [TrialCancelled(trial=trial, step=number, cause="batch complete") for trial in cancelled]
        return Decision(events=events, cancels=[f"{trial}/assemble" for trial in cancelled])


def _families(spec: TrialSpec) -> Sequence[str]:
    """A built-in task's families; tasks from a directory have none to tell."""
    return make_named_task(spec.task).families if parse_name(spec.task) is not None else ("other",)


def _lost(step: StepProgress, groups: Callable[[TrialSpec], Sequence[str]]) -> tuple[LossByGroup, ...]:
    launched: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for trial, spec in step.specs.items():
        for group in groups(spec):
            launched[group] += 1
            lost[group] += trial not in step.assembled
    return tuple(LossByGroup(group=group, launched=launched[group], lost=lost[group]) for group in sorted(launched))
