"""Which tasks a command line names, and in which sandboxes they are meant to run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from t1actors.cli.errors import CommandFailed, WrongUsage
from t1actors.config import SandboxConfig, preset_names, resolve
from t1actors.tasks.reader import task_folders

TaskDirectories = Annotated[
    Path, Parameter(help="A task's folder, or a directory of such folders; several may be given.")
]
DEFAULT_PRESET = "demo"
TaskPreset = Annotated[
    str | None,
    Parameter(help=f"Whose sandboxes: one of {', '.join(preset_names())}; {DEFAULT_PRESET}, as of a run, by default."),
]


def tasks_at(directories: Sequence[Path]) -> list[Path]:
    """The folder of every task that ``directories`` name. Raises ``CommandFailed``, ``WrongUsage``."""
    if not directories:
        raise WrongUsage("name a task's folder, or a directory of tasks")
    found: list[Path] = []
    for directory in directories:
        if not directory.is_dir():
            what = "not a directory" if directory.exists() else "no such directory"
            raise CommandFailed(f"{directory}: {what}; name a task's folder, or a directory of such folders")
        if _is_task(directory):
            found.append(directory.absolute())
            continue
        inner = task_folders(directory.absolute())
        if not inner:
            raise CommandFailed(f"{directory}: no task: it has neither a task.toml nor a folder")
        found += inner
    return list(dict.fromkeys(found))


def sandbox_config(preset: str | None, sets: Sequence[str]) -> SandboxConfig:
    """The sandboxes of a run with these settings. Raises ``ConfigError``."""
    return resolve(preset=preset or DEFAULT_PRESET, sets=sets).config.sandbox


def _is_task(directory: Path) -> bool:
    return any((directory / name).exists() for name in ("task.toml", "task.yaml", "instruction.md"))
