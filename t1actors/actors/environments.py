"""What a task's sandboxes start from: its image, built when first needed, or what stands in for it and the task's files.

Guarantees: one build at a time for a task, however many trials wait for it; what is built is named by its digest, and a trial
whose image is known gets that one again. Failures are not remembered: whoever counts them decides when to stop asking.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import anyio

from t1actors.config import SandboxConfig
from t1actors.images.builder import ImageBuilder, StoreBuilder
from t1actors.images.daemon import DaemonBuilder
from t1actors.images.store import ImageStore
from t1actors.sandbox.interface import HOST, Layer
from t1actors.tasks.layers import environment_layers
from t1actors.tasks.task import Task


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


def image_builder(config: SandboxConfig, store: ImageStore) -> ImageBuilder:
    """Who builds the run's images: ``store`` for namespaces, or the Docker daemon."""
    if config.backend == "docker":
        stand_in = config.docker.image if config.host_base else ""
        return DaemonBuilder(config.docker.socket, stand_in=stand_in, pull=config.docker.pull)
    return StoreBuilder(store, host_base=config.host_base)


class Environments:
    """See the module."""

    def __init__(self, config: SandboxConfig, store: ImageStore) -> None:
        self._host_base = config.host_base
        self._builder = image_builder(config, store)
        self._built: dict[str, str] = {}
        self._building: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def of(self, task: Task, image: str = "") -> Start:
        """Where a sandbox for ``task`` starts; ``image`` is that of an earlier sandbox of the same trial.

        Raises:
            BuildFailed: the environment does not build, by the task's own doing.
            ImageMissing: it is built from an image that is not there.
            TaskError: its files cannot be read.
            SandboxUnavailable: nothing can be built here (now).
        """
        if self._host_base and not task.environment.takes_a_build:
            return Start(HOST, environment_layers(task), task.environment.env)
        return Start(image or await self._image(task), (), task.environment.env)

    async def _image(self, task: Task) -> str:
        async with self._building[task.digest]:
            digest = self._built.get(task.digest)
            if digest is None or not await self._builder.has(digest):
                digest = self._built[task.digest] = await self._builder.image_of(task)
        return digest
