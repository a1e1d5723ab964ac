"""`t1 log trim`: give back the disk that old steps take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from t1actors.cli.errors import CommandFailed
from t1actors.cli.log import RunDirectory
from t1actors.cli.numbers import Whole, at_least
from t1actors.cli.resume import refuse_excerpt
from t1actors.observe.follow import open_run
from t1actors.observe.quantities import size
from t1actors.runtime.trim_note import trim_note
from t1actors.runtime.trimming import Plan, Trimmer


def trim(
    run: RunDirectory,
    *,
    keep_steps: Annotated[Whole, Parameter(help="So many of the last finished steps stay replayable, or a few more.")],
    dry_run: Annotated[
        bool, Parameter(help="Only say what would be deleted.", negative=(), show_default=False)
    ] = False,
) -> None:
    """Delete what only a run's older steps need: their trials in the log, their trajectories, states and other blobs.

    Works on a run that is at rest; run.keep_steps does the same in a run that goes on. What was trained and measured in every
    step stays, and so does all that is needed to replay the kept steps or to resume the run.

    Example: `t1 log trim runs/latest --keep-steps 10 --dry-run`
    """
    at_least(1, "--keep-steps", keep_steps)
    log = open_run(run)
    refuse_excerpt(run, "be trimmed")
    with log.held_at_rest():
        plan = _trim(run, keep_steps, dry_run=dry_run)
    for name, why in sorted(plan.held.items()):
        print(f"journal {name}: more of it is old enough, and stays: {why}")


def _trim(run: Path, keep_steps: int, *, dry_run: bool) -> Plan:
    trimmer = Trimmer(run, at_rest=True)
    try:
        plan = trimmer.plan(keep_steps)
        before = trim_note(run)
        if plan.empty:
            print(f"nothing to delete: {before.text(plan.last_step)}")
        else:
            if not dry_run:
                trimmer.carry_out(plan)
            verb = "would be deleted" if dry_run else "deleted"
            print(
                f"{len(plan.blobs):,} blobs ({size(plan.blob_bytes)}) and {size(plan.segment_bytes)} of journals {verb}"
            )
            for name, beginning in sorted(plan.beginnings.items()):
                print(f"journal {name}: kept from event {beginning.trimmed.first_sequence:,} on")
            print(plan.note.text(plan.last_step))
    except OSError as error:
        raise CommandFailed(f"{run}: {error}; nothing was harmed: `t1 log trim` goes on where it stopped") from error
    finally:
        trimmer.close()
    return plan
