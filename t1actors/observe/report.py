"""The report of a run: ``report.json``, ``report.md`` and ``plots/*.png`` in its directory, all rebuilt from the log.

Guarantees: nothing but the log goes into it, so it can be made again at any time, also of a run that is not over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from t1actors.observe.figures import AVERAGED, Figures, figures
from t1actors.observe.follow import open_run, read_run
from t1actors.observe.lanes import read_lanes, typical_step
from t1actors.observe.plots import draw_all
from t1actors.observe.plots.style import Picture
from t1actors.observe.quantities import duration, figure, percent, size
from t1actors.observe.view import RunView, StepView
from t1actors.observe.warning_signs import warning_signs
from t1actors.observe.words import what_happened
from t1actors.runtime.trim_note import TrimNote, trim_note


def write_report(
    run_dir: Path,
    view: RunView | None = None,
    *,
    step: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Figures:
    """Write the report of the run in ``run_dir`` (of ``view``, when it was folded already) and return its figures.
    ``step`` is the one whose pipeline is drawn, a typical one by default; ``progress`` hears of pictures: done, total.
    Raises ``NoSuchStep``, ``follow.NoRun`` and the log's errors."""
    log = open_run(run_dir)
    view = view if view is not None else read_run(run_dir)
    note = trim_note(run_dir)
    chosen = _chosen(view, step, note)
    found = figures(view)
    lanes = read_lanes(log, view, chosen) if chosen is not None else None
    pictures = draw_all(found, lanes, run_dir / "plots", progress)
    (run_dir / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    (run_dir / "report.md").write_text(markdown(found, pictures, run_dir), encoding="utf-8")
    return found


class NoSuchStep(Exception):
    """The run has not opened that step. Says which it has."""


def _chosen(view: RunView, step: int | None, note: TrimNote) -> StepView | None:
    if step is None:
        return typical_step(view, since=note.kept_step)
    if step not in view.steps:
        there = f"it has steps 0 to {max(view.steps)}" if view.steps else "it has none yet"
        raise NoSuchStep(f"run {view.run} has no step {step}: {there}")
    if step < note.kept_step:
        raise NoSuchStep(f"run {view.run} has no turns of step {step} any more, so nothing to draw: {note.text(None)}")
    return view.steps[step]


def markdown(f: Figures, pictures: Sequence[Picture], run_dir: Path) -> str:
    """The report in words, tables and pictures."""
    lines = [f"# Run {f.run}", "", what_happened(f), "", "## What looks wrong", "", *_signs(f), ""]
    for picture in pictures:
        path = picture.path.relative_to(run_dir).as_posix()
        lines += [f"## {picture.title}", "", f"![{picture.title}]({path})", "", picture.how_to_read, ""]
    lines += ["## Figures", "", *_figures_table(f), "", *_notes(f, run_dir), ""]
    if f.seconds_by_phase:
        lines += ["## Seconds by phase", "", *_phase_table(f), ""]
    lines += ["## Steps", "", *_step_table(f), ""]
    return "\n".join(lines)


def _signs(f: Figures) -> list[str]:
    signs = warning_signs(f)
    if not signs:
        return ["Nothing that this report looks for."]
    return [
        *[f"- **{sign.name}**: {sign.text} Next: `{sign.look}`" for sign in signs],
        "",
        "The commands are to be typed in the run's directory.",
    ]


def _figures_table(f: Figures) -> list[str]:
    staleness = ", ".join(map(str, f.staleness_by_step[:3])) + (", ..." if len(f.staleness_by_step) > 3 else "")
    rows = [
        (f"reward, first {AVERAGED} training steps", figure(f.reward_first5)),
        (f"reward, last {AVERAGED} training steps", figure(f.reward_last5)),
        ("gain (last / first)", figure(f.reward_gain, 2)),
        (f"share passed, first {AVERAGED} / last {AVERAGED}", f"{percent(f.frac_first5)} / {percent(f.frac_last5)}"),
        ("held out, sampled, before", percent(f.heldout_before)),
        ("held out, sampled, after", percent(f.heldout_after)),
        ("held out, greedy, before (warm start)", percent(f.sft_greedy)),
        ("held out, greedy, after", percent(f.trained_greedy)),
        ("the same three as rewards", " / ".join(map(figure, _heldout_rewards(f)))),
        ("engine gap, mean / largest", f"{figure(f.engine_gap_mean)} / {figure(f.engine_gap_max)}"),
        ("policy movement, mean / largest", f"{figure(f.policy_movement_mean)} / {figure(f.policy_movement_max)}"),
        ("drift in the loss region", figure(f.drift_loss_region)),
        ("staleness by training step", staleness or "-"),
        ("training steps", str(f.steps)),
        ("kernels", f.kernels or "-"),
        ("sandboxes", _sandboxes(f)),
        ("wall time", duration(f.seconds)),
        ("CPU time", duration(f.cpu_seconds) if f.cpu_seconds is not None else "-"),
        ("written", size(sum(sum(kinds.values()) for kinds in f.bytes_by_step.values()))),
    ]
    return ["| figure | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _sandboxes(f: Figures) -> str:
    counts = f.sandboxes
    said = [f"{counts['created']:,} made, {counts['reclaimed']:,} reclaimed"] if counts else []
    said += [f"{counts[name]:,} {words}" for name, words in _SANDBOX_WORDS if counts.get(name)]
    return ", ".join(said) or "-"


_SANDBOX_WORDS = (("live", "live"), ("retries", "made after another try"), ("leaked", "left by dead ones and removed"))


def _heldout_rewards(f: Figures) -> tuple[float | None, float | None, float | None]:
    return f.heldout_before_reward, f.heldout_after_reward, f.sft_greedy_reward


def _notes(f: Figures, run_dir: Path) -> list[str]:
    note = trim_note(run_dir)
    trimmed = [
        f"Trimmed: {note.text(None)}. Turns, tokens, entropy, and the seconds and bytes of rollouts are of steps from",
        f"{note.kept_step} on, and of what is left of those before.",
    ]
    as_of = ", ".join(f"{journal} {sequence}" for journal, sequence in sorted(f.as_of.items()))
    return [
        "Reward is P / S: passed assertions over the run's fixed scale. Held-out figures are the mean share of each",
        "task's assertions that passed (P / n), in `report.json` as `heldout_before`, `heldout_after`, `sft_greedy`,",
        "`trained_greedy`.",
        "Gap and movement are nats per sampled token over all training steps.",
        f"As of {as_of}." + ("" if f.complete else " The run was not over."),
        *(trimmed if note.first_step else []),
    ]


def _phase_table(f: Figures) -> list[str]:
    rows = [f"| {name} | {duration(seconds)} |" for name, seconds in f.seconds_by_phase.items()]
    return [
        "| phase | wall time, all steps |",
        "|---|---|",
        *rows,
        "",
        "Rollout overlaps training: they add to more than the run.",
    ]


def _step_table(f: Figures) -> list[str]:
    names = ["step", "purpose", "trials", "reward", "passed", "turns", "EV"]
    names += ["engine gap", "clip", "KL", "entropy", "staleness", "rollout"]
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for s in f.by_step:
        cells = [
            str(s.step),
            s.purpose if s.temperature > 0 else f"{s.purpose}, greedy",
            f"{s.trials} of {s.launched}",
            figure(s.reward),
            percent(s.frac),
            figure(s.turns, 1),
            figure(s.explained_variance, 2),
            figure(s.engine_gap_mean),
            percent(s.clip_share),
            figure(s.kl),
            figure(s.entropy, 2),
            "-" if s.staleness is None else str(s.staleness),
            duration(s.seconds.get("rollout", 0.0)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines
