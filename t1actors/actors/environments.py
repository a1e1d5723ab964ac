"""What a task's sandboxes start from: its image, built when first needed, or the host's own /usr and the task's files.

Guarantees: one build at a time for a task, however many trials wait for it; what is built is named by its digest, and a trial
whose image is known gets that one again. Failures are not remembered: whoever counts them decides when to stop asking.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import anyio

from t1actors.config import SandboxConfig
from t1actors.images.build import build_task
from t1actors.images.store import ImageStore
from t1actors.sandbox.interface import HOST, Layer
from t1actors.tasks.layers import environment_layers
from t1actors.tasks.task import Task, TaskError


@dataclass(frozen=True)
class Start:
    """The fields of a ``SandboxSpec`` that a task decides. ``image`` is the base's digest; empty where that is the host."""

    base: str
    layers: tuple[Layer, ...]
    env: tuple[tuple[str, str], ...]

    @property
    def image(self) -> str:
        return "" if self.base == HOST else self.base


def image_store(config: SandboxConfig) -> ImageStore:
    """The run's store."""
    return ImageStore(Path(config.images).expanduser())


def why_no_environment(task: Task, config: SandboxConfig) -> str:
    """Why the backend cannot have what the task starts from, whatever the store holds; empty: it can."""
    if config.backend != "docker":
        return ""
    if not config.host_base:
        return (
            f"its image {task.environment.base} cannot be had: what is built here no Docker daemon has; sandbox.docker.image "
            "stands in for it with --set sandbox.host_base=true, or --set sandbox.backend=namespaces builds it"
        )
    if task.environment.takes_a_build:
        return (
            "its Dockerfile has to be run, and what is built here no Docker daemon has: --set sandbox.backend=namespaces, "
            "or `docker build` it yourself and name the result in --set sandbox.docker.image"
        )
    return ""


class Environments:
    """See the module."""

    def __init__(self, config: SandboxConfig, store: ImageStore) -> None:
        self._config = config
        self._host_base = config.host_base
        self._store = store
        self._built: dict[str, str] = {}
        self._building: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def of(self, task: Task, image: str = "") -> Start:
        """Where a sandbox for ``task`` starts; ``image`` is that of an earlier sandbox of the same trial.

        Raises:
            BuildFailed: the environment does not build, by the task's own doing.
            ImageMissing: it is built from an image that is not in the store.
            TaskError: its files cannot be read, or the backend cannot have its environment.
        """
        if reason := why_no_environment(task, self._config):
            raise TaskError(f"task {task.name}: {reason}")
        if self._host_base and not task.environment.takes_a_build:
            return Start(HOST, environment_layers(task), task.environment.env)
        return Start(image or await self._image(task), (), task.environment.env)

    async def _image(self, task: Task) -> str:
        async with self._building[task.digest]:
            digest = self._built.get(task.digest)
            if digest is None or self._store.resolve(digest) is None:
                built = await build_task(self._store, task, host_base=self._host_base)
                digest = self._built[task.digest] = built.digest
        return digest
