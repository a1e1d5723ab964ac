"""What a task is, once read: a frozen value that the pool, the verifier and the trainer's reports share.

It holds where things are and what was declared, not the bytes: environment and tests are read when they are needed
(``tasks.layers``), and ``digest`` says which bytes those must be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from t1actors.tasks.grading import GradingRules
from t1actors.tasks.network import NetworkNeeds
from t1actors.tasks.recipe import Recipe


class TaskError(Exception):
    """A task that cannot be used: says which file, which key or line, and what would be right."""


@dataclass(frozen=True)
class Copy:
    """A Dockerfile's COPY: ``sources`` are relative to the task's environment directory, ``target`` is absolute. With
    ``into`` the target is a directory that receives files by their names; a source directory's *contents* are
    copied."""

    sources: tuple[str, ...]
    target: str
    into: bool


@dataclass(frozen=True)
class Environment:
    """What a Dockerfile of the supported subset says. ``base`` is the image named by FROM.

    ``copies`` and ``env`` say all that comes on top of it, unless ``takes_a_build``: then they are empty and only
    ``recipe`` does."""

    base: str
    workdir: str
    copies: tuple[Copy, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    recipe: Recipe | None = None

    @property
    def takes_a_build(self) -> bool:
        return self.recipe is not None and self.recipe.takes_a_build


@dataclass(frozen=True)
class Task:
    """A task as its directory says it; see the module."""

    name: str
    path: Path
    digest: str
    """blake3 over every file of the task's directory: paths, executable bits, contents."""
    instruction: str
    environment: Environment
    tests_dir: Path
    solution_dir: Path | None
    expected: tuple[str, ...]
    """Ids of the assertions that a complete report has. Empty: none were declared."""
    control: str
    """Id of the assertion that passes whenever the tests ran at all; it is never counted. Empty: the task has none."""
    families: tuple[str, ...]
    level: int
    """Difficulty of a built-in task; 0 for others."""
    sub_goals: int
    agent_timeout_s: float | None
    verifier_timeout_s: float
    build_timeout_s: float
    cpus: float | None
    memory_mb: int | None
    storage_mb: int | None
    network: NetworkNeeds
    unknown_keys: tuple[str, ...]
    """Dotted keys of task.toml that mean nothing here: kept and reported, not refused."""
    unused_keys: tuple[str, ...] = ()
    """Dotted keys of task.toml that mean something to Harbor and change nothing here."""
    baseline: tuple[str, ...] = ()
    """Those of the expected assertions that pass when nothing is done (``tasks.record``): no reward for them, and one that
    fails takes one from what passed."""
    accept: tuple[str, ...] = ()
    """What `t1 task check` finds and the task means to be so (``settings.ACCEPTABLE``)."""
    programs: tuple[str, ...] = ()
    """Programs that the task needs; looked for where the host's own /usr stands in for its image."""
    verifier_env: tuple[tuple[str, str], ...] = ()
    solution_env: tuple[tuple[str, str], ...] = ()
    grading: GradingRules = field(default_factory=GradingRules)

    @property
    def workdir(self) -> str:
        return self.environment.workdir

    @property
    def graded_paths(self) -> tuple[str, ...]:
        """What of the agent's file system the verifier gets to see."""
        return self.grading.paths or (self.workdir,)
