"""What must hold between the events of any run, whatever happened in it: the meaning behind ``t1 log check``.

Guarantees: looks at events alone, in causal order; every finding names the journal, the sequence and what is wrong. That
journals and blobs are whole, and that inputs are applied once and in order, is checked by ``log.check``; that blobs are
what the events say, by ``observe.references``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from t1actors.config import ConfigError, from_toml
from t1actors.events import (
    ActorUpdated,
    AnyEvent,
    BatchSealed,
    EffectFinished,
    EffectIntended,
    Graded,
    RunFinished,
    RunStarted,
    SandboxSealed,
    StepOpened,
    TrajectoryAssembled,
    TrialFailed,
    TrialReplaced,
    TurnSampled,
    UnknownEvent,
    WeightsPublished,
    counted,
    decode,
)
from t1actors.log.merged import Entry
from t1actors.observe.view import TIMER
from t1actors.runtime.trimming import step_of
from t1actors.tito.stitch import continues
from t1actors.train.batch import batch_digest

ONCE: dict[str, tuple[str, ...]] = {
    "StepOpened": ("step",),
    "SandboxRequested": ("trial",),
    "SandboxReady": ("trial",),
    "TurnSampled": ("trial", "turn"),
    "TurnExecuted": ("trial", "turn"),
    "EpisodeEnded": ("trial",),
    "SandboxSealed": ("trial",),
    "SandboxReclaimed": ("trial",),
    "Graded": ("trial",),
    "TrajectoryAssembled": ("trial",),
    "TrialReplaced": ("failed",),
    "TrialCancelled": ("trial",),
    "BatchSealed": ("step",),
    "ValuesEstimated": ("step",),
    "CriticUpdated": ("step",),
    "ActorUpdated": ("step",),
    "RunFinished": (),
}
"""Events that state a result: once for each value of these fields, whoever died in between."""


@dataclass(frozen=True)
class Finding:
    """``error``: an invariant is broken. ``note``: worth knowing, and explained by what the run went through."""

    severity: Literal["error", "note"]
    journal: str
    sequence: int
    message: str

    @property
    def text(self) -> str:
        return f"{self.journal} {self.sequence:,}: {self.message}"


@dataclass
class _Trial:
    step: int
    index: int
    version: str
    ids: int = 0
    ends: list[int] = field(default_factory=list[int])
    """Of each turn: the ids from its chunk's first to its last sampled one."""
    sampled: int = 0
    next_turn: int = 0
    layer_digest: str | None = None
    graded: Graded | None = None
    assembled: TrajectoryAssembled | None = None
    failed: bool = False


