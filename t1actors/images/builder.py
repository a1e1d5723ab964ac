"""Who makes the images that tasks start from: the store of namespaces' sandboxes, or a Docker daemon (``images.daemon``).

Guarantees: whoever builds, the Dockerfile is read and refused by the same parser, and what goes wrong has the same errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from t1actors.images.build import build_task, missing_images
from t1actors.images.steps import NO_NETWORK, BuildNetwork
from t1actors.images.store import ImageStore
from t1actors.tasks.recipe import Recipe
from t1actors.tasks.task import Task


class ImageBuilder(Protocol):
    """Makes tasks' images, named by their digests."""

    async def image_of(self, task: Task) -> str:
        """The image of the task's environment, built where it is not there yet.

        Raises:
            BuildFailed: the task's own fault.
            ImageMissing: it is built from an image that is not there.
            SandboxUnavailable: nothing can be built here (now).
        """
        ...

    async def has(self, image: str) -> bool:
        """Whether that image is still there."""
        ...

    def lacking(self, recipe: Recipe) -> list[str]:
        """Of each image that it is built from and that is not there: its name, and what to do. Raises ``TaskError``."""
        ...


@dataclass(frozen=True)
class StoreBuilder:
    """Builds into ``store``, without a daemon. ``host_base``: the host's own /usr stands in for every image; ``network``:
    what RUN instructions have."""

    store: ImageStore
    host_base: bool
    network: BuildNetwork = NO_NETWORK

    async def image_of(self, task: Task) -> str:
        return (await build_task(self.store, task, host_base=self.host_base, network=self.network)).digest

    async def has(self, image: str) -> bool:
        return self.store.resolve(image) is not None

    def lacking(self, recipe: Recipe) -> list[str]:
        if self.host_base:
            return []
        return [
            f"{image} is not in {self.store.root}: `t1 image import {image} SOURCE` imports it, or the host's own /usr "
            "stands in with --set sandbox.host_base=true"
            for image in missing_images(self.store, recipe)
        ]
