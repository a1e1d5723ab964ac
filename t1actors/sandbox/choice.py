"""Which backend a run's configuration asks for: the one place that knows them all."""

from __future__ import annotations

from pathlib import Path

from t1actors.config import SandboxConfig
from t1actors.sandbox.backend import NamespaceBackend, ShimBackend
from t1actors.sandbox.docker.backend import DockerBackend
from t1actors.sandbox.interface import BaseImages


def make_backend(config: SandboxConfig, root: Path, *, name: str, images: BaseImages | None = None) -> ShimBackend:
    """A backend with its sandboxes in the directory ``root``, not running yet; ``name`` is what to call it in errors.
    ``images``: where those of namespaces find images; a Docker daemon has its own."""
    if config.backend == "docker":
        return DockerBackend(root, name=name, socket=config.docker.socket, image=config.docker.image)
    return NamespaceBackend(root, name=name, images=images)
