"""Checking and grading of tasks whose image is built: the same ground, and the image's own programs."""

from pathlib import Path

import anyio
import pytest

from t1actors.actors.environments import Environments
from t1actors.cli.task_check import check_folder
from t1actors.config import SandboxConfig
from t1actors.images.build import build_task
from t1actors.images.store import ImageStore
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.interface import Limits, RunRequest, SandboxSpec
from t1actors.tasks.reader import read_task
from t1actors.tasks.record import CheckRecord
from t1actors.verify.command import NO_TOOLS
from t1actors.verify.verdict import Verdict
from t1actors.verify.verifier import Verifier

DOCKERFILE = """FROM little:1
ENV PATH=/opt/own:/usr/bin
WORKDIR /app
RUN mkdir -p /opt/own && cp /usr/bin/cat /opt/own/show && echo built > given
"""
TEST_SH = r"""# Says pytest, so a tool layer is offered.
if [ "$(show /app/answer)" = 42 ] && [ "$(show /app/given)" = built ]; then s=passed; p=1; f=0; else s=failed; p=0; f=1; fi
echo "{\"results\": {\"tool\": {\"name\": \"sh\"}, \"summary\": {\"tests\": 1, \"passed\": $p, \"failed\": $f, \"pending\": 0,
\"skipped\": 0, \"other\": 0, \"start\": 0, \"stop\": 0}, \"tests\": [{\"name\": \"answer\", \"status\": \"$s\",
\"duration\": 0}]}}" > /logs/verifier/ctrf.json
"""


def write_task(directory: Path, dockerfile: str = DOCKERFILE) -> Path:
    files = {
        "task.toml": 'version = "1.0"\n[metadata.t1]\nexpected = ["answer"]\n',
        "instruction.md": "Answer.\n",
        "environment/Dockerfile": dockerfile,
        "tests/test.sh": TEST_SH,
        "solution/solve.sh": "echo 42 > answer; show given\n",
    }
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def checked(folder: Path, store: ImageStore, **config: bool) -> CheckRecord:
    sandbox = SandboxConfig(images=str(store.root), **config)

    async def main() -> CheckRecord:
        backend = NamespaceBackend(folder.parent / "sandboxes", name="check", images=store)
        async with backend.running():
            environments = Environments(sandbox, store)
            return await check_folder(folder, backend, key="check", runs=1, sandbox=sandbox, environments=environments)

    return anyio.run(main, backend="trio")


@pytest.mark.usefixtures("little")
def test_a_check_works_and_grades_on_the_tasks_own_image(
    host_makes_sandboxes: None, store: ImageStore, tmp_path: Path
) -> None:
    record = checked(write_task(tmp_path / "mine"), store)
    assert (record.problems, record.expected, record.baseline) == ((), ("answer",), ())


@pytest.mark.usefixtures("little")
def test_a_dockerfile_that_fails_is_the_checks_finding(
    host_makes_sandboxes: None, store: ImageStore, tmp_path: Path
) -> None:
    record = checked(write_task(tmp_path / "mine", "FROM little:1\nWORKDIR /app\nRUN echo no; exit 3\n"), store)
    assert [problem.part for problem in record.problems] == ["build"]
    assert "exit status 3" in record.problems[0].text


@pytest.mark.usefixtures("little")
def test_tests_get_the_tool_layer_only_where_the_image_has_its_python(
    host_makes_sandboxes: None, store: ImageStore, tmp_path: Path
) -> None:
    async def graded(folder: Path, *, host_base: bool) -> Verdict:
        task = read_task(folder)
        base = (await build_task(store, task, host_base=host_base)).digest
        backend = NamespaceBackend(tmp_path / "sandboxes", name="grade", images=store)
        async with backend.running():
            await backend.create(SandboxSpec(key="work", workdir="/app", base=base))
            await backend.run("work", RunRequest(key="1", command="echo 42 > answer", limit_s=20.0))
            layer = await backend.seal("work")
            await backend.kill("work")
            return await Verifier(backend, limits=Limits()).grade(task, layer, key="grade", base=base)

    def verdict(folder: Path, *, host_base: bool) -> Verdict:
        async def main() -> Verdict:
            return await graded(folder, host_base=host_base)

        return anyio.run(main, backend="trio")

    without = verdict(write_task(tmp_path / "mine"), host_base=False)
    assert (without.outcome, without.passed, without.warnings) == ("graded", 1, (NO_TOOLS,))
    assert without.tool_layer_digest == ""
    on_host = write_task(tmp_path / "other", DOCKERFILE.replace("little:1", "debian:99"))
    given = verdict(on_host, host_base=True)
    assert (given.outcome, given.passed, given.warnings) == ("graded", 1, ())
    assert given.tool_layer_digest
