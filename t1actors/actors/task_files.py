"""The run's tasks on disk: a directory the user named, or the run's own, where built-in tasks are written when first needed.

Reading is repeated for every trial on purpose: the digest that SandboxReady records is of the files as they were then. A
directory's task must be what it was when the run chose it.
"""

from __future__ import annotations

from pathlib import Path

from t1actors.config import TasksConfig
from t1actors.runtime.actor import Unrecoverable
from t1actors.tasks.choice import changed, read_choice
from t1actors.tasks.pools import BUILTIN
from t1actors.tasks.reader import read_task
from t1actors.tasks.record import as_checked
from t1actors.tasks.task import Task, TaskError
from t1actors.tasks.write import ensure_tasks


class TaskFiles:
    """The run's tasks by name: built-in ones are written when first needed."""

    def __init__(self, config: TasksConfig, run_dir: Path) -> None:
        """Raises ``Unrecoverable``: the run's choice of tasks cannot be read."""
        self._builtin = config.source == BUILTIN
        self._directory = run_dir / "tasks" if self._builtin else Path(config.source)
        try:
            choice = None if self._builtin else read_choice(run_dir)
        except TaskError as error:
            raise Unrecoverable(str(error)) from error
        self._chosen = {task.name: task for task in choice.usable} if choice is not None else {}

    def read(self, name: str) -> Task:
        """The task called ``name``.

        Raises ``TaskError``; ``Unrecoverable`` for a chosen task that is not what it was: every trial of it would be another.
        """
        if self._builtin:
            ensure_tasks(self._directory, [name])
        chosen = self._chosen.get(name)
        if chosen is None:
            return read_task(self._directory / name)
        try:
            task = read_task(self._directory / name)
        except TaskError as error:
            raise Unrecoverable(changed(name, str(error))) from error
        if task.digest != chosen.digest:
            raise Unrecoverable(
                changed(name, f"its files have the digest {task.digest[:16]}, not {chosen.digest[:16]}")
            )
        return as_checked(task, chosen.expected, chosen.baseline)
