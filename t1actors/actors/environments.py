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
        self._store = store
        self._built: dict[str, str] = {}
        self._building: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def of(self, task: Task, image: str = "") -> Start:
        """Where a sandbox for ``task`` starts; ``image`` is that of an earlier sandbox of the same trial.

        Raises:
            BuildFailed: the environment does not build, by the task's own doing.
            ImageMissing: it is built from an image that is not in the store.
            TaskError: its files cannot be read, or the run does not give it its environment or network.
        """
        if reason := why_no_environment(task, self._config) or why_no_network(task, self._config):
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
            if digest is None or self._store.resolve(digest) is None:
                config = self._config
                network = BuildNetwork(on=config.build_network, refused_addresses=config.refused_addresses)
                built = await build_task(self._store, task, host_base=self._host_base, network=network)
                digest = self._built[task.digest] = built.digest
        return digest
