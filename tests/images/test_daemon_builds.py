"""Tasks' images built by a Docker daemon: from the Dockerfile to the verdict, as with namespaces."""

import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import pytest

from t1actors.actors.environments import Environments
from t1actors.cli.task_check import check_folder
from t1actors.config import DockerConfig, SandboxConfig
from t1actors.events import TrialFailed
from t1actors.images.daemon import TAG, DaemonBuilder
from t1actors.images.errors import BuildFailed, ImageMissing, RegistryError
from t1actors.images.store import ImageStore
from t1actors.sandbox.docker.backend import DockerBackend
from t1actors.sandbox.errors import SandboxRefused
from t1actors.sandbox.interface import RunRequest, SandboxSpec
from t1actors.tasks.reader import read_task
from t1actors.tasks.task import TaskError
from tests.actors.test_pool_on_images import Played, play
from tests.docker_daemon import base_image, docker_of, own_daemon
from tests.images.roots import make_root
from tests.images.test_graded_tasks import DOCKERFILE, write_task


class Here:
    """The daemon of the tests, with ``little:1`` in it."""

    def __init__(self, daemon, tmp_path):
        self.daemon = daemon
        self.client = docker_of(f"unix://{daemon.socket}")
        self.tmp_path = tmp_path

    def builder(self, **options):
        return DaemonBuilder(self.daemon.socket, **options)

    def task(self, dockerfile, files=(), toml=""):
        folder = write_task(self.tmp_path / "mine", dockerfile)
        for name, text in dict(files).items():
            (folder / "environment" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "environment" / name).write_text(text)
        if toml:
            (folder / "task.toml").write_text(toml)
        return read_task(folder)

    def build(self, dockerfile, files=(), toml="", **options):
        """The image's id."""
        return anyio.run(self.builder(**options).image_of, self.task(dockerfile, files, toml), backend="trio")

    def said(self, image, command, **spec):
        """What a command says in a sandbox on the image, and how that is isolated."""

        async def main():
            backend = DockerBackend(
                self.tmp_path / "sandboxes", name="test", socket=self.daemon.socket, image=self.daemon.image
            )
            async with backend.running():
                try:
                    made = await backend.create(SandboxSpec(key="one", base=image, **spec))
                    result = await backend.run("one", RunRequest(key="1", command=command, limit_s=20.0))
                finally:
                    await backend.kill("one")
                return result.text, made.isolation

        return anyio.run(main, backend="trio")


@pytest.fixture(scope="session")
def little_image(docker_daemon, tmp_path_factory):
    """A base without Python."""
    root = make_root(tmp_path_factory.mktemp("root") / "little")
    tar = tmp_path_factory.mktemp("tar") / "little.tar"
    subprocess.run(["tar", "-C", str(root), "-cf", str(tar), "."], check=True)
    docker_of(f"unix://{docker_daemon.socket}")("import", str(tar), "little:1")


@pytest.fixture
def here(docker_daemon, little_image, tmp_path):
    return Here(docker_daemon, tmp_path)


def test_every_kind_of_instruction_gives_what_it_gives_without_a_daemon(here):
    dockerfile = """ARG WORD=hello
FROM little:1 AS made
RUN mkdir /out && echo made > /out/one
FROM little:1
ARG WORD
ARG TARGETARCH
ENV GREETING="$WORD there" \\
    MORE=1
WORKDIR /app
COPY . .
COPY --chmod=755 tool /usr/local/bin/
COPY --from=made /out/one "with space/"
COPY <<'END' notes.txt
as $it is
END
RUN <<END
echo "$GREETING $TARGETARCH" > said
echo $((1 << 3)) >> said
END
CMD ["bash"]
"""
    files = {"tool": "#!/bin/sh\necho tool\n", "given.txt": "given\n", "hidden.log": "x", ".dockerignore": "*.log\n"}
    image = here.build(dockerfile, files)
    said, isolation = here.said(
        image, "cat said given.txt 'with space/one' notes.txt; tool; ls; stat -c '%a %u' given.txt", workdir="/app"
    )
    lines = said.splitlines()
    assert lines[0].startswith("hello there a")
    assert lines[1:6] == ["8", "given", "made", "as $it is", "tool"]
    assert "hidden.log" not in lines
    assert lines[-1] == "644 0"
    assert isolation.base == image
    assert here.client("image", "inspect", "-f", "{{.Id}}", image).strip() == image


