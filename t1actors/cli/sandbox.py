"""`t1 sandbox`: what is left of sandboxes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
from cyclopts import Parameter

from t1actors.cli.errors import FAILED, CommandFailed, WrongUsage
from t1actors.config import ConfigError, from_toml
from t1actors.sandbox.docker.reconcile import DaemonClient
from t1actors.sandbox.errors import SandboxUnavailable
from t1actors.sandbox.interface import Leftover
from t1actors.sandbox.reaper import holds_sandboxes, made_by_docker, reap
from t1actors.sandbox.wire import group_prefix

OF_A_RUN = ("sandboxes", "graders")
"""Where a run's pool and verifier keep theirs."""


@dataclass(frozen=True)
class _Root:
    """A directory of sandboxes, as its backend was given it. ``socket``: of the Docker daemon with their containers. Empty:
    none has, or none is known, for the reason ``unknown``."""

    path: Path
    socket: str = ""
    unknown: str = ""


def reap_command(
    directory: Annotated[
        Path, Parameter(help="A run's directory, a directory of runs, or one of sandboxes that a program made.")
    ] = Path("runs"),
    *,
    dry_run: Annotated[
        bool, Parameter(help="Only say what would be removed.", negative=(), show_default=False)
    ] = False,
    docker_socket: Annotated[
        str,
        Parameter(help="The Docker daemon that has the sandboxes' containers; of a run's its configuration says it."),
    ] = "",
) -> int:
    """Remove what is left of sandboxes that nobody owns any more: processes, mounts, control groups, containers, directories.

    A sandbox that lives is never touched: its pool finds it again, or its lease ends it. May run beside live runs; those
    of another user need root. Exit status 0: nothing is left. 1: something is, in a dry run too, or a Docker daemon could
    not be asked.

    Example: `t1 sandbox reap runs/latest --dry-run`
    """
    counts: Counter[str] = Counter()
    stuck = 0
    unasked = 0
    for root in _roots(directory, docker_socket):
        unknown = root.unknown
        if not root.socket and made_by_docker(root.path):  # asked before what says so is removed
            unknown = unknown or "no configuration says which Docker daemon has them"
        try:
            found = reap(root.path, dry_run=dry_run)
        except PermissionError as error:
            raise CommandFailed(f"{error.filename}: {error.strerror}: `sudo t1 sandbox reap {directory}`") from error
        try:
            found += _containers(root, dry_run=dry_run) if root.socket else []
        except SandboxUnavailable as error:
            unknown = error.reason
        if unknown:
            unasked += 1
            print(f"containers of {root.path}: not looked for: {unknown}; --docker-socket names another daemon")
        for leftover in found:
            counts[leftover.kind] += 1
            stuck += bool(leftover.trouble)
            outcome = "would be removed" if dry_run else leftover.trouble or "removed"
            print(f"{leftover.kind} {leftover.name}: {outcome}")
    if not counts:
        print("nothing that nobody owns" if not unasked else "nothing else that nobody owns")
        return FAILED if unasked else 0
    verb = "would be removed" if dry_run else f"removed, {stuck} not" if stuck else "removed"
    print(f"{', '.join(f'{count} x {kind}' for kind, count in sorted(counts.items()))}: {verb}")
    return FAILED if dry_run or stuck or unasked else 0


def _containers(root: _Root, *, dry_run: bool) -> list[Leftover]:
    """Raises ``SandboxUnavailable``."""

    async def ask() -> list[Leftover]:
        daemon = DaemonClient(root.socket, group_prefix(str(root.path)), away_s=0.0)
        async with daemon.running():
            return await daemon.reap(root.path, dry_run=dry_run)

    return anyio.run(ask, backend="trio")


def _roots(directory: Path, socket: str) -> list[_Root]:
    """The directories of sandboxes that are meant. ``socket`` comes before what runs say. Raises ``WrongUsage``."""
    of_run = partial(_of_run, socket=socket)
    if not directory.exists() and directory.parent.is_dir() and directory.name in OF_A_RUN:
        return [of_run(directory.parent, directory.absolute())]
    if not directory.is_dir():
        raise WrongUsage(f"{directory}: no such directory; name a run's, or one in which runs are")
    runs = [directory, *(path for path in sorted(directory.iterdir()) if path.is_dir() and not path.is_symlink())]
    found = [of_run(run, run.resolve() / name) for run in runs for name in OF_A_RUN if (run / name).is_dir()]
    if found or _is_run(directory):
        return found
    if not holds_sandboxes(directory):
        raise WrongUsage(f"{directory}: no runs are in it, and something else than sandboxes is")
    return [of_run(directory.parent, directory.absolute())]


def _of_run(run: Path, root: Path, *, socket: str) -> _Root:
    """``run`` may be no run's directory: then nothing is known."""
    if socket:
        return _Root(root, socket)
    file = run / "config.toml"
    try:
        sandbox = from_toml(file.read_text(), origin=str(file)).sandbox
    except FileNotFoundError:
        return _Root(root)
    except ConfigError as error:
        return _Root(root, unknown=str(error))
    return _Root(root, sandbox.docker.socket if sandbox.backend == "docker" else "")


def _is_run(directory: Path) -> bool:
    return (directory / "log").is_dir()
