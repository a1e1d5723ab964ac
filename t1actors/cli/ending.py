"""How a session of a run ends for a person: the report, where everything is, and how to go on.

A run that was stopped and resumed is one run here: its figures are over all sessions, without the pauses between them.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from t1actors.actors.trials import trial_id
from t1actors.cli.errors import FAILED, INTERRUPTED
from t1actors.cli.reporting import announce_report, report_with_progress
from t1actors.observe.figures import Figures, figures
from t1actors.observe.follow import read_run
from t1actors.observe.quantities import duration, figure, percent
from t1actors.runtime.supervisor import RunResult


def conclude(run_dir: Path, result: RunResult, *, quiet: bool) -> int:
    """Write the report, say what there is to say (quiet: only what went wrong and how to go on, on stderr), and return the
    exit status."""
    from t1actors.observe.report import write_report

    try:
        if quiet:
            found = write_report(run_dir)
        else:
            announce_report(run_dir)
            found = report_with_progress(run_dir)
    except OSError as error:
        # A full disk ends runs too: that must not hide why this one ended, nor how to go on.
        print(f"t1: no report ({error.strerror}); `t1 report {run_dir}` makes it later", file=sys.stderr)
        found = figures(read_run(run_dir))
    if not quiet:
        print("\n".join(_last_lines(run_dir, result, found)))
    if result.reason == "failed":
        for line in result.log_tail:
            print(f"  {line}", file=sys.stderr)
        print(f"t1: the run failed: {result.detail}", file=sys.stderr)
    if _can_go_on(result, found):
        print(
            f"resume   {resume_command(run_dir)}", file=sys.stderr if quiet or result.reason == "failed" else sys.stdout
        )
    return {"finished": 0, "failed": FAILED, "interrupted": INTERRUPTED}[result.reason]


def resume_command(run_dir: Path) -> str:
    """What to type to go on with the run."""
    return f"{_command()} run --resume {shlex.quote(str(run_dir))}"


def _can_go_on(result: RunResult, found: Figures) -> bool:
    """A failure that the run itself recorded is its end; an actor that could not be kept alive may be mended."""
    return result.reason == "interrupted" or (result.reason == "failed" and bool(result.failed_actor))


def _last_lines(run_dir: Path, result: RunResult, found: Figures) -> list[str]:
    t1 = _command()
    sessions = len(found.resumes) + 1
    lines = [
        f"{result.reason}: {found.steps} training steps, {duration(found.seconds)} wall, {_cpu(found)}"
        + (f", in {sessions} sessions" if sessions > 1 else "")
    ]
    if found.comparable and found.reward_first5 is not None:
        gain = f" ({found.reward_gain:.2f} times)" if found.reward_gain is not None else ""
        lines.append(
            f"reward   {figure(found.reward_first5)} -> {figure(found.reward_last5)}{gain}, first 5 and last 5 steps"
        )
    elif found.reward_last5 is not None and found.steps:
        lines.append(
            f"reward   {figure(found.reward_last5)} (too few training steps to compare the first and the last five)"
        )
    if found.heldout_after is not None:
        line = f"held out {percent(found.heldout_before)} -> {percent(found.heldout_after)} of assertions passed"
        lines.append(f"{line}; greedy {percent(found.sft_greedy)} -> {percent(found.trained_greedy)}")
    lines.append(f"report   {run_dir / 'report.md'} (report.json, plots/)")
    if (run_dir / "model" / "config.json").exists():
        lines.append(f"model    {run_dir / 'model'} (a Hugging Face folder)")
    lines.append(f"log      {run_dir / 'log'}")
    trained = [s.step for s in found.by_step if s.staleness is not None]
    whole = trained or [s.step for s in found.by_step if s.purpose == "evaluate" and s.reward is not None]
    if whole:
        step = whole[-1]
        lines.append(f"next     {t1} replay {run_dir} --step {step}   re-execute a step and compare every digest")
        lines.append(f"         {t1} log cat {run_dir} --trial {trial_id(step, 0)}   what one trial did")
    return lines


def _cpu(found: Figures) -> str:
    if found.cpu_seconds is None:
        return "CPU not known"
    return f"{'' if found.cpu_whole else 'at least '}{duration(found.cpu_seconds)} CPU"


def _command() -> str:
    """How `t1` was called, as short as it can be typed again."""
    called = Path(sys.argv[0])
    if called.name != "t1":
        return "t1"
    try:
        return str(called.absolute().relative_to(Path.cwd()))
    except ValueError:
        return "t1"