def test_it_is_built_once_and_again_when_a_file_or_the_image_below_changes(here):
    dockerfile = "FROM little:1\nWORKDIR /app\nCOPY given .\nRUN cat /proc/sys/kernel/random/uuid > unique\n"
    first = here.build(dockerfile, {"given": "1"})
    assert here.build(dockerfile, {"given": "1"}) == first
    assert here.build(dockerfile, {"given": "2"}) != first
    assert first in here.client("image", "ls", "--no-trunc", "-q", TAG)


def test_a_run_that_fails_is_named_with_its_line_status_and_last_words(here):
    with pytest.raises(BuildFailed) as caught:
        here.build("FROM little:1\nWORKDIR /app\nRUN echo before\nRUN echo broken; exit 4\n")
    assert "Dockerfile, line 4: RUN echo broken; exit 4: exit status 4\nbroken" in str(caught.value)
    assert (caught.value.step, caught.value.output) == ("RUN echo broken; exit 4", "broken")
    assert here.client("ps", "-aq") == ""


def test_a_run_has_no_network_and_is_told_so(here):
    with pytest.raises(BuildFailed, match="this build has none: allow one"):
        here.build(
            f"FROM {here.daemon.image}\nWORKDIR /app\n"
            "RUN python3 -c 'import urllib.request as u; u.urlopen(\"http://example.com\")'\n"
        )


