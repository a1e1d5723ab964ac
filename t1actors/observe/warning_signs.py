"""What looks wrong in a run: one ``Sign`` each, with the steps it was seen in and the command that shows more.

Pure functions of the figures. The thresholds are the demonstration's: healthy runs stay well below them, and runs that
collapsed crossed them first. Commands are meant for the run's own directory, so they name it ``.``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from t1actors.observe.figures import AVERAGED, Figures, StepFigures
from t1actors.observe.quantities import figure, one_line, percent

WARN_KL = 5e-3
WARN_CLIP = 0.03
WARN_ENTROPY = 1.25
WARN_TURNS = 1.5
WARN_GAP = 2.0
GAP_OF_ROUNDING = 1e-5
"""An engine gap below this, nats per token, is rounding: how it changes means nothing."""
WARN_GRID = 1e-3
WARN_REWARD = 0.9
WARN_RETOKENIZED = 0.02
WARN_TIMED_OUT = 0.01
WARN_LOST = 2.0
WARN_LOST_LAUNCHED = 20
"""A family with fewer trials than this may be lost more often by chance."""
SHOWN_STEPS = 8
NAMED_TASKS = 3


@dataclass(frozen=True)
class Sign:
    """``text`` is a sentence or two; ``steps`` those that it was seen in, none when it is of the whole run; ``look`` the
    next thing to type."""

    name: str
    text: str
    look: str
    steps: tuple[int, ...] = ()


def warning_signs(f: Figures) -> list[Sign]:
    """Most serious first; empty when nothing looks wrong."""
    return [*_ended(f), *_broken(f), *_updates(f), *_trends(f), *_families(f), *_lost(f)]


def _training(f: Figures) -> list[StepFigures]:
    return [s for s in f.by_step if s.purpose == "train"]


# --- the run and its mechanisms -------------------------------------------------------------------------------------


def _ended(f: Figures) -> Iterator[Sign]:
    if f.failed_reason:
        yield Sign(
            "failed", f"The run failed: {one_line(f.failed_reason).rstrip('.')}.", "t1 log cat . --kind RunFailed"
        )
    elif f.complete and not f.finished:
        reason = one_line(f.stopped_reason or "no reason given")
        yield Sign("stopped", f"The run was stopped before its end ({reason}).", "t1 run --resume .")


def _broken(f: Figures) -> Iterator[Sign]:
    drifted = [s.step for s in f.by_step if s.drift_in_loss]
    if drifted:
        share = f"{figure(f.drift_loss_region)} of the sampled tokens"
        yield _seen(
            "drift", f"Sampled ids were changed before the loss in {{steps}} ({share}); it must be none.", drifted
        )
    stale = [
        s.step for n, s in enumerate(s for s in _training(f) if s.staleness is not None) if s.staleness != min(1, n)
    ]
    if stale:
        yield _seen("staleness", "Staleness must be 0, then 1 throughout; it was not in {steps}.", stale)
    for session, operations in f.other_bits.items():
        text = (
            f"Session {session} of the run was on a machine, or with libraries, where {len(operations)} operations give "
            f"other bits than where it began: {listed(operations)}. Its steps replay bit for bit there, earlier ones "
            "where they were made."
        )
        yield Sign("other bits", text, "t1 log cat . --kind RunStarted")
    if f.unknown_events:
        yield Sign(
            "unknown events",
            f"{f.unknown_events} events are of kinds that this version does not know; they were left out.",
            "t1 --version",
        )


def _seen(name: str, text: str, steps: Sequence[int]) -> Sign:
    return Sign(name, text.format(steps=named(steps)), "t1 log check .", tuple(steps))


# --- training ---------------------------------------------------------------------------------------------------------


def _updates(f: Figures) -> Iterator[Sign]:
    """What single updates did."""
    for name, text, looks_wrong in _UPDATE_SIGNS:
        steps = [s.step for s in f.by_step if looks_wrong(s)]
        if steps:
            yield Sign(
                name,
                text.format(steps=named(steps)),
                f"t1 log cat . --step {steps[0]} --kind ActorUpdated",
                tuple(steps),
            )
    yield from _grid(f)
    updated = [s for s in f.by_step if s.explained_variance is not None]
    negative = [s.step for s in updated if s.explained_variance is not None and s.explained_variance < 0]
    if negative:
        text = (
            f"The critic's explained variance was negative in {len(negative)} of {len(updated)} updates "
            f"({named(negative)}): there its values are worse than a constant, and advantages are noisier for them."
        )
        yield Sign(
            "critic",
            text,
            f"t1 log cat . --step {negative[0]} --kind ValuesEstimated --kind CriticUpdated",
            tuple(negative),
        )


def _grid(f: Figures) -> Iterator[Sign]:
    coarse = [(s.quantum_over_rms, s) for s in f.by_step if (s.quantum_over_rms or 0.0) >= WARN_GRID]
    if coarse:
        ratio, worst = max(coarse, key=lambda found: found[0] or 0.0)
        steps = tuple(s.step for _, s in coarse)
        text = (
            f"The grid of exact gradient sums shows in {named(steps)}: its step is up to {figure(ratio)} of the RMS gradient "
            f"({worst.quantum_tensor}, step {worst.step}), so what is smaller is rounded away. Make the advantages larger: a "
            "smaller verify.reward_scale, or train.actor.whiten_advantages=true."
        )
        look = f"t1 log cat . --step {worst.step} --kind CriticUpdated --kind ActorUpdated"
        yield Sign("gradient grid", text, look, steps)


_UPDATE_SIGNS: tuple[tuple[str, str, Callable[[StepFigures], bool]], ...] = (
    (
        "clip share",
        f"At least {percent(WARN_CLIP)} of tokens were clipped in {{steps}}: updates are too large; lower "
        "train.actor.learning_rate.",
        lambda s: s.clip_share is not None and s.clip_share >= WARN_CLIP,
    ),
    (
        "KL",
        f"KL to the behaviour version was {WARN_KL:g} nats or more in {{steps}}: updates are too large; lower "
        "train.actor.learning_rate.",
        lambda s: s.kl is not None and s.kl >= WARN_KL,
    ),
)


def _trends(f: Figures) -> Iterator[Sign]:
    """The first training steps against the last."""
    train = _training(f)
    if not f.comparable:
        return
    last_steps = tuple(s.step for s in train[-AVERAGED:])
    cat = f"t1 log cat . --step {last_steps[-1]}"
    reward = ends(train, lambda s: s.reward)
    if reward is not None and reward[1] < WARN_REWARD * reward[0]:
        text = f"Reward fell from {figure(reward[0])} to {figure(reward[1])}, {_first_to_last(train)}."
        yield Sign("reward", text, f"{cat} --kind Graded", last_steps)
    entropy = ends(train, lambda s: s.entropy)
    if entropy is not None and entropy[1] > WARN_ENTROPY * entropy[0]:
        text = (
            f"Entropy rose from {figure(entropy[0], 2)} to {figure(entropy[1], 2)} nats, {_first_to_last(train)}: "
            "the policy is coming apart; lower train.actor.learning_rate."
        )
        yield Sign("entropy", text, f"{cat} --kind ActorUpdated", last_steps)
    turns = ends(train, lambda s: s.turns)
    if turns is not None and turns[1] > WARN_TURNS * turns[0]:
        text = (
            f"Turns rose from {figure(turns[0], 1)} to {figure(turns[1], 1)} an episode, {_first_to_last(train)}: "
            "it may be stalling; lower rollout.turn_slack."
        )
        yield Sign("turns", text, f"{cat} --kind EpisodeEnded", last_steps)
    gap = ends(train, lambda s: s.engine_gap_mean)
    if gap is not None and gap[1] > GAP_OF_ROUNDING and gap[1] > WARN_GAP * gap[0]:
        text = (
            f"The engine gap grew from {figure(gap[0])} to {figure(gap[1])} nats a token, {_first_to_last(train)}: "
            "sampler and trainer disagree more and more about the same weights."
        )
        yield Sign("engine gap", text, f"t1 replay . --step {last_steps[-1]}", last_steps)


def _first_to_last(train: Sequence[StepFigures]) -> str:
    first, last = train[:AVERAGED], train[-AVERAGED:]
    return f"steps {first[0].step} to {first[-1].step} against {last[0].step} to {last[-1].step}"


def ends(steps: Sequence[StepFigures], of: Callable[[StepFigures], float | None]) -> tuple[float, float] | None:
    """Means of the first and the last few; None when they would have steps in common."""
    present = [value for value in map(of, steps) if value is not None]
    if len(present) < 2 * AVERAGED:
        return None
    return sum(present[:AVERAGED]) / AVERAGED, sum(present[-AVERAGED:]) / AVERAGED


# --- what was measured, and what was not --------------------------------------------------------------------------------


def _families(f: Figures) -> Iterator[Sign]:
    fell = [family for family in f.families if family.fell]
    if fell:
        named_families = ", ".join(f"{x.family} ({percent(x.before)} to {percent(x.after)})" for x in fell)
        after = [s.step for s in f.by_step if s.purpose == "evaluate" and s.temperature > 0][-1]
        text = f"Held out, these families pass less than before training, by more than two standard errors: {named_families}."
        yield Sign("families that fell", text, f"t1 log cat . --step {after} --kind Graded", (after,))


def _lost(f: Figures) -> Iterator[Sign]:
    if f.quarantined:
        names = list(f.quarantined)
        why = "; ".join(f"{task}: {one_line(f.quarantined[task])}" for task in names[:NAMED_TASKS])
        more = f", and {len(names) - NAMED_TASKS} more" if len(names) > NAMED_TASKS else ""
        text = f"Tasks for which no sandbox could be made, so they were drawn no more: {why}{more}."
        yield Sign("quarantined tasks", text, "t1 log cat . --kind TaskQuarantined")
    if f.retries:
        causes = ", ".join(f"{count} x {cause}" for cause, count in f.retries.items())
        text = f"Sandboxes were made only after another try: {causes}."
        yield Sign("retries", text, "t1 log cat . --kind SandboxRetried")
    if f.leaked:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in f.leaked.items())
        text = f"A pool that started found what nobody owned any more, and removed it: {kinds}."
        yield Sign("leaked", text, "t1 log cat . --kind SandboxesReaped")
    if f.failures:
        steps = tuple(s.step for s in f.by_step if s.failed)
        causes = ", ".join(f"{count} x {cause}" for cause, count in f.failures.items())
        where = f" ({named(steps)})" if steps else ""
        text = f"Trials that infrastructure broke, which count nowhere: {causes}{where}."
        yield Sign("unmeasured trials", text, "t1 log cat . --kind TrialFailed", steps)
    ungraded = [f"{count} x {name}" for name, count in f.outcomes.items() if name != "graded"]
    if ungraded:
        tasks = [f"{task} ({lost} of {of})" for task, lost, of in f.ungraded_tasks[:NAMED_TASKS]]
        more = f" and {len(f.ungraded_tasks) - NAMED_TASKS} more" if len(f.ungraded_tasks) > NAMED_TASKS else ""
        of_tasks = f" Of tasks: {', '.join(tasks)}{more}; look at their graders." if tasks else ""
        text = f"Gradings that gave no reward: {', '.join(ungraded)}; their trials count nowhere.{of_tasks}"
        yield Sign("unmeasured gradings", text, "t1 log cat . --kind Graded")
    short = tuple(s.step for s in f.by_step if s.short_of)
    if short:
        missing = sum(s.short_of for s in f.by_step)
        text = f"Batches were short of {missing} trials in all, in {named(short)}."
        yield Sign("short batches", text, f"t1 log cat . --step {short[0]} --kind TrialFailed --kind BatchShort", short)
    yield from _lost_families(f)
    drifting = tuple(
        s.step for s in f.by_step if _retokenized(s.boundaries) >= WARN_RETOKENIZED * max(1, sum(s.boundaries.values()))
    )
    if drifting:
        text = (
            f"At least {percent(WARN_RETOKENIZED)} of the boundaries between turns were re-tokenised or begin a chunk in "
            f"{named(drifting)}. RETOKENIZED: the answer came back as text that the tokenizer cuts otherwise. SPLIT: a call "
            "did not go on from the one before it (a summary, a sub-agent, a second answer, a history that was edited)."
        )
        yield Sign("boundaries", text, f"t1 log cat . --step {drifting[0]} --kind TrajectoryAssembled", drifting)
    late = [s for s in f.by_step if s.timed_out_turns >= WARN_TIMED_OUT]
    if late:
        text = (
            f"Up to {percent(max(s.timed_out_turns for s in late))} of the commands ran into rollout.command_deadline_s in "
            f"{named([s.step for s in late])}. If they are quick ones, the machine was too busy, and rewards are lower "
            "for it: run less beside it or give them more time."
        )
        steps = tuple(s.step for s in late)
        yield Sign("slow commands", text, f"t1 log cat . --step {steps[0]} --kind TurnExecuted", steps)
    if f.restarts:
        text = f"Actors were started again: {', '.join(f'{name} {count}x' for name, count in f.restarts.items())}."
        yield Sign("restarts", text, "t1 log cat . --kind ActorStopped")


def _retokenized(boundaries: dict[str, int]) -> int:
    return boundaries.get("RETOKENIZED", 0) + boundaries.get("SPLIT", 0)


def _lost_families(f: Figures) -> Iterator[Sign]:
    launched: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for step in f.by_step:
        for group, (of, gone) in step.lost_by_family.items():
            launched[group] += of
            lost[group] += gone
    usual = lost.total() / launched.total() if launched else 0.0
    hard = [g for g in sorted(lost) if launched[g] >= WARN_LOST_LAUNCHED and lost[g] / launched[g] > WARN_LOST * usual]
    if hard:
        steps = tuple(s.step for s in f.by_step if any(s.lost_by_family.get(g, (0, 0))[1] for g in hard))
        text = (
            "Task families that were lost (cancelled or failed) more than twice as often as trials are "
            f"({percent(usual)}): {', '.join(f'{g} ({lost[g]} of {launched[g]})' for g in hard)}. The batches are "
            "no fair sample of the tasks."
        )
        yield Sign(
            "lost families", text, f"t1 log cat . --step {steps[0]} --kind TrialCancelled --kind TrialFailed", steps
        )


def listed(names: Sequence[str]) -> str:
    """The names; the first eight when there are more."""
    more = f" and {len(names) - SHOWN_STEPS} more" if len(names) > SHOWN_STEPS else ""
    return ", ".join(names[:SHOWN_STEPS]) + more


def named(steps: Sequence[int]) -> str:
    """step 4; steps 4, 5, 9; the first eight when there are more."""
    shown = ", ".join(map(str, steps[:SHOWN_STEPS]))
    more = f" and {len(steps) - SHOWN_STEPS} more" if len(steps) > SHOWN_STEPS else ""
    return f"step{'s' if len(steps) > 1 else ''} {shown}{more}"
