"""`t1 replay`: a recorded step again, from the log alone."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from t1actors.cli.errors import WrongUsage
from t1actors.cli.numbers import Whole
from t1actors.cli.progress import Progress
from t1actors.observe.follow import open_run
from t1actors.observe.quantities import duration


def replay(
    run: Annotated[Path, Parameter(help="A run's directory, such as runs/latest.")],
    *,
    step: Annotated[Whole | None, Parameter(help="The step to replay.")] = None,
    every: Annotated[
        bool, Parameter(name="--all", help="Replay every step, one after another.", negative=(), show_default=False)
    ] = False,
) -> int:
    """Re-execute a step from the log and compare its digests level by level.

    Prints "bit-exact", or the first level, tensor and trial that differ. Exit status 0: bit-exact. 1: something differs.
    2: the step cannot be run again, and the message says why.

    Example: `t1 replay runs/latest --step 12`
    """
    if (step is None) == (not every):
        raise WrongUsage("say which step: --step N, or --all")
    open_run(run)  # so that nobody waits for torch to hear that there is none
    print("loading torch", file=sys.stderr, flush=True)
    from t1actors.replay.inputs import ReplayImpossible
    from t1actors.replay.report import IMPOSSIBLE
    from t1actors.replay.run import Replayer

    try:
        with Progress("events") as progress:
            replayer = Replayer.open(run, progress)
    except ReplayImpossible as error:
        print(f"t1: {error}", file=sys.stderr)
        return IMPOSSIBLE
    started = time.monotonic()
    if step is not None:
        with Progress("recomputed") as progress:
            report = replayer.step(step, progress=progress)
        print(report.text())
        print(f"{duration(time.monotonic() - started)}", file=sys.stderr)
        return report.exit_status
    worst = 0
    exact = total = 0
    with Progress("replayed") as progress:
        numbers = replayer.numbers()
        progress(0, len(numbers))
        for total, report in enumerate(replayer.all(), 1):
            exact += report.bit_exact
            verdict = "bit-exact" if report.bit_exact else report.text()
            progress.clear()
            print(f"step {report.step:>3} {report.purpose:<11} {verdict}", flush=True)
            progress(total, len(numbers))
            worst = max(worst, report.exit_status)
    print(f"{exact} of {total} steps bit-exact, {duration(time.monotonic() - started)}")
    if trimmed := replayer.trimmed():
        print(f"note  {trimmed}")
    return worst
