"""What `t1 task check` found out of a task, kept beside it: ``.checked/NAME.json`` in the directory that holds the task.

Guarantees: a task's own directory, and so its digest, is not touched; a record counts only for the digest it was made of; a
file is there whole or not at all, and several checks may write at once, each its own tasks' files.

Left to others: finding it out (``verify.task_check``), and what a run makes of it (``tasks.choice``, which keeps what it
used: a later check changes no run that has begun).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec

from t1actors.tasks.task import Task, TaskError

FOLDER = ".checked"
"""Hidden: no reader of a directory of tasks takes it for a task."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a task failed its check. ``part`` is one of ``verify.task_check.PARTS``; ``output`` is what the task's
    own solution or tests said."""

    part: str
    text: str
    output: str = ""


class CheckRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``expected`` are the ids of a clean run of the reference solution; ``baseline`` those of them that pass when nothing is
    done. ``flaky`` are ids that came out one way in one run and the other way in another; ``failed_runs`` of ``runs`` runs of
    the reference did not pass every expected assertion."""

    digest: str
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()
    flaky: tuple[str, ...] = ()
    runs: int = 0
    failed_runs: int = 0
    tests_digest: str = ""
    tools_digest: str = ""
    isolation: str = ""

    @property
    def passed(self) -> bool:
        return not self.problems

    @property
    def flake_rate(self) -> float:
        return self.failed_runs / self.runs if self.runs else 0.0


def record_file(directory: Path) -> Path:
    """Where the record of the task in ``directory`` is."""
    return directory.absolute().parent / FOLDER / f"{directory.absolute().name}.json"


def write_record(directory: Path, record: CheckRecord) -> Path:
    """Keep it; the file. Raises ``OSError``."""
    file = record_file(directory)
    file.parent.mkdir(exist_ok=True)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    fresh.replace(file)
    return file


def read_record(directory: Path) -> CheckRecord | None:
    """The record of the task in ``directory``, of whatever digest; None where there is none. Raises ``TaskError``."""
    file = record_file(directory)
    try:
        return msgspec.json.decode(file.read_bytes(), type=CheckRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise TaskError(
            f"{file}: not what `t1 task check` writes ({error}); delete it, or check the task again"
        ) from error


def as_checked(task: Task, expected: tuple[str, ...], baseline: tuple[str, ...]) -> Task:
    """``task`` with what a check found out: ids that it does not declare itself, and its baseline."""
    known = task.expected or expected
    declared = set(task.baseline)
    return replace(task, expected=known, baseline=tuple(name for name in known if name in declared | set(baseline)))
