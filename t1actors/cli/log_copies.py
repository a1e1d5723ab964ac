"""`t1 log export`, `salvage` and `sweep`: what a run's files are worth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from t1actors.cli.errors import CommandFailed, WrongUsage
from t1actors.cli.log import RunDirectory
from t1actors.cli.numbers import Whole
from t1actors.cli.progress import Progress
from t1actors.log.archive import excerpt_of
from t1actors.log.blobs import FileBlobs
from t1actors.log.filelog import FileLog
from t1actors.log.salvage import salvage as salvage_run
from t1actors.log.sweep import sweep as sweep_blobs
from t1actors.observe.follow import open_run
from t1actors.observe.quantities import size
from t1actors.runtime.loss import Grounds, cut_lost_turns
from t1actors.runtime.snapshots import stranded


def export(
    run: RunDirectory,
    archive: Annotated[Path, Parameter(help="The file to write, such as step12.tar or step12.tar.gz.")],
    *,
    step: Annotated[
        Whole | None, Parameter(help="Only what replaying this step needs; it is replayed to find out.")
    ] = None,
) -> None:
    """Pack a run, or what one of its steps rests on, into an archive that a colleague can replay.

    The run may be going on: the archive holds what fits together of it now. An archive of a step holds the whole log and the
    blobs that its replay opened.

    Example: `t1 log export runs/latest step12.tar.gz --step 12`
    """
    open_run(run)
    if not archive.parent.is_dir():
        raise WrongUsage(f"{archive}: there is no directory {archive.parent}")
    if step is not None:
        print("loading torch", file=sys.stderr, flush=True)
    from t1actors.replay.export import ExportRefused
    from t1actors.replay.export import export as write

    try:
        with Progress("log", count=size) as progress:
            written = write(run, archive, step=step, progress=progress)
    except ExportRefused as error:
        raise CommandFailed(str(error)) from error
    exported = written.exported
    print(f"{archive}: {size(written.size_bytes)}, {exported.events:,} events, {written.blobs:,} blobs")
    print(f"digest {exported.digest}")
    if written.replayed is not None:
        verdict = (
            "bit-exact"
            if written.replayed.bit_exact
            else "not bit-exact here, which the archive's receiver can look into"
        )
        print(f"step {step} was replayed from these blobs: {verdict}")
    command = f"t1 replay {exported.run} " + ("--all" if step is None else f"--step {step}")
    print(f"next     tar xf {archive.name} && {command}")


def salvage(
    run: Annotated[Path, Parameter(help="The damaged run's directory. It is only read.")],
    to: Annotated[Path, Parameter(help="The new run directory to make.")],
) -> int:
    """Make a run of what is whole in a damaged one.

    Each journal is kept up to its first bad or missing frame, as far as all journals fit together, and up to turns that a
    resumed run would need and of which the routing is gone; what is behind that lies beside it, as it was. Exit status 0:
    nothing was missing. 1: something was, and each part is named.

    Example: `t1 log salvage runs/damaged runs/saved`
    """
    if not (run / "log").is_dir():
        raise CommandFailed(f"{run}: no run here (it has no log/ folder); `t1 runs` lists the runs there are")
    if to.exists():
        raise CommandFailed(f"{to} exists already: name a new directory")
    if to.resolve().is_relative_to(run.resolve()):
        raise CommandFailed(f"{to} lies in the run itself: name a directory outside of it")
    with Progress("blobs") as progress:
        saved = salvage_run(run, to, ground=Grounds(FileBlobs(run / "blobs")), progress=progress)
    asides = [*saved.asides, *cut_lost_turns(to / "log", FileBlobs(to / "blobs"))]
    for aside in asides:
        behind = f"{size(aside.size_bytes)} with at least {aside.events:,} events"
        kept = f"kept up to event {aside.from_sequence - 1:,}" if aside.from_sequence else "nothing of it could be kept"
        print(f"journal {aside.journal}: {kept}; the rest, {behind}, is in {aside.path(to / 'log')} ({aside.reason})")
    for blob in saved.bad_blobs:
        print(f"left out: {blob}")
    if not asides and not saved.bad_blobs:
        print(f"{to}: a whole copy; nothing was damaged")
        return 0
    print(f"{to}: look at it with `t1 log check {to}`; {_what_goes_on(run, to)}")
    return 1


def _what_goes_on(run: Path, to: Path) -> str:
    step = excerpt_of(to)
    if step is not None:
        return f"it holds only what step {step} needs, as the archive did that it was made of, and cannot be resumed"
    log = FileLog(to / "log")
    before = FileLog(run / "log")
    actors = stranded(log, {n: {j for s in before.snapshots(n) for j in s.positions} for n in log.journals()})
    if not actors:
        return f"`t1 run --resume {to}` goes on with it, and does again what is missing"
    return (
        f"it cannot be resumed: the run was trimmed, so its actors can only go on from their snapshots, and no snapshot of "
        f"{', '.join(actors)} fits what is left. What is left can be read and replayed; to go on, use a copy of the run"
    )


def sweep(
    run: RunDirectory,
    *,
    dry_run: Annotated[
        bool, Parameter(help="Only say what would be deleted.", negative=(), show_default=False)
    ] = False,
) -> None:
    """Delete blobs that no event names: left over by crashes, and by cuts of the log.

    Works on a run that is at rest.

    Example: `t1 log sweep runs/latest --dry-run`
    """
    swept = sweep_blobs(open_run(run), FileBlobs(run / "blobs"), delete=not dry_run)
    verb = "would be deleted" if dry_run else "deleted"
    print(
        f"{swept.blobs:,} blobs that no event names and {swept.other_files:,} files that are no blobs {verb}: "
        f"{size(swept.size_bytes)}; {swept.kept:,} blobs are named and stay"
    )