@dataclass
class Invariants:
    """Fed with a run's entries in causal order by ``apply``; ``findings`` are what it found, ``finish`` adds what only
    the end can tell. Of a run that was trimmed: ``first_step``, of the trials before which parts are gone, and the journals
    that were ``trimmed``."""

    first_step: int = 0
    trimmed: frozenset[str] = frozenset()
    findings: list[Finding] = field(default_factory=list[Finding])
    events: int = 0
    _seen: set[tuple[object, ...]] = field(default_factory=set[tuple[object, ...]])
    _trials: dict[str, _Trial] = field(default_factory=dict[str, _Trial])
    _steps: dict[int, StepOpened] = field(default_factory=dict[int, StepOpened])
    _published: set[str] = field(default_factory=set[str])
    _current: str = ""
    """The version last published. An older one may come again: after warm-up the policy is what it was before."""
    _intended: dict[tuple[str, str], tuple[int, EffectIntended]] = field(
        default_factory=dict[tuple[str, str], tuple[int, EffectIntended]]
    )
    _train_updates: int = 0
    _finished: bool = False
    _reward_scale: float | None = None

    def apply(self, entry: Entry) -> AnyEvent | UnknownEvent | None:
        """Check one entry; the event in it, or None when it cannot be decoded."""
        self.events += 1
        try:
            event = decode(entry.raw)
        except msgspec.DecodeError as error:
            self._error(entry, f"not an event that this version can read: {error}")
            return None
        if isinstance(event, UnknownEvent):
            self._note(entry, f"an event of the unknown kind {event.kind}: written by a newer version?")
            return event
        self._once(entry, event)
        match event:
            case TurnSampled() | SandboxSealed() | Graded() | TrajectoryAssembled() | TrialFailed() | BatchSealed() if (
                step_of(event) < self.first_step
            ):
                pass
            case EffectIntended() | EffectFinished():
                self._effect(entry, event)
            case StepOpened() | TrialReplaced() | WeightsPublished() | ActorUpdated() | BatchSealed():
                self._step(entry, event)
            case RunStarted():
                self._reward_scale = _reward_scale(event)
            case RunFinished():
                self._finished = True
            case TurnSampled() | SandboxSealed() | Graded() | TrajectoryAssembled() | TrialFailed():
                self._trial(entry, event)
            case _:
                pass
        return event

    def finish(self) -> list[Finding]:
        """All findings, errors first."""
        open_now = [(j, s, i) for (j, _), (s, i) in self._intended.items() if i.effect_kind != TIMER]
        if self._finished:
            for journal, sequence, intent in open_now:
                message = f"effect {intent.key} had begun and not ended when the run finished"
                self.findings.append(Finding("note", journal, sequence, message))
        else:
            for journal in sorted({j for j, _, _ in open_now}):
                mine = [(sequence, intent) for j, sequence, intent in open_now if j == journal]
                sequence, oldest = min(mine, key=lambda held: held[0])
                message = (
                    f"{len(mine)} effects are open, the oldest {oldest.key}: going on performs them again by their keys"
                )
                self.findings.append(Finding("note", journal, sequence, message))
        return sorted(self.findings, key=lambda f: f.severity != "error")

    # --- one event ------------------------------------------------------------------------------------------------

    def _error(self, entry: Entry, message: str) -> None:
        self.findings.append(Finding("error", entry.frame.journal, entry.sequence, message))

    def _note(self, entry: Entry, message: str) -> None:
        self.findings.append(Finding("note", entry.frame.journal, entry.sequence, message))

    def _once(self, entry: Entry, event: AnyEvent) -> None:
        kind = type(event).__name__
        fields = ONCE.get(kind)
        if fields is None:
            return
        identity = (kind, *(getattr(event, name) for name in fields))
        if identity in self._seen:
            named = ", ".join(f"{name} {getattr(event, name)}" for name in fields)
            self._error(entry, f"a second {kind} for {named}: a result was recorded twice")
        self._seen.add(identity)

    def _effect(self, entry: Entry, event: EffectIntended | EffectFinished) -> None:
        where = (entry.frame.journal, event.key)
        if isinstance(event, EffectIntended):
            if where in self._intended:
                self._error(entry, f"effect {event.key} was begun again before it ended")
            self._intended[where] = (entry.sequence, event)
        elif self._intended.pop(where, None) is None and entry.frame.journal not in self.trimmed:
            self._error(entry, f"effect {event.key} ended without having been begun, or twice")

    def _step(
        self, entry: Entry, event: StepOpened | TrialReplaced | WeightsPublished | ActorUpdated | BatchSealed
    ) -> None:
        match event:
            case StepOpened():
                if event.step != len(self._steps):
                    self._error(entry, f"step {event.step} opened where step {len(self._steps)} was to come")
                self._steps[event.step] = event
                if event.version not in self._published:
                    self._error(entry, f"step {event.step} uses version {event.version[:12]}, which was not published")
                for spec in event.trials:
                    self._trials[spec.trial] = _Trial(event.step, spec.index, event.version)
            case TrialReplaced():
                step = self._steps.get(event.step)
                version = step.version if step is not None else ""
                self._trials[event.replacement.trial] = _Trial(event.step, event.replacement.index, version)
            case WeightsPublished():
                if event.version == self._current:
                    self._error(entry, f"a second WeightsPublished for version {event.version[:12]}, which was current")
                self._current = event.version
                self._published.add(event.version)
            case ActorUpdated():
                self._staleness(entry, event)
            case BatchSealed():
                self._batch(entry, event)

    def _staleness(self, entry: Entry, event: ActorUpdated) -> None:
        step = self._steps.get(event.step)
        if step is None or step.purpose != "train":
            return
        expected = min(1, self._train_updates)
        self._train_updates += 1
        if event.staleness != expected:
            self._error(entry, f"step {event.step}: staleness {event.staleness}, must be {expected}")
        if event.behaviour_version != step.version:
            message = (
                f"step {event.step}: trained against {event.behaviour_version[:12]}, sampled by {step.version[:12]}"
            )
            self._error(entry, message)

    def _batch(self, entry: Entry, event: BatchSealed) -> None:
        name = f"batch of step {event.step}"
        step = self._steps.get(event.step)
        if step is not None and len(event.items) > step.batch_size:
            self._error(entry, f"{name}: {len(event.items)} trials, {step.batch_size} were wanted")
        indices = [item.index for item in event.items]
        if indices != sorted(set(indices)):
            self._error(entry, f"{name}: trials are not in index order, or one is in it twice: {indices}")
        for item in event.items:
            trial = self._trials.get(item.trial)
            if trial is None or trial.assembled is None or trial.graded is None:
                self._error(entry, f"{name}: trial {item.trial} was not graded and assembled before")
            elif item.reward != trial.graded.reward:
                self._error(entry, f"{name}: trial {item.trial} has reward {item.reward}, graded {trial.graded.reward}")
            elif (event.step, item.index) != (trial.step, trial.index):
                self._error(entry, f"{name}: trial {item.trial} is number {trial.index} of step {trial.step}")
            elif item.trajectory_digest != trial.assembled.record.digest:
                self._error(entry, f"{name}: trial {item.trial} names another trajectory than was assembled")
        if batch_digest((item.trajectory_digest, item.reward) for item in event.items) != event.digest:
            self._error(entry, f"{name}: its digest is not that of its trajectories and rewards")

    def _trial(
        self, entry: Entry, event: TurnSampled | SandboxSealed | Graded | TrajectoryAssembled | TrialFailed
    ) -> None:
        trial = self._trials.get(event.trial)
        if trial is None:
            self._error(entry, f"{type(event).__name__} of trial {event.trial}, which no step launched")
            return
        match event:
            case TurnSampled():
                self._turn(entry, trial, event)
            case SandboxSealed():
                trial.layer_digest = event.layer.digest
            case TrialFailed():
                trial.failed = True
            case Graded():
                self._graded(entry, trial, event)
            case TrajectoryAssembled():
                self._assembled(entry, trial, event)

    def _turn(self, entry: Entry, trial: _Trial, event: TurnSampled) -> None:
        name = f"trial {event.trial}, turn {event.turn}"
        if event.turn != trial.next_turn:
            self._error(entry, f"{name}: turn {trial.next_turn} was to come")
        trial.next_turn = event.turn + 1
        parent, added = continues(event), len(event.context_ids) + len(event.sampled_ids)
        if parent is not None and not 0 <= parent < len(trial.ends):
            self._error(entry, f"{name}: goes on from turn {parent}, which was not sampled before it")
            parent = None
        before = 0 if parent is None else trial.ends[parent]
        trial.ends.append(before + added)
        trial.ids += added
        trial.sampled += len(event.sampled_ids)
        rows = max(before - 1, 0) + (event.routing.shape[0] if event.routing.shape else 0)
        if rows != before + added - 1:
            self._error(entry, f"{name}: {rows} routing rows for {before + added} ids; must be ids - 1")
        if len(event.logprobs) != len(event.sampled_ids):
            self._error(entry, f"{name}: {len(event.logprobs)} log-probs for {len(event.sampled_ids)} sampled ids")
        covered = 0
        for span in event.versions:
            if span.start != covered or span.end <= span.start:
                self._error(entry, f"{name}: version spans do not cover its sampled ids in order")
            if span.version != trial.version:
                self._error(
                    entry, f"{name}: sampled by {span.version[:12]}, step {trial.step} has {trial.version[:12]}"
                )
            covered = span.end
        if covered != len(event.sampled_ids):
            self._error(
                entry, f"{name}: the versions of {covered} of {len(event.sampled_ids)} sampled ids are recorded"
            )

    def _graded(self, entry: Entry, trial: _Trial, event: Graded) -> None:
        trial.graded = event
        if trial.layer_digest is None:
            self._error(entry, f"trial {event.trial} was graded before its sandbox was sealed")
        elif trial.layer_digest != event.layer_digest:
            self._error(entry, f"trial {event.trial}: graded another layer than was sealed")
        if (event.reward is None) != (event.outcome != "graded"):
            self._error(entry, f"trial {event.trial}: outcome {event.outcome} with reward {event.reward}")
        passed, expected = counted(event.assertions)
        if event.outcome == "graded" and (event.passed, event.expected) != (passed, expected):
            message = (
                f"{event.passed} of {event.expected} passed where {passed} of {expected} follow from its assertions"
            )
            self._error(entry, f"trial {event.trial}: {message}")
        if event.outcome == "graded" and event.assertions and self._reward_scale is not None:
            self._paid(entry, event, event.passed / self._reward_scale)

    def _paid(self, entry: Entry, event: Graded, due: float) -> None:
        if event.reward != due:
            message = f"reward {event.reward} for {event.passed} passed at verify.reward_scale {self._reward_scale:g}"
            self._error(entry, f"trial {event.trial}: {message}")

    def _assembled(self, entry: Entry, trial: _Trial, event: TrajectoryAssembled) -> None:
        trial.assembled = event
        if event.drift_in_loss:
            self._error(entry, f"trial {event.trial}: {event.drift_in_loss} tokens drifted inside the loss region")
        # What several chunks begin with in common counts in each.
        fits = event.ids == trial.ids if event.chunks == 1 else event.ids >= trial.ids
        if event.sampled != trial.sampled or not fits:
            message = f"{event.ids} ids, {event.sampled} sampled; its turns have {trial.ids} and {trial.sampled}"
            self._error(entry, f"trial {event.trial}: {message}")


def _reward_scale(started: RunStarted) -> float | None:
    """None when this version cannot read the configuration."""
    try:
        return from_toml(started.config_toml, origin="RunStarted").verify.reward_scale
    except ConfigError:
        return None


def check_events(entries: Iterable[Entry]) -> list[Finding]:
    """The findings over a whole run."""
    invariants = Invariants()
    for entry in entries:
        invariants.apply(entry)
    return invariants.finish()
