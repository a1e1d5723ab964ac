"""What is known of a run: plain values that ``observe.fold`` fills from the log and that displays and reports read.

Guarantees: everything here comes from events and the commit heads around them; ``RunView.as_of`` says up to which
sequence of each journal, ``RunView.complete`` whether the run has ended. Nothing here reads a clock: what depends on
"now" takes it as an argument.

Two kinds of seconds: ``StepView.spans`` are wall-clock intervals of the step's phases, which overlap between steps;
``StepView.trial_seconds`` are sums over trials that ran at the same time.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from t1actors.actors.schedule import purposes
from t1actors.config import Config
from t1actors.events import ActorUpdated, CriticUpdated, LossByGroup, Purpose, ValuesEstimated
from t1actors.observe.attribution import Attribution
from t1actors.observe.sandboxes import SandboxesView

TrialPhase = Literal["waiting", "working", "ended", "sealed", "graded", "assembled", "failed", "cancelled"]
OVER: frozenset[TrialPhase] = frozenset({"graded", "assembled", "failed", "cancelled"})
TIMER = "Wait"
"""Effect kind of the runtime's timers: nobody works on one, so it is no sign of what an actor does."""


@dataclass
class TrialView:
    """One attempt at a task. ``fraction`` is P / n, ``reward`` P / S; both None until it is graded."""

    trial: str
    task: str
    index: int
    phase: TrialPhase = "waiting"
    turns: int = 0
    ids: int = 0
    sampled: int = 0
    entropy_sum: float = 0.0
    entropy_tokens: int = 0
    """Over so many sampled tokens: of a trimmed run not all turns are there."""
    reward: float | None = None
    passed: int = 0
    expected: int = 0
    outcome: str = ""
    end_reason: str = ""
    drift_in_loss: int = 0
    non_canonical_turns: int = 0
    retokenized: int = 0
    placeholders: int = 0
    altered: int = 0
    timed_out_turns: int = 0
    malformed_turns: int = 0
    boundaries: Counter[str] = field(default_factory=Counter[str])
    by_family: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Of evaluations: task family to (assertions passed, expected)."""

    @property
    def fraction(self) -> float | None:
        return self.passed / self.expected if self.outcome == "graded" and self.expected else None


@dataclass(frozen=True)
class Span:
    """A phase of a step on the wall clock."""

    phase: str
    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True)
class Pause:
    """The run stood still from its last event before a resume to the resume."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass
class StepView:
    """A step from its opening on. ``kept`` are the trials of its sealed batch, in index order; figures are over
    them."""

    step: int
    purpose: Purpose
    version: str
    version_index: int
    batch_size: int
    temperature: float
    opened_ns: int
    opened_at: dict[str, int] = field(default_factory=dict[str, int])
    """``RunView.as_of`` when it was opened: everything about it comes later."""
    trials: dict[str, TrialView] = field(default_factory=dict[str, TrialView])
    kept: tuple[TrialView, ...] = ()
    sealed_ns: int | None = None
    done_ns: int | None = None
    short_of: int = 0
    lost_by_family: tuple[LossByGroup, ...] = ()
    lost_by_length: tuple[LossByGroup, ...] = ()
    values: ValuesEstimated | None = None
    critic: CriticUpdated | None = None
    actor: ActorUpdated | None = None
    spans: list[Span] = field(default_factory=list[Span])
    trial_seconds: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    size_bytes: Counter[str] = field(default_factory=Counter[str])
    """Bytes that this step wrote, by what they are; "events" are the events themselves, the others blobs."""

    @property
    def reward_mean(self) -> float | None:
        return _mean(t.reward for t in self.kept)

    @property
    def fraction_mean(self) -> float | None:
        return _mean(t.fraction for t in self.kept)

    @property
    def turns_mean(self) -> float | None:
        return _mean(float(t.turns) for t in self.kept)

    @property
    def ids_mean(self) -> float | None:
        return _mean(float(t.ids) for t in self.kept)

    @property
    def sampled(self) -> int:
        return sum(t.sampled for t in self.kept)

    @property
    def drift_in_loss(self) -> int:
        return sum(t.drift_in_loss for t in self.kept)

    @property
    def entropy_mean(self) -> float | None:
        """The sampler's mean entropy per sampled token, nats."""
        tokens = sum(t.entropy_tokens for t in self.kept)
        return sum(t.entropy_sum for t in self.kept) / tokens if tokens else None

    @property
    def over(self) -> int:
        """Trials that need nothing more."""
        return sum(t.phase in OVER for t in self.trials.values())

    @property
    def failed(self) -> int:
        return sum(t.phase == "failed" for t in self.trials.values())

    def seconds(self, phase: str) -> float:
        """Seconds of all the step's spans of ``phase``, added up."""
        return sum(s.seconds for s in self.spans if s.phase == phase)


