"""The run's tasks on disk: a directory the user named, or the run's own, where built-in tasks are written when first needed.

Reading is repeated for every trial on purpose: the digest that SandboxReady records is of the files as they were then.
"""

from __future__ import annotations

from pathlib import Path

from t1actors.config import TasksConfig
from t1actors.tasks.pools import BUILTIN
from t1actors.tasks.reader import read_task
from t1actors.tasks.task import Task
from t1actors.tasks.write import ensure_tasks


class TaskFiles:
    def __init__(self, config: TasksConfig, run_dir: Path) -> None:
        self._builtin = config.source == BUILTIN
        self._directory = run_dir / "tasks" if self._builtin else Path(config.source)

    def read(self, name: str) -> Task:
        """The task called ``name``. Raises ``TaskError``."""
        if self._builtin:
            ensure_tasks(self._directory, [name])
        return read_task(self._directory / name)
