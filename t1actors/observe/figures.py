"""The figures of a run under plain names: what ``report.json`` holds. A pure function of the view.

Units: ``reward`` is P / S (passed assertions over the run's fixed scale), ``frac`` is P / n (passed over expected),
both means over a step's batch. ``heldout_*``, ``sft_greedy`` and ``trained_greedy`` are ``frac`` of the evaluation
steps; the same as rewards have ``_reward`` behind their name. Engine gap and policy movement are nats per sampled
token, means weighted by tokens, over all training steps. Quartiles are over a step's trials. Seconds are without the
pauses between the sessions of a run. ``None`` means: the run has no such step.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from t1actors.events import ActorUpdated
from t1actors.observe.families import FamilyFigures, family_figures
from t1actors.observe.view import RunView, StepView

AVERAGED = 5
"""First and last training steps that are averaged."""


class StepFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One step. ``seconds`` are wall-clock seconds by phase (they overlap between steps); ``period_s`` is what the step
    took the run: from the end of the step before to its own. ``trial_seconds`` are sums over the trials that ran at the
    same time."""

    step: int
    purpose: str
    version_index: int
    temperature: float
    trials: int
    launched: int
    failed: int
    cancelled: int
    short_of: int
    """Trials that the batch lacks."""
    reward: float | None
    reward_quartiles: tuple[float, float] | None
    frac: float | None
    turns: float | None
    turns_quartiles: tuple[float, float] | None
    timed_out_turns: float
    """Share of the turns whose commands ran into ``rollout.command_deadline_s``."""
    malformed_turns: int
    """Turns that could not be read; of the shell harness there are none."""
    ids: float | None
    ids_quartiles: tuple[float, float] | None
    ends: dict[str, int]
    """Why episodes ended, to how many did."""
    sampled: int
    entropy: float | None
    drift_in_loss: int
    non_canonical_turns: int
    boundaries: dict[str, int]
    retokenized: int
    """Sampled ids that later prompts had as other ids; ``altered``: sampled after another history than the record's;
    ``placeholders``: routing rows copied from their neighbour."""
    altered: int
    placeholders: int
    explained_variance: float | None
    """Before the critic's update."""
    critic_loss: float | None
    actor_loss: float | None
    gap_mean: float | None
    gap_max: float | None
    engine_gap_mean: float | None
    engine_gap_max: float | None
    policy_movement_mean: float | None
    policy_movement_max: float | None
    ratio_max: float | None
    clip_share: float | None
    kl: float | None
    staleness: int | None
    quantum_over_rms: float | None = None
    """The larger of critic's and actor's: the step of the gradients' grid over the RMS gradient of ``quantum_tensor``."""
    quantum_tensor: str = ""
    """With the part before it: "actor lm_head.weight"."""
    seconds: dict[str, float]
    period_s: float | None
    trial_seconds: dict[str, float]
    size_bytes: dict[str, int]
    lost_by_family: dict[str, tuple[int, int]]
    """Group to (launched, lost)."""


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """The run was taken up again after ``pause_s``; ``step`` was the newest step then."""

    step: int | None
    pause_s: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A run's figures. The module's docstring has the units."""

    run: str
    complete: bool
    finished: bool
    failed_reason: str
    stopped_reason: str | None
    as_of: dict[str, int]
    reward_first5: float | None
    reward_last5: float | None
    reward_gain: float | None
    """reward_last5 / reward_first5."""
    frac_first5: float | None
    frac_last5: float | None
    heldout_before: float | None
    heldout_after: float | None
    heldout_gain: float | None
    """heldout_after - heldout_before."""
    sft_greedy: float | None
    trained_greedy: float | None
    """Held out, greedy, after training."""
    heldout_before_reward: float | None
    heldout_after_reward: float | None
    sft_greedy_reward: float | None
    heldout_before_error: float | None
    heldout_after_error: float | None
    """Standard errors of the two means, over tasks."""
    engine_gap_mean: float | None
    engine_gap_max: float | None
    policy_movement_mean: float | None
    policy_movement_max: float | None
    drift_loss_region: float | None
    """Share of sampled tokens in the loss that are not the ids the model sampled; must be 0."""
    staleness_by_step: list[int]
    """Of the training steps: 0, then 1, 1, ..."""
    steps: int
    """Training steps done."""
    planned_steps: int | None
    """Training steps of the whole plan."""
    resumes: list[Resume]
    families: list[FamilyFigures]
    """Held out, of the built-in tasks."""
    seconds: float
    cpu_seconds: float | None
    cpu_whole: bool = True
    """Whether that is of all sessions of the run; a session that was killed left no figure."""
    seconds_by_phase: dict[str, float]
    bytes_by_step: dict[str, dict[str, int]]
    """Step number to bytes by kind: "events" are the events, the others blobs."""
    bytes_outside_steps: dict[str, int]
    explained_variance_by_step: list[float]
    outcomes: dict[str, int]
    ungraded_tasks: list[tuple[str, int, int]]
    """Tasks with gradings that gave no reward, most first: name, how many gave none, of how many."""
    failures: dict[str, int]
    sandboxes: dict[str, int] = {}
    """``created``, ``reclaimed``, ``live``, ``retries`` of creations, ``leaked``: found and removed."""
    retries: dict[str, int] = {}
    """Of creations, by cause."""
    leaked: dict[str, int] = {}
    """By kind."""
    quarantined: dict[str, str] = {}
    """Tasks for which no sandbox could be made, and why."""
    restarts: dict[str, int]
    kernels: str = ""
    """What computed, in every session; empty where the log does not say."""
    other_bits: dict[str, tuple[str, ...]] = {}
    """Session, from 1, to the operations that gave other bits there than where the run began."""
    unknown_events: int
    by_step: list[StepFigures]

    @property
    def comparable(self) -> bool:
        """Whether the first and the last five training steps have none in common."""
        return self.steps >= 2 * AVERAGED


def figures(view: RunView) -> Figures:
    """The figures of ``view``; of an unfinished run, those it has so far."""
    train = view.of_purpose("train")
    rewards = [s.reward_mean for s in train if s.reward_mean is not None]
    fractions = [s.fraction_mean for s in train if s.fraction_mean is not None]
    before, after, greedy, trained_greedy = _evaluations(view)
    trained = view.trained
    sampled = sum(s.sampled for s in view.steps.values() if s.sealed_ns is not None)
    drifted = sum(s.drift_in_loss for s in view.steps.values() if s.sealed_ns is not None)
    phases: Counter[str] = Counter()
    for step in view.steps.values():
        for span in step.spans:
            phases[span.phase] += round(1000 * view.worked_s(span.start_ns, span.end_ns))
    periods = _periods(view)
    first5, last5 = _mean(rewards[:AVERAGED]), _mean(rewards[-AVERAGED:])
    held_before, held_after = _fraction(before), _fraction(after)
    return Figures(
        run=view.run,
        complete=view.complete,
        finished=view.finished,
        failed_reason=view.failed_reason,
        stopped_reason=view.stopped_reason,
        as_of=dict(view.as_of),
        reward_first5=first5,
        reward_last5=last5,
        reward_gain=last5 / first5 if first5 and last5 is not None else None,
        frac_first5=_mean(fractions[:AVERAGED]),
        frac_last5=_mean(fractions[-AVERAGED:]),
        heldout_before=held_before,
        heldout_after=held_after,
        heldout_gain=held_after - held_before if held_before is not None and held_after is not None else None,
        sft_greedy=_fraction(greedy),
        trained_greedy=_fraction(trained_greedy),
        heldout_before_reward=before.reward_mean if before else None,
        heldout_after_reward=after.reward_mean if after else None,
        sft_greedy_reward=greedy.reward_mean if greedy else None,
        heldout_before_error=_standard_error(before),
        heldout_after_error=_standard_error(after),
        engine_gap_mean=_token_mean(trained, lambda u: u.engine_gap_mean),
        engine_gap_max=_largest(trained, lambda u: u.engine_gap_max),
        policy_movement_mean=_token_mean(trained, lambda u: u.policy_movement_mean),
        policy_movement_max=_largest(trained, lambda u: u.policy_movement_max),
        drift_loss_region=drifted / sampled if sampled else None,
        staleness_by_step=[s.actor.staleness for s in trained if s.actor is not None],
        steps=len(trained),
        planned_steps=view.config.schedule.train_steps if view.config is not None else None,
        resumes=[Resume(step=_newest(view, p.end_ns), pause_s=p.seconds) for p in view.pauses],
        families=family_figures(before, after),
        seconds=view.seconds,
        cpu_seconds=view.cpu_s,
        cpu_whole=view.cpu_sessions == view.sessions,
        seconds_by_phase={name: ms / 1000 for name, ms in sorted(phases.items())},
        bytes_by_step={str(n): dict(sorted(s.size_bytes.items())) for n, s in sorted(view.steps.items())},
        bytes_outside_steps=dict(sorted(view.run_bytes.items())),
        explained_variance_by_step=[s.values.explained_variance for s in trained if s.values is not None],
        outcomes=dict(sorted(view.outcomes.items())),
        ungraded_tasks=[(name, lost, view.gradings[name]) for name, lost in view.ungraded.most_common() if lost],
        failures=dict(sorted(view.failures.items())),
        sandboxes={
            "created": view.sandboxes.created,
            "reclaimed": view.sandboxes.reclaimed,
            "live": len(view.sandboxes.live),
            "retries": view.sandboxes.retries.total(),
            "leaked": view.sandboxes.leaked.total(),
        },
        retries=dict(sorted(view.sandboxes.retries.items())),
        leaked=dict(sorted(view.sandboxes.leaked.items())),
        quarantined=dict(sorted(view.sandboxes.quarantined.items())),
        kernels=view.kernels,
        other_bits={str(session): names for session, names in view.other_bits.items()},
        restarts={a.name: a.restarts for a in view.actors.values() if a.restarts},
        unknown_events=view.unknown_events,
        by_step=[_step(view, s, periods.get(s.step)) for _, s in sorted(view.steps.items()) if s.sealed_ns is not None],
    )


def _newest(view: RunView, at_ns: int) -> int | None:
    return max((s.step for s in view.steps.values() if s.opened_ns < at_ns), default=None)


def _periods(view: RunView) -> dict[int, float]:
    """Step to its ``period_s``; together they are the time from the first opening to the last end."""
    periods: dict[int, float] = {}
    before_ns: int | None = None
    for number, step in sorted(view.steps.items()):
        if step.done_ns is not None:
            start_ns = step.opened_ns if before_ns is None else before_ns
            periods[number] = view.worked_s(start_ns, max(start_ns, step.done_ns))
            before_ns = max(start_ns, step.done_ns)
    return periods


def _evaluations(view: RunView) -> tuple[StepView | None, StepView | None, StepView | None, StepView | None]:
    """Held out before training and after it, sampled; the same two, greedy."""
    evaluations = view.of_purpose("evaluate")
    first_train = min((s.step for s in view.steps.values() if s.purpose == "train"), default=None)
    before: StepView | None = None
    after: StepView | None = None
    greedy: StepView | None = None
    trained_greedy: StepView | None = None
    for step in evaluations:
        trained = first_train is not None and step.step > first_train
        if step.temperature == 0 and not trained:
            greedy = greedy or step
        elif step.temperature > 0 and not trained:
            before = before or step
        elif step.temperature > 0:
            after = step
        else:
            trained_greedy = step
    return before, after, greedy, trained_greedy


def _step(view: RunView, step: StepView, period_s: float | None) -> StepFigures:
    actor, critic = step.actor, step.critic
    parts = [(part, p) for part, p in (("critic", critic), ("actor", actor)) if p is not None and p.quantum_tensor]
    coarsest = max(((p.quantum_over_rms, f"{part} {p.quantum_tensor}") for part, p in parts), default=(None, ""))
    return StepFigures(
        step=step.step,
        purpose=step.purpose,
        version_index=step.version_index,
        temperature=step.temperature,
        trials=len(step.kept),
        launched=len(step.trials),
        failed=step.failed,
        cancelled=sum(t.phase == "cancelled" for t in step.trials.values()),
        short_of=step.short_of,
        reward=step.reward_mean,
        reward_quartiles=_quartiles([t.reward for t in step.kept if t.reward is not None]),
        frac=step.fraction_mean,
        turns=step.turns_mean,
        turns_quartiles=_quartiles([t.turns for t in step.kept]),
        malformed_turns=sum(t.malformed_turns for t in step.kept),
        timed_out_turns=sum(t.timed_out_turns for t in step.kept) / max(1, sum(t.turns for t in step.kept)),
        ids=step.ids_mean,
        ids_quartiles=_quartiles([t.ids for t in step.kept]),
        ends=dict(sorted(Counter(t.end_reason for t in step.kept).items())),
        sampled=step.sampled,
        entropy=step.entropy_mean,
        drift_in_loss=step.drift_in_loss,
        non_canonical_turns=sum(t.non_canonical_turns for t in step.kept),
        boundaries=dict(sorted(sum((t.boundaries for t in step.kept), Counter[str]()).items())),
        retokenized=sum(t.retokenized for t in step.kept),
        altered=sum(t.altered for t in step.kept),
        placeholders=sum(t.placeholders for t in step.kept),
        explained_variance=step.values.explained_variance if step.values else None,
        critic_loss=critic.loss if critic else None,
        actor_loss=actor.loss if actor else None,
        gap_mean=actor.gap_mean if actor else None,
        gap_max=actor.gap_max if actor else None,
        engine_gap_mean=actor.engine_gap_mean if actor else None,
        engine_gap_max=actor.engine_gap_max if actor else None,
        policy_movement_mean=actor.policy_movement_mean if actor else None,
        policy_movement_max=actor.policy_movement_max if actor else None,
        ratio_max=actor.ratio_max if actor else None,
        clip_share=actor.clip_share if actor else None,
        kl=actor.kl if actor else None,
        staleness=actor.staleness if actor else None,
        quantum_over_rms=coarsest[0],
        quantum_tensor=coarsest[1],
        seconds={span.phase: view.worked_s(span.start_ns, span.end_ns) for span in step.spans},
        period_s=period_s,
        trial_seconds=dict(sorted(step.trial_seconds.items())),
        size_bytes=dict(sorted(step.size_bytes.items())),
        lost_by_family={group.group: (group.launched, group.lost) for group in step.lost_by_family},
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _quartiles(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _fraction(step: StepView | None) -> float | None:
    return step.fraction_mean if step is not None else None


def _standard_error(step: StepView | None) -> float | None:
    values = [t.fraction for t in step.kept if t.fraction is not None] if step is not None else []
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def _token_mean(steps: Sequence[StepView], of: Callable[[ActorUpdated], float]) -> float | None:
    weighted = [(s.sampled, of(s.actor)) for s in steps if s.actor is not None and s.sampled]
    total = sum(tokens for tokens, _ in weighted)
    return sum(tokens * value for tokens, value in weighted) / total if total else None


def _largest(steps: Sequence[StepView], of: Callable[[ActorUpdated], float]) -> float | None:
    return max((of(s.actor) for s in steps if s.actor is not None), default=None)
