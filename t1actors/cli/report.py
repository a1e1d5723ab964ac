"""`t1 report` and `t1 runs`: what runs have come to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from t1actors.cli.errors import CommandFailed, WrongUsage
from t1actors.cli.numbers import Whole
from t1actors.cli.reporting import report_with_progress
from t1actors.log.errors import NoteDamaged
from t1actors.observe.figures import Figures
from t1actors.observe.quantities import duration, figure, percent
from t1actors.runtime.trim_note import trim_note

RUNS = Path("runs")
RunDirectory = Annotated[Path, Parameter(help="A run's directory, such as runs/latest.")]


def report(
    run: RunDirectory,
    *,
    step: Annotated[
        Whole | None, Parameter(help="The step to draw on the wall clock; a typical one by default.")
    ] = None,
) -> None:
    """Make report.md, report.json and plots/ again from the run's log.

    Works on a run that is going on, too: its report says that it is not over.

    Example: `t1 report runs/latest`
    """
    from t1actors.observe.report import NoSuchStep
    from t1actors.observe.warning_signs import warning_signs
    from t1actors.observe.words import what_happened

    try:
        found = report_with_progress(run, step=step)
    except NoSuchStep as error:
        raise WrongUsage(str(error)) from error
    print(what_happened(found))
    signs = warning_signs(found)
    print("\nWhat looks wrong:" if signs else "\nNothing looks wrong that the report looks for.")
    for sign in signs:
        print(f"- {sign.name}: {sign.text}\n  next, in {run}: {sign.look}")
    print(f"\n{run / 'report.md'}")


def runs(directory: Annotated[Path, Parameter(help="Where runs are kept.")] = RUNS) -> None:
    """List the runs in a directory, oldest first, with what their reports say.

    Example: `t1 runs`
    """
    if directory.exists() and not directory.is_dir():
        raise CommandFailed(f"{directory} is no directory; name one that holds a folder for each run")
    if not directory.exists() and directory != RUNS:
        raise CommandFailed(f"{directory}: no such directory; without an argument, `t1 runs` looks in {RUNS}")
    found = sorted(
        (p for p in directory.glob("*") if not p.is_symlink() and _holds_run(p)),
        key=lambda p: p.stat().st_mtime,
    )
    if not found:
        print(f"no runs in {directory}; `t1 run --preset smoke` makes one")
        return
    print(f"{'run':<34} {'steps':>5} {'reward':>16} {'held out':>18} {'wall':>12}  state")
    for path in found:
        print(_row(path))


def _holds_run(path: Path) -> bool:
    try:
        return (path / "log").is_dir()
    except PermissionError:
        return True  # of another user, most likely: listed as such


def _row(path: Path) -> str:
    try:
        f = msgspec.json.decode((path / "report.json").read_bytes(), type=Figures)
    except PermissionError as error:
        return f"{path.name:<34} {'':>5} {'':>16} {'':>18} {'':>12}  {error.strerror}"
    except (OSError, msgspec.DecodeError):
        return f"{path.name:<34} {'':>5} {'':>16} {'':>18} {'':>12}  no report; `t1 report {path}` makes it"
    state = "finished" if f.finished else "stopped" if f.complete else "going on, or killed"
    reward = f"{figure(f.reward_first5)} > {figure(f.reward_last5)}" if f.comparable else "-"
    held = f"{percent(f.heldout_before)} > {percent(f.heldout_after)}"
    try:
        note = trim_note(path)
    except NoteDamaged:
        note = None
    if note is not None and note.first_step:
        state += f"; trimmed, steps from {note.first_step} on replay"
    return f"{path.name:<34} {f.steps:>5} {reward:>16} {held:>18} {duration(f.seconds):>12}  {state}"
