"""What a run's figures say, in words: a paragraph of what happened. What looks wrong is in ``warning_signs``.

The gate for learning is that of the demonstration's recipe: last five rewards 1.25 times the first five, held-out up by
.10. A pure function of the figures.
"""

from __future__ import annotations

from t1actors.observe.figures import AVERAGED, Figures
from t1actors.observe.quantities import duration, figure, one_line, percent

GATE_GAIN = 1.25
GATE_HELDOUT = 0.10


def what_happened(f: Figures) -> str:
    """A paragraph."""
    words: list[str] = [_how_far(f), *_how_it_was_resumed(f)]
    if f.comparable and f.reward_first5 is not None and f.reward_last5 is not None:
        times = f" ({f.reward_gain:.2f} times)" if f.reward_gain is not None else ""
        words.append(
            f"Mean reward of the first {AVERAGED} training steps was {figure(f.reward_first5)}, of the last "
            f"{AVERAGED} {figure(f.reward_last5)}{times}; the share of assertions passed went from "
            f"{percent(f.frac_first5)} to {percent(f.frac_last5)}."
        )
    elif f.reward_last5 is not None and f.steps:
        words.append(
            f"Mean reward was {figure(f.reward_last5)}, {percent(f.frac_last5)} of assertions passed; these are too "
            f"few training steps to compare the first {AVERAGED} with the last {AVERAGED}."
        )
    if f.heldout_before is not None and f.heldout_after is not None:
        words.append(
            "On held-out tasks, sampled, the share passed went from "
            f"{_with_error(f.heldout_before, f.heldout_before_error)} to "
            f"{_with_error(f.heldout_after, f.heldout_after_error)}."
        )
    if f.sft_greedy is not None:
        words.append(_against_greedy(f))
    words += [*_the_gap(f), *_what_it_cost(f)]
    if f.comparable and f.reward_gain is not None and f.heldout_gain is not None and f.finished:
        passed = f.reward_gain >= GATE_GAIN and f.heldout_gain >= GATE_HELDOUT
        words.append(
            f"The gate for a learning run (last five at least {GATE_GAIN} times the first five, held-out up by "
            f"{GATE_HELDOUT:.2f}) is {'passed' if passed else 'not passed'}."
        )
    return " ".join(words)


def _how_far(f: Figures) -> str:
    planned = f" of {f.planned_steps}" if f.planned_steps is not None and not f.finished else ""
    steps = f"{f.steps}{planned} training steps"
    if f.finished:
        cpu = f", {duration(f.cpu_seconds)} of CPU" if f.cpu_seconds is not None else ""
        return f"The run finished after {steps} in {duration(f.seconds)}{cpu}."
    if f.failed_reason:
        return f"The run failed after {steps}, {duration(f.seconds)}: {one_line(f.failed_reason).rstrip('.')}."
    if f.complete:
        return f"The run stopped before its end, after {steps} in {duration(f.seconds)}."
    state = f"this is its state after {steps}, {duration(f.seconds)}"
    return f"The run is not over; {state}. (It goes on, or was killed; then `t1 run --resume` takes it up again.)"


def _how_it_was_resumed(f: Figures) -> list[str]:
    if not f.resumes:
        return []
    each = [f"{duration(r.pause_s)}" + (f" in step {r.step}" if r.step is not None else "") for r in f.resumes]
    times = "once" if len(each) == 1 else f"{len(each)} times"
    return [f"It was resumed {times}, after standing still for {', '.join(each)}; times are without these pauses."]


def _what_it_cost(f: Figures) -> list[str]:
    """Where the time of a training step went."""
    periods = sorted(s.period_s for s in f.by_step if s.purpose == "train" and s.period_s is not None)
    if not periods:
        return []
    phases = {
        phase: sum(s.seconds.get(phase, 0.0) for s in f.by_step if s.purpose == "train") for phase in f.seconds_by_phase
    }
    longest = max(phases, key=lambda phase: phases[phase])
    median = duration(periods[len(periods) // 2])
    return [f"A training step took {median} (median); its longest phase was {longest}."]


def _the_gap(f: Figures) -> list[str]:
    if f.engine_gap_mean is None or f.policy_movement_mean is None:
        return []
    zero = "exactly 0" if f.engine_gap_max == 0 else f"{figure(f.engine_gap_mean)} nats a token"
    return [
        f"On the same weights sampler and trainer differed by {zero} (mean over training); between sampling and "
        f"training the policy itself moved by {figure(f.policy_movement_mean)}."
    ]


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
