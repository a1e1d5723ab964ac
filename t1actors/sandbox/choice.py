"""What a run's configuration asks for: which backend (the one place that knows them all), and the limits of a sandbox."""

from __future__ import annotations

from pathlib import Path

from t1actors.config import SandboxConfig
from t1actors.sandbox.backend import NamespaceBackend, ShimBackend
from t1actors.sandbox.docker.backend import DockerBackend
from t1actors.sandbox.interface import BaseImages, Limits


def make_backend(config: SandboxConfig, root: Path, *, name: str, images: BaseImages | None = None) -> ShimBackend:
    """A backend with its sandboxes in the directory ``root``, not running yet; ``name`` is what to call it in errors.
    ``images``: where those of namespaces find images; a Docker daemon has its own."""
    if config.backend == "docker":
        docker = config.docker
        return DockerBackend(root, name=name, socket=docker.socket, image=docker.image, needs_image=config.host_base)
    return NamespaceBackend(root, name=name, images=images)


def limits_of(config: SandboxConfig, *, command_s: float | None = None) -> Limits:
    """A sandbox's limits; ``command_s`` caps its commands, None as ``Limits`` does by itself."""
    given = {} if command_s is None else {"command_s": command_s}
    return Limits(
        memory_mb=config.memory_mb,
        disk_mb=config.disk_mb,
        processes=config.processes,
        output_bytes=config.output_bytes,
        **given,
    )
