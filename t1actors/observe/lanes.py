"""One step of a run as lanes over the wall clock: what each of its trials did, and what the trainers did meanwhile.

Guarantees: bars are commit times of the log (an effect runs from its intent to its end), clipped to the step; the bars
of a lane come in order and do not overlap; what was under way when the log ends reaches to the end. A gap in a trial's
lane is time in which nobody worked on it: a hand-over between actors, through the log. Choosing colours is the plot's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from t1actors.events import EffectFinished, EffectIntended, SandboxReady, TurnSampled, decode
from t1actors.log.frame import Frame
from t1actors.log.interface import Log
from t1actors.observe.view import Pause, RunView, StepView

DOING = {"create": "create sandbox", "sample": "sample", "run": "run command", "seal": "seal", "grade": "grade"}
"""Last part of an effect's key to what is done."""
WAITING = {
    "create": "wait for a sandbox",
    "sample": "wait for the engine",
    "grade": "wait for a grader",
}
"""What the first part of such an effect may be."""


@dataclass(frozen=True)
class Bar:
    """One stretch of work on a lane, on the run's wall clock."""

    what: str
    start_ns: int
    end_ns: int
    step: int


@dataclass(frozen=True)
class Lane:
    """A row of the picture: one trial or actor."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Lanes:
    """Step ``step`` from its opening to its end. ``trials`` are its trials in index order; ``actors`` what was done
    beside them, for this step and for its neighbours."""

    step: int
    purpose: str
    start_ns: int
    end_ns: int
    sealed_ns: int | None
    trials: tuple[Lane, ...]
    actors: tuple[Lane, ...]
    pauses: tuple[Pause, ...]


def typical_step(view: RunView, *, since: int = 0) -> StepView | None:
    """The step worth drawing, from step ``since`` on: of the training steps that overlapped others on both sides the one that
    took the median
    time; else the newest that comes nearest to that."""
    steps = [s for number, s in sorted(view.steps.items()) if number >= since]
    done = [s for s in steps if s.done_ns is not None]
    trained = [s for s in done if s.purpose in ("train", "warmup")]
    steady = [s for s in trained if _overlaps(view, s, s.step - 1) and _overlaps(view, s, s.step + 1)]
    unbroken = [s for s in steady if not _pauses(view, s.opened_ns, s.done_ns or s.opened_ns)]
    for candidates in (unbroken, steady):
        if candidates:
            by_time = sorted(candidates, key=lambda s: ((s.done_ns or 0) - s.opened_ns, s.step))
            return by_time[(len(by_time) - 1) // 2]
    newest = trained or done or steps
    return newest[-1] if newest else None


def _overlaps(view: RunView, step: StepView, number: int) -> bool:
    other = view.steps.get(number)
    if other is None or other.done_ns is None or step.done_ns is None:
        return False
    return other.opened_ns < step.done_ns and step.opened_ns < other.done_ns


def _pauses(view: RunView, start_ns: int, end_ns: int) -> list[Pause]:
    return [p for p in view.pauses if p.start_ns < end_ns and p.end_ns > start_ns]


def read_lanes(log: Log, view: RunView, step: StepView) -> Lanes:
    """The lanes of ``step``. Reads ``log`` once more, and decodes what was committed while the step lasted."""
    end_ns = max(step.opened_ns, step.done_ns or view.last_ns or step.opened_ns)
    worked = _Worked(step, end_ns)
    for journal in sorted({actor.journal for actor in view.actors.values() if not DOING.keys().isdisjoint(actor.busy)}):
        worked.apply(_frames(log, journal, step.opened_at.get(journal, -1) + 1, end_ns))
    return Lanes(
        step=step.step,
        purpose=step.purpose,
        start_ns=step.opened_ns,
        end_ns=end_ns,
        sealed_ns=step.sealed_ns,
        trials=worked.lanes(),
        actors=_beside(view, step.opened_ns, end_ns),
        pauses=tuple(
            Pause(max(p.start_ns, step.opened_ns), min(p.end_ns, end_ns)) for p in _pauses(view, step.opened_ns, end_ns)
        ),
    )


def _frames(log: Log, journal: str, from_sequence: int, end_ns: int) -> Iterable[Frame]:
    reader = log.open_reader(journal, from_sequence=max(from_sequence, log.kept_from(journal)))
    try:
        while frames := reader.read():
            yield from (frame for frame in frames if frame.head.wall_ns <= end_ns)
            if frames[0].head.wall_ns > end_ns:
                return
    finally:
        reader.close()


class _Worked:
    """Intervals of a step's trials, from their effects."""

    def __init__(self, step: StepView, end_ns: int) -> None:
        self._step = step
        self._end_ns = end_ns
        self._open: dict[str, int] = {}
        self._ready: dict[str, SandboxReady] = {}
        self._queued_s: dict[str, float] = {}
        self._bars: defaultdict[str, list[Bar]] = defaultdict(list)

    def apply(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            wall_ns = max(frame.head.wall_ns, self._step.opened_ns)  # a clock may have been set back
            for event in map(decode, frame.events):
                match event:
                    case EffectIntended() if event.key.partition("/")[0] in self._step.trials:
                        self._open.setdefault(event.key, wall_ns)
                    case SandboxReady():
                        self._ready[event.trial] = event
                    case TurnSampled():
                        self._queued_s[f"{event.trial}/{event.turn}/sample"] = event.queue_s
                    case EffectFinished() if event.key in self._open:
                        self._bar(event.key, self._open.pop(event.key), wall_ns, self._waited_s(event))
                    case _:
                        pass

    def _waited_s(self, event: EffectFinished) -> float:
        """Seconds at the effect's beginning in which it only waited."""
        trial, _, _ = event.key.partition("/")
        match event.key.rpartition("/")[2]:
            case "create" if trial in self._ready:
                return event.seconds - self._ready[trial].create_s
            case "sample":
                return self._queued_s.get(event.key, 0.0)
            case "grade":
                return event.phases.get("queue", 0.0)
            case _:
                return 0.0

    def _bar(self, key: str, start_ns: int, end_ns: int, waited_s: float) -> None:
        trial, _, _ = key.partition("/")
        verb = key.rpartition("/")[2]
        if verb not in DOING:
            return
        begun_ns = start_ns
        if verb in WAITING:
            begun_ns = min(end_ns, start_ns + max(0, round(waited_s * 1e9)))
            self._bars[trial].append(Bar(WAITING[verb], start_ns, begun_ns, self._step.step))
        self._bars[trial].append(Bar(DOING[verb], begun_ns, end_ns, self._step.step))

    def lanes(self) -> tuple[Lane, ...]:
        for key, start_ns in self._open.items():  # under way when the log, or the step, ended
            self._bar(key, start_ns, self._end_ns, 0.0)
        trials = sorted(self._step.trials.values(), key=lambda t: t.index)
        return tuple(Lane(t.trial, _in_order(self._bars[t.trial])) for t in trials)


def _in_order(bars: Iterable[Bar]) -> tuple[Bar, ...]:
    """``bars`` by their beginning, each cut where the one before it still lasts."""
    found: list[Bar] = []
    for bar in sorted(bars, key=lambda b: (b.start_ns, b.end_ns)):
        start_ns = max(bar.start_ns, found[-1].end_ns) if found else bar.start_ns
        if start_ns < bar.end_ns:
            found.append(Bar(bar.what, start_ns, bar.end_ns, bar.step))
    return tuple(found)


def _beside(view: RunView, start_ns: int, end_ns: int) -> tuple[Lane, ...]:
    """Rollout, barrier, critic and actor of every step, as far as they lie between the two times."""
    bars: defaultdict[str, list[Bar]] = defaultdict(list)
    for number, step in sorted(view.steps.items()):
        spans = [(span.phase, span.start_ns, span.end_ns) for span in step.spans]
        if step.sealed_ns is None:
            spans.append(("rollout", step.opened_ns, end_ns))
        for phase, since_ns, until_ns in spans:
            since_ns, until_ns = max(since_ns, start_ns), min(until_ns, end_ns)
            if since_ns < until_ns:
                bars[phase].append(Bar(phase, since_ns, until_ns, number))
    lanes = {
        "critic": [*bars["values"], *bars["critic"]],
        "actor": bars["actor"],
        "barrier": bars["barrier"],
        # Two rollouts may overlap (a pair of steps opens together), so each step has a lane of its own.
        **{f"rollout {number}": [b for b in bars["rollout"] if b.step == number] for number in _steps(bars["rollout"])},
    }
    return tuple(Lane(name, _in_order(found)) for name, found in lanes.items())


def _steps(bars: Iterable[Bar]) -> list[int]:
    return sorted({bar.step for bar in bars})
