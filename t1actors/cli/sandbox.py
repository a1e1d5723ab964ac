"""`t1 sandbox`: what is left of sandboxes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from t1actors.cli.errors import FAILED, CommandFailed, WrongUsage
from t1actors.sandbox.reaper import holds_sandboxes, reap

OF_A_RUN = ("sandboxes", "graders")
"""Where a run's pool and verifier keep theirs."""


def reap_command(
    directory: Annotated[
        Path, Parameter(help="A run's directory, a directory of runs, or one of sandboxes that a program made.")
    ] = Path("runs"),
    *,
    dry_run: Annotated[
        bool, Parameter(help="Only say what would be removed.", negative=(), show_default=False)
    ] = False,
) -> int:
    """Remove what is left of sandboxes that nobody owns any more: processes, mounts, control groups, directories.

    A sandbox that lives is never touched: its pool finds it again, or its lease ends it. May run beside live runs; those
    of another user need root. Exit status 0: nothing is left. 1: something is, in a dry run too.

    Example: `t1 sandbox reap runs/latest --dry-run`
    """
    counts: Counter[str] = Counter()
    stuck = 0
    for root in _roots(directory):
        try:
            found = reap(root, dry_run=dry_run)
        except PermissionError as error:
            raise CommandFailed(f"{error.filename}: {error.strerror}: `sudo t1 sandbox reap {directory}`") from error
        for leftover in found:
            counts[leftover.kind] += 1
            stuck += bool(leftover.trouble)
            outcome = "would be removed" if dry_run else leftover.trouble or "removed"
            print(f"{leftover.kind} {leftover.name}: {outcome}")
    if not counts:
        print("nothing that nobody owns")
        return 0
    verb = "would be removed" if dry_run else f"removed, {stuck} not" if stuck else "removed"
    print(f"{', '.join(f'{count} x {kind}' for kind, count in sorted(counts.items()))}: {verb}")
    return FAILED if dry_run or stuck else 0


def _roots(directory: Path) -> list[Path]:
    """The directories of sandboxes that are meant, each as its backend was given it. Raises ``WrongUsage``."""
    if not directory.exists() and directory.parent.is_dir() and directory.name in OF_A_RUN:
        return [directory.absolute()]
    if not directory.is_dir():
        raise WrongUsage(f"{directory}: no such directory; name a run's, or one in which runs are")
    runs = [directory, *(path for path in sorted(directory.iterdir()) if path.is_dir() and not path.is_symlink())]
    found = [run.resolve() / name for run in runs for name in OF_A_RUN if (run / name).is_dir()]
    if found or _is_run(directory):
        return found
    if not holds_sandboxes(directory):
        raise WrongUsage(f"{directory}: no runs are in it, and something else than sandboxes is")
    return [directory.absolute()]


def _is_run(directory: Path) -> bool:
    return (directory / "log").is_dir()
