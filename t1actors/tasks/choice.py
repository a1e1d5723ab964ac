"""Which tasks of a directory a run draws from: decided once, before it begins, and kept as ``tasks.json`` in its directory.

Guarantees: a run's pools come from this file and not from what the directory holds later; its digest is in RunStarted, so
another choice is refused. Each task is named with the digest of its files, so a task that changed since is noticed.

Left to others: which tasks are usable (``cli.preflight``), and how they are cut into pools (``tasks.pools``).
"""

from __future__ import annotations

from pathlib import Path

import blake3
import msgspec

from t1actors.tasks.task import TaskError

CHOICE = "tasks.json"


class ChosenTask(msgspec.Struct, frozen=True, kw_only=True):
    """``digest`` is over every file of the task (``reader.task_digest``), as it was then; ``expected`` and ``baseline`` are
    what `t1 task check` had found out of it (``tasks.record``)."""

    name: str
    digest: str
    expected: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()


class LeftOutTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that the run cannot use, and why."""

    name: str
    reason: str


class TaskChoice(msgspec.Struct, frozen=True, kw_only=True):
    """``source`` is the directory; both lists are by name."""

    source: str
    usable: tuple[ChosenTask, ...]
    left_out: tuple[LeftOutTask, ...] = ()

    @property
    def names(self) -> list[str]:
        return [task.name for task in self.usable]


def write_choice(run_dir: Path, choice: TaskChoice) -> None:
    """Write the file, whole or not at all."""
    fresh = run_dir / f".{CHOICE}.new"
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(choice), indent=1) + b"\n")
    fresh.replace(run_dir / CHOICE)


def read_choice(run_dir: Path) -> TaskChoice | None:
    """The choice of the run in ``run_dir``; None where there is none (built-in tasks, or a run begun without one). Raises
    ``TaskError``."""
    path = run_dir / CHOICE
    try:
        return msgspec.json.decode(path.read_bytes(), type=TaskChoice)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise TaskError(f"{path}: not a choice of tasks ({error}); restore the file") from error


def choice_digest(run_dir: Path) -> str:
    """blake3 of the file; empty where there is none."""
    try:
        return blake3.blake3((run_dir / CHOICE).read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def changed(name: str, how: str) -> str:
    """What is said of a chosen task that is not what it was."""
    return (
        f"task {name} is not what it was when the run began ({how}); restore it and resume the run, or begin a new one with "
        "the tasks as they are"
    )