@dataclass
class Intent:
    """An effect that was begun and has not ended. ``done`` of ``total`` is what it reported, if it knows a total."""

    actor: str
    key: str
    effect_kind: str
    since_ns: int
    deadline_s: float | None
    done: float = 0.0
    total: float | None = None
    unit: str = ""


ActorPhase = Literal["starting", "ready", "stopped"]


@dataclass
class ActorView:
    """An actor process: ``starts`` counts its incarnations, ``resumes`` those with which a resumed run began (the last in
    ``session``), ``exits`` how earlier ones ended."""

    name: str
    journal: str
    phase: ActorPhase = "starting"
    starts: int = 0
    resumes: int = 0
    session: int = 0
    epoch: int = 0
    ready_ns: int = 0
    rss_bytes: int = 0
    start_s: float = 0.0
    exits: list[str] = field(default_factory=list[str])
    intents: dict[str, Intent] = field(default_factory=dict[str, Intent])
    busy: Counter[str] = field(default_factory=Counter[str])
    """What it is doing: last part of the effect keys that are open, timers left out ("sample": 48)."""

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1 - self.resumes)


@dataclass
class RunView:
    """A run as of ``as_of`` (journal name to last sequence folded)."""

    run: str = ""
    config: Config | None = None
    code_version: str = ""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    kernels: str = ""
    """What computes, in every session; empty where the log does not say."""
    numerics: dict[str, str] = field(default_factory=dict[str, str])
    """What decides bits, as it was where the run began."""
    other_bits: dict[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    """Session, from 1, to the operations that gave other bits there than where the run began."""
    as_of: dict[str, int] = field(default_factory=dict[str, int])
    first_ns: int | None = None
    last_ns: int | None = None
    pauses: list[Pause] = field(default_factory=list[Pause])
    """One before each resume, in order."""
    barrier_ns: int | None = None
    """When the barrier that is open was opened."""
    sessions: int = 0
    """How often the run was started: 1, more when it was resumed."""
    steps: dict[int, StepView] = field(default_factory=dict[int, StepView])
    attribution: Attribution = field(default_factory=Attribution)
    actors: dict[str, ActorView] = field(default_factory=dict[str, ActorView])
    failures: Counter[str] = field(default_factory=Counter[str])
    """Trials that infrastructure failed, by cause."""
    sandboxes: SandboxesView = field(default_factory=SandboxesView)
    outcomes: Counter[str] = field(default_factory=Counter[str])
    gradings: Counter[str] = field(default_factory=Counter[str])
    """By task; ``ungraded``: those that gave no reward."""
    ungraded: Counter[str] = field(default_factory=Counter[str])
    published: int = 0
    published_bytes: int = 0
    run_bytes: Counter[str] = field(default_factory=Counter[str])
    """Bytes that belong to no step."""
    unknown_events: int = 0
    model_folder: str = ""
    finished: bool = False
    failed_reason: str = ""
    stopped_reason: str | None = None
    stop_requested: bool = False
    """This session is to end after its phase."""
    cpu_s: float | None = None
    """Of the ``cpu_sessions`` sessions that could say so: one that was killed cannot."""
    cpu_sessions: int = 0

    @property
    def complete(self) -> bool:
        """True when no more events are to come."""
        return self.stopped_reason is not None

    @property
    def seconds(self) -> float:
        """Wall time of the run, without the pauses between its sessions."""
        if self.first_ns is None or self.last_ns is None:
            return 0.0
        return self.worked_s(self.first_ns, self.last_ns)

    @property
    def paused_s(self) -> float:
        return sum(pause.seconds for pause in self.pauses)

    def worked_s(self, start_ns: int, end_ns: int) -> float:
        """Seconds of an interval of the wall clock, without the pauses that lie in it."""
        pauses_ns = (min(end_ns, p.end_ns) - max(start_ns, p.start_ns) for p in self.pauses)
        return (end_ns - start_ns - sum(ns for ns in pauses_ns if ns > 0)) / 1e9

    def of_purpose(self, purpose: Purpose) -> list[StepView]:
        """Steps of that purpose whose batch is sealed, in order."""
        return [s for _, s in sorted(self.steps.items()) if s.purpose == purpose and s.sealed_ns is not None]

    @property
    def trained(self) -> list[StepView]:
        """Train steps whose actor update is recorded, in order."""
        return [s for s in self.of_purpose("train") if s.actor is not None]

    @property
    def current(self) -> StepView | None:
        """The oldest step that is not done, else the newest."""
        open_steps = [s for s in self.steps.values() if s.done_ns is None]
        if open_steps:
            return min(open_steps, key=lambda s: s.step)
        return self.steps[max(self.steps)] if self.steps else None

    @property
    def planned_steps(self) -> int | None:
        """How many steps the configuration plans; None before it is known."""
        if self.config is None:
            return None
        return len(purposes(self.config))


def _mean(values: Iterable[float | None]) -> float | None:
    present = [v for v in values if v is not None]
    return statistics.fmean(present) if present else None
