"""What of a task goes into a sandbox, as layers.

Guarantees: the agent's sandbox is given ``environment_layers`` and nothing else of the task (no tests, no solution); the
same task gives the same bytes. A Dockerfile's COPY becomes a layer; modes are kept, owners become the sandbox's root.
"""

from __future__ import annotations

import os
import posixpath
import stat
from pathlib import Path

from t1actors.sandbox.archive import File, archive_of_directory, archive_of_files
from t1actors.sandbox.errors import ArchiveError
from t1actors.sandbox.interface import Layer
from t1actors.tasks.task import Copy, Task, TaskError

TESTS_AT = "/tests"
_MODES = {"/tmp": 0o1777, "/var/tmp": 0o1777, "/root": 0o700}
"""Laying files out in a directory sets its mode too; these must stay as they are."""


def environment_layers(task: Task, *, outside: str = "") -> tuple[Layer, ...]:
    """The writable layers that a trial's sandbox starts from; with ``outside``, those not at or below that directory.
    Raises ``TaskError`` when a file cannot be read."""
    directory = task.path / "environment"
    copies = [
        copy for copy in task.environment.copies if not outside or not f"{copy.target}/".startswith(f"{outside}/")
    ]
    return tuple(_copied(directory / source, copy) for copy in copies for source in copy.sources)


def tests_layer(task: Task) -> Layer:
    """The tests, read-only at /tests: for grading sandboxes. Raises ``TaskError`` when a file cannot be read."""
    return Layer(archive=_directory(task.tests_dir), at=TESTS_AT, read_only=True)


def _copied(source: Path, copy: Copy) -> Layer:
    if source.is_dir():
        return Layer(archive=_directory(source), at=copy.target)
    try:
        file = File(source.read_bytes(), stat.S_IMODE(os.stat(source).st_mode))
    except OSError as error:
        raise TaskError(
            f"{source}: cannot be read: {error.strerror}; a COPY in the task's Dockerfile names it"
        ) from error
    at, name = (copy.target, source.name) if copy.into else posixpath.split(copy.target)
    return Layer(archive=archive_of_files({name: file}, directory_mode=_MODES.get(at, 0o755)), at=at)


def _directory(path: Path) -> bytes:
    try:
        return archive_of_directory(path)
    except ArchiveError as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error
