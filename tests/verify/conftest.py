"""Every grading test runs on each backend that can be had."""

from functools import partial

import pytest

from t1actors.config import DockerConfig, SandboxConfig
from tests.verify.trials import OnABench, on_a_bench


@pytest.fixture(scope="session")
def built_tools(tmp_path_factory):
    """Where tool layers are kept once they are built."""
    return tmp_path_factory.mktemp("tools")


@pytest.fixture(params=["namespaces", "docker"], name="on_a_bench")
def _on_a_bench(request, built_tools) -> OnABench:
    """``on_a_bench(test)`` runs ``test(bench)`` on real sandboxes of the backend at hand."""
    if request.param == "namespaces":
        request.getfixturevalue("host_makes_sandboxes")
        settings = SandboxConfig()
    else:
        daemon = request.getfixturevalue("docker_daemon")
        settings = SandboxConfig(backend="docker", docker=DockerConfig(socket=daemon.socket, image=daemon.image))
    return partial(on_a_bench, settings=settings, tools=built_tools)
