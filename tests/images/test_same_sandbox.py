"""Grading in the agent's own sandbox where that stands on an image: with the tool layer where the image has its Python, and
by name without."""

import subprocess
from pathlib import Path

import anyio
import pytest

from t1actors.images.build import build_task
from t1actors.images.sources import import_source
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.docker.backend import DockerBackend
from t1actors.sandbox.interface import Limits, RunRequest, SandboxSpec
from t1actors.verify.command import NO_TOOLS
from t1actors.verify.live import WARNING
from t1actors.verify.verifier import Verifier
from tests.docker_daemon import docker_of
from tests.images.roots import PROGRAMS, make_root
from tests.verify.samples import IDS, WORK, expecting, sample_task

OWN_REPORT = r"""# Says pytest, and does without.
[ "$(cat /app/word)" = hi ] && s=passed || s=failed
echo "{\"results\": {\"tool\": {\"name\": \"sh\"}, \"summary\": {\"tests\": 1, \"passed\": 1, \"failed\": 0, \"pending\": 0,
\"skipped\": 0, \"other\": 0, \"start\": 0, \"stop\": 0}, \"tests\": [{\"name\": \"word\", \"status\": \"$s\",
\"duration\": 0}]}}" > /logs/verifier/ctrf.json
"""


class Place:
    """A backend, and two images of it: ``bare`` has no Python, ``full`` the host's."""

    def __init__(self, backend, bare, full):
        self.backend, self.bare, self.full = backend, bare, full

    def grade(self, task, base, commands):
        async def main():
            async with self.backend.running():
                spec = SandboxSpec(key="t", workdir="/app", base=base, limits=Limits(memory_mb=512))
                made = await self.backend.create(spec)
                try:
                    for number, command in enumerate(commands):
                        await self.backend.run("t", RunRequest(key=f"{number}", command=command, limit_s=20.0))
                    verifier = Verifier(self.backend)
                    return await verifier.grade_live(task, "t", key="live", isolation=made.isolation, base=base)
                finally:
                    await self.backend.kill("t")

        return anyio.run(main, backend="trio")


@pytest.fixture(scope="module")
def bare_root(tmp_path_factory) -> Path:
    return make_root(tmp_path_factory.mktemp("root") / "bare", programs=(*PROGRAMS, "tar", "base64", "gzip"))


@pytest.fixture
def on_namespaces(host_makes_sandboxes, store, bare_root, tmp_path):
    bare = import_source(store, bare_root)
    task = sample_task(tmp_path / "stands in")
    full = anyio.run(lambda: build_task(store, task, host_base=True), backend="trio").digest
    return Place(NamespaceBackend(tmp_path / "s", name="test", images=store), bare, full)


@pytest.fixture
def on_docker(docker_daemon, bare_root, tmp_path):
    client = docker_of(f"unix://{docker_daemon.socket}")
    packed = subprocess.run(["tar", "-C", str(bare_root), "-c", "."], check=True, capture_output=True).stdout
    bare = client("import", "-", "t1-tests-bare", data=packed).strip()
    full = client("image", "inspect", "-f", "{{.Id}}", docker_daemon.image).strip()
    backend = DockerBackend(tmp_path / "s", name="test", socket=docker_daemon.socket, image=docker_daemon.image)
    return Place(backend, bare, full)


@pytest.fixture(params=["on_namespaces", "on_docker"])
def place(request):
    return request.getfixturevalue(request.param)


def test_tests_in_pytest_are_run_by_the_tool_layer_where_the_image_has_its_python(place, tmp_path):
    verdict = place.grade(sample_task(tmp_path / "task"), place.full, WORK)
    assert (verdict.outcome, verdict.channel, verdict.passed) == ("graded", "plugin", 3), verdict.detail
    assert verdict.tool_layer_digest
    assert verdict.warnings == (WARNING,)
    assert verdict.tools_digest == place.full.removeprefix("sha256:")


def test_without_that_python_they_are_not_graded_and_the_reason_is_named(place, tmp_path):
    task = sample_task(tmp_path / "task", toml=expecting(*IDS))
    verdict = place.grade(task, place.bare, WORK)
    assert verdict.outcome in ("no_report", "verifier_crash")
    assert NO_TOOLS in verdict.detail
    assert verdict.tool_layer_digest == ""


def test_tests_that_do_without_it_are_graded_and_the_verdict_says_how(place, tmp_path):
    task = sample_task(tmp_path / "task")
    (task.tests_dir / "test.sh").write_text(OWN_REPORT)
    verdict = place.grade(task, place.bare, ["echo hi > word"])
    assert (verdict.outcome, verdict.passed) == ("graded", 1), verdict.detail
    assert verdict.warnings == (NO_TOOLS, WARNING)
