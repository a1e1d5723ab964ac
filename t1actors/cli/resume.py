"""`t1 run --resume`: what a stopped run is, and whether it can go on.

Guarantees: nothing is written here, but that a run whose machine was lost is first cut to what fits together; a run that
cannot or must not go on is refused by name: a directory without a run, one that another process is running, one that has
ended, one whose configuration or tasks are not what it began with. Another version of the code or of the libraries is said
and not refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from t1kernels.hashes import differences, known

from t1actors.cli.errors import CommandFailed
from t1actors.cli.preflight import check_unchanged
from t1actors.config import Config, from_toml, read_text
from t1actors.log.archive import excerpt_of
from t1actors.log.file_writer import Durability
from t1actors.log.filelog import FileLog
from t1actors.observe.follow import SUPERVISOR, open_run, read_run
from t1actors.observe.quantities import duration
from t1actors.observe.view import RunView
from t1actors.observe.warning_signs import listed
from t1actors.runtime.chronicle import check_configuration
from t1actors.runtime.clock import system_clock
from t1actors.runtime.fingerprint import code_version, environment
from t1actors.runtime.loss import settle_after_loss
from t1actors.runtime.numerics import FIXES, KernelsLacking, first_start
from t1actors.runtime.trim_note import trim_note
from t1actors.tasks.choice import read_choice


@dataclass(frozen=True)
class StoppedRun:
    """A run that can go on. ``kernels``: those it was begun with; ``recorded``: what decided its bits there; ``lines`` say
    from where, and what is different now."""

    run_dir: Path
    config: Config
    sessions: int
    kernels: str
    recorded: Mapping[str, str]
    lines: tuple[str, ...]

    def lacking(self, error: KernelsLacking) -> CommandFailed:
        """Why it cannot go on here."""
        instead = f"; the {error.instead} kernels can, but give other bits" if error.instead else ""
        fix = FIXES.get(error.wanted, "use the environment that it was begun in")
        return CommandFailed(
            f"{self.run_dir} was begun with the {error.wanted} kernels, which cannot be used here ({error.why}){instead}: "
            f"{fix}, or go on where the run was begun"
        )

    def other_bits(self, here: Mapping[str, str]) -> list[str]:
        """A line where operations give other bits here than where the run was begun."""
        found = differences(self.recorded, here) if self.recorded else []
        if not found:
            return []
        return [
            f"{len(found)} of {known(self.recorded)} operations give other bits here than where the run was begun: "
            f"{listed(found)}; it goes on, steps replay bit for bit where they were made, and the report says so"
        ]


def find_stopped_run(given: Path) -> StoppedRun:
    """The run in the directory ``given`` (a link such as ``latest`` is followed).

    Raises ``CommandFailed``, ``NoRun``, ``RunDirectoryError`` and the log's errors.
    """
    run_dir = shown(given.resolve())
    log = open_run(run_dir)
    holder = log.holder(SUPERVISOR)
    if holder is not None:
        raise CommandFailed(
            f"{run_dir} is being run by process {holder.pid}; wait for it, or stop it (Ctrl-C there, or `kill {holder.pid}`)"
        )
    refuse_excerpt(run_dir, "be resumed")
    trim_note(run_dir)  # or it is found damaged in the middle of it
    # First, or what the machine's loss left can't be read: of a young run perhaps not even its configuration, in the log.
    settle_after_loss(run_dir, system_clock().boot_id, _durability(run_dir, log))
    view = read_run(run_dir)
    if view.finished:
        raise CommandFailed(
            f"{run_dir} is finished already; report at {run_dir / 'report.md'} (`t1 report {run_dir}` makes it again)"
        )
    if view.failed_reason:
        raise CommandFailed(f"{run_dir} has failed and cannot go on: {view.failed_reason}; begin a new run")
    config = _config(run_dir, view)
    check_configuration(log, run_dir, config)
    choice = read_choice(run_dir)
    if choice is not None:
        check_unchanged(config, choice)
    lines = (*_where(view), *_different(view))
    return StoppedRun(run_dir, config, view.sessions, view.kernels, view.numerics, lines)


def refuse_excerpt(run_dir: Path, what: str) -> None:
    """Raises ``CommandFailed`` when the directory holds no more of its run than one step; ``NoteDamaged``."""
    step = excerpt_of(run_dir)
    if step is not None:
        raise CommandFailed(
            f"{run_dir} cannot {what}: it is the archive of step {step} (`t1 log export --step {step}`) and holds only what "
            f"that step needs; `t1 replay {run_dir} --step {step}` replays it"
        )


def shown(path: Path) -> Path:
    """``path`` as it is typed here: relative where it lies below the working directory."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _durability(run_dir: Path, log: FileLog) -> Durability:
    path = run_dir / "config.toml"
    begun = first_start(log)
    if begun is not None:
        return from_toml(begun.config_toml).run.log_durability
    return from_toml(read_text(path), origin=str(path)).run.log_durability if path.exists() else "machine"


def _config(run_dir: Path, view: RunView) -> Config:
    path = run_dir / "config.toml"
    if path.exists() or view.config is None:
        return from_toml(read_text(path), origin=str(path))
    return view.config  # the log has it too


def _where(view: RunView) -> list[str]:
    sessions = f"{view.sessions} earlier session{'s' if view.sessions != 1 else ''}"
    number = min((s.step for s in view.steps.values() if s.done_ns is None), default=len(view.steps))
    total = view.planned_steps
    place = f"step {number}" + (f" of {total}" if total is not None else "")
    if total is not None and number >= total:
        place = "the end: every step is done"
    return [f"resuming at {place}, {sessions}, {duration(view.seconds)} so far"]


def _different(view: RunView) -> list[str]:
    """What the run was made with and is not made with now."""
    lines: list[str] = []
    code = code_version()
    if view.code_version not in ("", code):
        lines.append(
            f"the code is another version: {code}, the last session had {view.code_version}; "
            "replay of earlier steps may differ"
        )
    now = environment()
    changes = [
        f"{key} {view.environment[key]} -> {now[key]}" for key in now if view.environment.get(key, now[key]) != now[key]
    ]
    if changes:
        lines.append(f"the environment changed: {', '.join(changes)}; replay of earlier steps may differ")
    return lines
