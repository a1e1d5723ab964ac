"""Whether Docker can make sandboxes here: an optional part, so nothing found here keeps a run from starting."""

from __future__ import annotations

from dataclasses import replace

from t1actors.cli.checks import Check, grouped, sandbox_checks
from t1actors.config import DockerConfig, SandboxConfig
from t1actors.sandbox.docker.reconcile import DaemonClient
from t1actors.sandbox.errors import SandboxUnavailable

GROUP = "sandbox (docker)"
MAKE_AN_IMAGE = (
    "have the daemon pull one, or make one: debootstrap --variant=minbase --include=python3,procps bookworm base "
    "&& tar -C base -c . | docker import - {image}"
)


async def docker_checks(docker: DockerConfig, *, thorough: bool = False) -> list[Check]:
    """Asks the daemon, then makes one whole sandbox of its stand-in image; what is missing is named."""
    client = DaemonClient(docker.socket, "t1-probe-")
    try:
        async with client.running():
            daemon = Check("daemon", "good", f"{await client.version()} at {docker.socket}")
            missing = await _image_missing(client, docker.image)
    except SandboxUnavailable as error:
        return grouped(GROUP, [Check("daemon", "absent", error.reason, error.fix)])
    if missing:
        fix = MAKE_AN_IMAGE.format(image=docker.image)
        return grouped(GROUP, [daemon, Check("stand-in image", "absent", missing, fix)])
    made = await sandbox_checks(thorough=thorough, settings=SandboxConfig(backend="docker", docker=docker))
    return [*grouped(GROUP, [daemon]), *(replace(c, verdict="warning") if c.verdict == "bad" else c for c in made)]


async def daemon_checks(docker: DockerConfig) -> list[Check]:
    """Whether the daemon answers: all that can be said where tasks have images of their own."""
    client = DaemonClient(docker.socket, "t1-probe-")
    try:
        async with client.running():
            return grouped(GROUP, [Check("daemon", "good", f"{await client.version()} at {docker.socket}")])
    except SandboxUnavailable as error:
        return grouped(GROUP, [Check("daemon", "bad", error.reason, error.fix)])


async def _image_missing(client: DaemonClient, image: str) -> str:
    try:
        await client.image_id(image)
    except SandboxUnavailable as error:
        return error.reason
    return ""
