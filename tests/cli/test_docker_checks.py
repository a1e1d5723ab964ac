"""What the doctor, and a run before it starts, say of Docker."""

from functools import partial

import trio

from t1actors.cli.checks import bad, sandbox_checks
from t1actors.cli.checks_docker import daemon_checks, docker_checks
from t1actors.config import DockerConfig, SandboxConfig
from tests.sandbox.remote import why_no_network


def verdicts(checks):
    return {check.name: check.verdict for check in checks}


def test_without_a_daemon_docker_is_an_absent_part_with_what_to_install(tmp_path):
    (check,) = trio.run(docker_checks, DockerConfig(socket=str(tmp_path / "none")))
    assert (check.verdict, check.group) == ("absent", "sandbox (docker)")
    assert "install" in check.fix.lower()


def test_a_run_that_wants_docker_is_refused_without_a_daemon(tmp_path):
    settings = SandboxConfig(backend="docker", docker=DockerConfig(socket=str(tmp_path / "none")))
    (check,) = bad(trio.run(partial(sandbox_checks, settings=settings)))
    assert "install" in check.fix.lower()


def test_an_image_that_the_daemon_lacks_is_named_with_how_to_make_it(docker_daemon):
    daemon, image = trio.run(docker_checks, DockerConfig(socket=docker_daemon.socket, image="nothing"))
    assert (daemon.verdict, image.verdict) == ("good", "absent")
    assert "nothing" in image.found
    assert "docker import - nothing" in image.fix


def test_where_tasks_have_images_of_their_own_the_daemon_alone_is_asked_for(docker_daemon, tmp_path):
    socket = docker_daemon.socket
    assert verdicts(trio.run(daemon_checks, DockerConfig(socket=socket, image="nothing"))) == {"daemon": "good"}
    assert verdicts(trio.run(daemon_checks, DockerConfig(socket=str(tmp_path / "none")))) == {"daemon": "bad"}


def test_a_whole_container_is_made_and_run_into_its_limits(docker_daemon):
    docker = DockerConfig(socket=docker_daemon.socket, image=docker_daemon.image)
    found = verdicts(trio.run(partial(docker_checks, docker, thorough=True)))
    assert found.pop("limit disk") == "warning"  # it is only watched
    assert found.pop("network") == ("warning" if why_no_network() else "good")
    assert set(found.values()) == {"good"}
    assert {"daemon", "create", "shell", "python3 in the sandbox", "seal", "limits tried", "kill"} <= found.keys()
