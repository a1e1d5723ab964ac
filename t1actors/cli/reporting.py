"""Writing a run's report before a person's eyes: how far it is, on stderr."""

from __future__ import annotations

import sys
from pathlib import Path

from t1actors.cli.progress import Progress
from t1actors.observe.figures import Figures
from t1actors.observe.follow import open_run, read_run

LONG_EVENTS = 10_000
"""As many take a second to read."""


def announce_report(run_dir: Path) -> None:
    """One line before what may take a while."""
    count = open_run(run_dir).events()
    if count >= LONG_EVENTS:
        print(f"writing the report: reading {count:,} events", file=sys.stderr, flush=True)


def report_with_progress(run_dir: Path, *, step: int | None = None) -> Figures:
    """As ``observe.report.write_report``, from the log."""
    with Progress("events") as progress:
        view = read_run(run_dir, progress)
    from t1actors.observe.report import write_report  # loads matplotlib

    with Progress("pictures") as progress:
        return write_report(run_dir, view, step=step, progress=progress)
