"""What a run's figures say, in words: what happened, and what looks wrong. Pure functions of the figures.

The thresholds are those of the demonstration's recipe: a gate for learning (last five rewards 1.25 times the first
five, held-out up by .10) and the warning signs that went before a collapse.
"""

from __future__ import annotations

from t1actors.observe.figures import AVERAGED, Figures
from t1actors.observe.quantities import duration, figure, percent

GATE_GAIN = 1.25
GATE_HELDOUT = 0.10
WARN_KL = 5e-3
WARN_CLIP = 0.03
WARN_ENTROPY = 1.25
WARN_TURNS = 1.5


def what_happened(f: Figures) -> str:
    """A paragraph."""
    words: list[str] = []
    if f.finished:
        cpu = f", {duration(f.cpu_seconds)} of CPU" if f.cpu_seconds is not None else ""
        words.append(f"The run finished after {f.steps} training steps in {duration(f.seconds)}{cpu}.")
    elif f.complete:
        words.append(f"The run stopped before its end, after {f.steps} training steps in {duration(f.seconds)}.")
    else:
        words.append(f"The run is not over; this is its state after {f.steps} training steps, {duration(f.seconds)}.")
    if f.comparable and f.reward_first5 is not None and f.reward_last5 is not None:
        times = f" ({f.reward_gain:.2f} times)" if f.reward_gain is not None else ""
        words.append(
            f"Mean reward of the first {AVERAGED} training steps was {figure(f.reward_first5)}, of the last "
            f"{AVERAGED} {figure(f.reward_last5)}{times}; the share of assertions passed went from "
            f"{percent(f.frac_first5)} to {percent(f.frac_last5)}."
        )
    elif f.reward_last5 is not None:
        words.append(
            f"Mean reward was {figure(f.reward_last5)}, {percent(f.frac_last5)} of assertions passed; these are too few "
            f"training steps to compare the first {AVERAGED} with the last {AVERAGED}."
        )
    if f.heldout_before is not None and f.heldout_after is not None:
        words.append(
            "On held-out tasks, sampled, the share passed went from "
            f"{_with_error(f.heldout_before, f.heldout_before_error)} to "
            f"{_with_error(f.heldout_after, f.heldout_after_error)}."
        )
    if f.sft_greedy is not None:
        words.append(_against_greedy(f))
    if f.comparable and f.reward_gain is not None and f.heldout_gain is not None and f.finished:
        passed = f.reward_gain >= GATE_GAIN and f.heldout_gain >= GATE_HELDOUT
        words.append(
            f"The gate for a learning run (last five at least {GATE_GAIN} times the first five, held-out up by "
            f"{GATE_HELDOUT:.2f}) is {'passed' if passed else 'not passed'}."
        )
    return " ".join(words)


def _with_error(mean: float, error: float | None) -> str:
    return percent(mean) + (f" +- {100 * error:.1f}" if error is not None else "")


def _against_greedy(f: Figures) -> str:
    greedy = f"The warm start alone, decoded greedily, passes {percent(f.sft_greedy)}"
    if f.trained_greedy is not None:
        greedy += f", the trained policy, decoded so, {percent(f.trained_greedy)}"
    if f.heldout_after is None or f.sft_greedy is None:
        return f"{greedy}."
    if f.heldout_after > f.sft_greedy:
        return f"{greedy}: the trained policy is better than that even when it is sampled."
    return f"{greedy}: the trained policy, sampled, is not better, so part of the gain may be sharpening alone."


def what_looks_wrong(f: Figures) -> list[str]:
    """Sentences, most serious first; empty when nothing does."""
    return [*_broken(f), *_worrying(f), *_lost(f)]


def _broken(f: Figures) -> list[str]:
    found: list[str] = []
    if f.drift_loss_region:
        found.append(
            f"Drift in the loss region is {figure(f.drift_loss_region)}: sampled ids were changed. It must be 0."
        )
    expected = [min(1, n) for n in range(len(f.staleness_by_step))]
    if f.staleness_by_step != expected:
        found.append(f"Staleness by training step is {f.staleness_by_step}, not 0 and then 1 throughout.")
    if f.unknown_events:
        found.append(f"{f.unknown_events} events are of kinds that this version does not know; they were left out.")
    return found


def _worrying(f: Figures) -> list[str]:
    found: list[str] = []
    train = [s for s in f.by_step if s.purpose == "train"]
    clipped = [s.step for s in train if s.clip_share is not None and s.clip_share >= WARN_CLIP]
    if clipped:
        found.append(
            f"At least {percent(WARN_CLIP)} of tokens were clipped in {_steps(clipped)}: updates are too large."
        )
    moved = [s.step for s in train if s.kl is not None and s.kl >= WARN_KL]
    if moved:
        found.append(f"KL to the behaviour version was {WARN_KL:g} or more in {_steps(moved)}.")
    if len(train) >= 2 * AVERAGED:
        for name, values, limit in (
            ("Entropy", [s.entropy for s in train], WARN_ENTROPY),
            ("The number of turns", [s.turns for s in train], WARN_TURNS),
        ):
            first, last = _ends(values)
            if first and last and last > first * limit:
                found.append(f"{name} rose from {figure(first, 2)} to {figure(last, 2)}.")
    negative = sum(value < 0 for value in f.explained_variance_by_step)
    if negative:
        steps = len(f.explained_variance_by_step)
        found.append(f"The critic's explained variance was negative in {negative} of {steps} training steps.")
    return found


def _lost(f: Figures) -> list[str]:
    found: list[str] = []
    if f.failures:
        causes = ", ".join(f"{count} x {cause}" for cause, count in f.failures.items())
        found.append(f"Trials that failed for reasons outside the agent and count nowhere: {causes}.")
    ungraded = {name: count for name, count in f.outcomes.items() if name != "graded"}
    if ungraded:
        found.append(f"Gradings without a reward: {', '.join(f'{n} x {name}' for name, n in ungraded.items())}.")
    launched: dict[str, int] = {}
    lost: dict[str, int] = {}
    for step in f.by_step:
        for group, (of, gone) in step.lost_by_family.items():
            launched[group] = launched.get(group, 0) + of
            lost[group] = lost.get(group, 0) + gone
    total = sum(launched.values())
    usual = sum(lost.values()) / total if total else 0.0
    hard = [g for g in sorted(lost) if launched[g] >= 20 and lost[g] / launched[g] > 2 * usual]
    if hard:
        found.append(
            "Task families that were cancelled more than twice as often as the rest: "
            + ", ".join(f"{g} ({lost[g]} of {launched[g]})" for g in hard)
            + "."
        )
    if f.restarts:
        found.append(f"Restarted: {', '.join(f'{name} {count}x' for name, count in f.restarts.items())}.")
    return found


def _ends(values: list[float | None]) -> tuple[float | None, float | None]:
    present = [v for v in values if v is not None]
    if len(present) < 2 * AVERAGED:
        return None, None
    return sum(present[:AVERAGED]) / AVERAGED, sum(present[-AVERAGED:]) / AVERAGED


def _steps(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"step{'s' if len(numbers) > 1 else ''} {shown}" + (
        f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    )
