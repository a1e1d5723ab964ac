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
from t1actors.images.steps import BuildNetwork
from t1actors.images.store import ImageStore
from t1actors.sandbox.interface import HOST, Layer, NetworkName
from t1actors.tasks.layers import environment_layers
from t1actors.tasks.task import Task, TaskError


@dataclass(frozen=True)
class Start:
    """The fields of a ``SandboxSpec`` that a task decides. ``image`` is the base's digest; empty where that is the host."""

    base: str
    layers: tuple[Layer, ...]
    env: tuple[tuple[str, str], ...]
    network: NetworkName = "none"

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
        return DaemonBuilder(config.docker.socket, stand_in, pull=config.docker.pull, network=config.build_network)
    network = BuildNetwork(on=config.build_network, refused_addresses=config.refused_addresses)
    return StoreBuilder(store, host_base=config.host_base, network=network)


def why_no_network(task: Task, config: SandboxConfig) -> str:
    """Why the task has not the network that it asks for; empty: it asks for none, or has it."""
    if task.network.agent == "hosts":
        return "it asks for a network that reaches named hosts only (network_mode = allowlist), and none can be held to that"
    if task.network.agent == "internet" and config.network == "none":
        return "it asks for a network (network_mode or allow_internet): --set sandbox.network=tasks gives it one"
    if task.network.verifier and (task.grading.mode == "fresh-root" or task.network.agent == "none"):
        return "its verifier asks for a network (verifier.network_mode), and there is none while grading"
    return ""


class Environments:
    """See the module."""

    def __init__(self, config: SandboxConfig, store: ImageStore) -> None:
        self._config = config
        self._host_base = config.host_base
        self._builder = image_builder(config, store)
        self._built: dict[str, str] = {}
        self._building: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def of(self, task: Task, image: str = "") -> Start:
        """Where a sandbox for ``task`` starts; ``image`` is that of an earlier sandbox of the same trial.

        Raises:
            BuildFailed: the environment does not build, by the task's own doing.
            ImageMissing: it is built from an image that is not there.
            TaskError: its files cannot be read, or the run does not give it its network.
            SandboxUnavailable: nothing can be built here (now).
        """
        if reason := why_no_network(task, self._config):
            raise TaskError(f"task {task.name}: {reason}")
        if self._host_base and not task.environment.takes_a_build:
            base, layers = HOST, environment_layers(task)
        else:
            base, layers = image or await self._image(task), ()
        network = "none" if task.network.agent == "none" else "internet"
        return Start(base, layers, task.environment.env, network)

    async def _image(self, task: Task) -> str:
        async with self._building[task.digest]:
            digest = self._built.get(task.digest)
            if digest is None or not await self._builder.has(digest):
                digest = self._built[task.digest] = await self._builder.image_of(task)
        return digest