@pytest.fixture
def on_a_bridge(little_image, tmp_path):
    """A daemon whose containers have a network, and the address of the host on it."""
    link, address = "t1-tests-bridge", "198.18.78.1"
    subprocess.run(["ip", "link", "add", link, "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "addr", "add", f"{address}/24", "dev", link], check=True)
        subprocess.run(["ip", "link", "set", link, "up"], check=True)
        with own_daemon(bridge=link) as daemon:
            tar = tmp_path / "base.tar"
            tar.write_bytes(base_image())
            docker_of(f"unix://{daemon.socket}")("import", str(tar), "little:1")
            yield Here(daemon, tmp_path), address
    finally:
        subprocess.run(["ip", "link", "del", link], check=True)


@pytest.mark.slow
def test_a_run_has_the_daemons_network_where_the_run_allows_it(on_a_bridge, tmp_path):
    here, address = on_a_bridge
    (tmp_path / "wanted").write_text("fetched")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer((address, 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        fetch = f"FROM little:1\nWORKDIR /app\nRUN curl -sSf http://{address}:{server.server_port}/wanted -o /wanted\n"
        try:
            with pytest.raises(BuildFailed, match=r"exit status 7\ncurl: \(7\) Failed to connect"):
                here.build(fetch)
            assert here.said(here.build(fetch, network=True), "cat /wanted")[0] == "fetched"
        finally:
            server.shutdown()


def test_a_build_out_of_its_time_is_ended_and_leaves_no_container(here):
    with pytest.raises(BuildFailed, match=r"line 3: RUN sleep 600: not done within the 3 s .*build_timeout_sec"):
        here.build(
            "FROM little:1\nWORKDIR /app\nRUN sleep 600\n",
            {"large": "x" * 3_000_000},
            toml='version = "1.0"\n[environment]\nbuild_timeout_sec = 3\n',
        )
    until(lambda: here.client("ps", "-aq") == "")


def until(condition):
    waited = threading.Event()
    for _ in range(600):
        if condition():
            return
        waited.wait(0.05)
    raise AssertionError("not within thirty seconds")


@pytest.mark.parametrize(
    ("dockerfile", "says"),
    [
        ("FROM little:1\nWORKDIR /app\nCOPY gone* /x/\n", r"line 3: COPY gone\* /x/: COPY failed"),
        ("FROM little:1\nWORKDIR /app\nCOPY --chmod=755 --from=little:1 /etc /x/\n", "--chmod with --from"),
        ("FROM little:1\nENV A=1\nWORKDIR /app\nCOPY <<E /x\n$A\nE\n", "variables in a COPY's heredoc"),
    ],
)
def test_what_cannot_be_built_is_named_by_its_line(here, dockerfile, says):
    with pytest.raises(BuildFailed, match=says):
        here.build(dockerfile)


def test_what_the_parser_refuses_is_refused_before_the_daemon_is_asked(here):
    with pytest.raises(TaskError, match="line 2: VOLUME is not supported"):
        here.task("FROM little:1\nVOLUME /x\n")


def test_an_image_that_the_daemon_lacks_is_named_with_what_to_do_and_not_pulled(here):
    with pytest.raises(ImageMissing, match=r"none:1 is not in the Docker daemon .*`docker pull none:1`"):
        here.build("FROM none:1\nWORKDIR /app\nRUN true\n")
    recipe = here.task("FROM none:1\nWORKDIR /app\nRUN true\n").environment.recipe
    [told] = here.builder().lacking(recipe)
    assert told.startswith("none:1 is not in the Docker daemon")
    assert here.builder(stand_in=here.daemon.image).lacking(recipe) == []


def test_a_pull_that_the_run_allows_and_no_registry_answers_is_the_registrys_fault(here):
    with pytest.raises(RegistryError, match=r"pulling 127\.0\.0\.1:1/none:1: .*connection refused"):
        here.build("FROM 127.0.0.1:1/none:1\nWORKDIR /app\nRUN true\n", pull=True)


def test_a_tasks_docker_image_is_the_daemons_own(here):
    toml = 'version = "1.0"\n[environment]\ndocker_image = "little:1"\n[metadata.t1]\nexpected = ["answer"]\n'
    image = here.build("FROM scratch\n", toml=toml)
    assert image == here.client("image", "inspect", "-f", "{{.Id}}", "little:1").strip()


def test_what_stands_in_for_an_image_is_built_on_and_recorded(here):
    image = here.build("FROM debian:99\nWORKDIR /app\nRUN echo made > made\n", stand_in="little:1")
    said, isolation = here.said(image, "cat made", workdir="/app")
    assert said == "made\n"
    assert "another image stands in for debian:99" in isolation.warnings


def test_an_image_without_bash_is_refused_by_name(here):
    image = here.build("FROM little:1\nWORKDIR /app\nRUN rm /usr/bin/bash\n")
    with pytest.raises(SandboxRefused, match="has no bash; build one on it that has"):
        here.said(image, "true")


def test_a_working_directory_behind_a_link_of_the_image_stays_a_link(here):
    image = here.build("FROM little:1\nRUN mkdir /ground && ln -s /ground /app\nWORKDIR /app\nRUN echo here > it\n")
    said, _ = here.said(image, "cat it; readlink /app; pwd -P", workdir="/app")
    assert said == "here\n/ground\n/ground\n"


def test_a_check_works_and_grades_on_the_image_that_the_daemon_built(here):
    folder = write_task(here.tmp_path / "mine", DOCKERFILE)
    sandbox = SandboxConfig(backend="docker", docker=DockerConfig(socket=here.daemon.socket, image=here.daemon.image))

    async def main():
        backend = DockerBackend(
            here.tmp_path / "sandboxes", name="check", socket=here.daemon.socket, image=here.daemon.image
        )
        async with backend.running():
            environments = Environments(sandbox, ImageStore(Path("unused")))
            return await check_folder(folder, backend, key="check", runs=1, sandbox=sandbox, environments=environments)

    record = anyio.run(main, backend="trio")
    assert (record.problems, record.expected, record.baseline) == ((), ("answer",), ())


@pytest.mark.parametrize(
    ("dockerfile", "cause"),
    [
        ("FROM little:1\nWORKDIR /app\nRUN exit 4\n", "BuildFailed"),
        ("FROM none:1\nWORKDIR /app\n", "ImageMissing"),
        ("FROM little:1\nWORKDIR /app\nRUN rm /usr/bin/bash\n", "SandboxRefused"),
        ("FROM little:1\nWORKDIR /app\nRUN echo made > built.txt\n", ""),
    ],
)
def test_a_run_on_docker_names_the_image_of_a_trial_or_why_there_is_none(here, dockerfile, cause):
    sets = ["backend=docker", f"docker.socket={here.daemon.socket}", f"docker.image={here.daemon.image}"]

    async def main(played):
        event = await played.create("s0.t0")
        if cause:
            assert isinstance(event, TrialFailed)
            assert (event.cause, event.creating) == (cause, True)
        else:
            assert event.image == event.isolation.base
            assert event.image.startswith("sha256:")
            assert "made" in await played.run("s0.t0", 0, "cat built.txt")
            assert (await played.seal("s0.t0")).image == event.image

    played = Played(here.tmp_path, *(f"sandbox.{pair}" for pair in sets))
    played.write_task(dockerfile)
    played.opened("s0.t0")
    play(played, main)
