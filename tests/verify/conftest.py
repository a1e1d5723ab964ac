"""The backends that trials are worked on and graded in."""

import pytest

from t1actors.config import DockerConfig, SandboxConfig


@pytest.fixture(params=["namespaces", "docker"])
def settings(request: pytest.FixtureRequest) -> SandboxConfig:
    """A run's settings for each kind of sandbox; Docker's are of the tests' own daemon."""
    if request.param == "namespaces":
        request.getfixturevalue("host_makes_sandboxes")
        return SandboxConfig()
    daemon = request.getfixturevalue("docker_daemon")
    return SandboxConfig(backend="docker", docker=DockerConfig(socket=daemon.socket, image=daemon.image))
