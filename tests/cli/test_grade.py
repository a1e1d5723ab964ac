"""`t1 grade`: recorded trials are graded again from the log and the blobs, and compared with what is recorded."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import anyio
import msgspec
import pytest

from t1actors.actors.verdicts import verdict_on, verifier_of
from t1actors.actors.verifier import graded
from t1actors.cli.main import main
from t1actors.config import Config, TasksConfig, digest, to_toml
from t1actors.events import AssertionResult, RunStarted, SandboxSealed, encode
from t1actors.log.blobs import FileBlobs
from t1actors.log.filelog import FileLog
from t1actors.log.interface import CommitHead
from t1actors.payloads import pack
from t1actors.replay.regrade import Regrader
from t1actors.sandbox.archive import archive_of_files, find_file
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.interface import SandboxBackend
from t1actors.tasks.generate import make_task
from t1actors.tasks.reader import read_task
from t1actors.tasks.write import write_task
from t1actors.verify.live import Tested
from t1actors.verify.verdict import Verdict
from tests.verify.samples import IDS, expecting, sample_task

HALF = archive_of_files({"app/out": b"hi\n"})
"""What a trial at the sample task left that did half of it."""
BULKY = archive_of_files({"app/out": b"hi\n", "app/bulk": bytes(range(256)) * 200})
"""The same, too large to ride in the event."""


class Recorded:
    """A run's log with sealed and graded trials, as the pool and the verifier write them."""

    def __init__(self, directory: Path, config: Config):
        self.directory, self.config = directory, config
        self.blobs = FileBlobs(directory / "blobs")
        self.sealed: dict[str, SandboxSealed] = {}
        self.events = [
            RunStarted(
                run=directory.name,
                config_digest=digest(config),
                config_toml=to_toml(config),
                code_version="",
                environment={},
            )
        ]

    def seal(self, trial: str, task: str, layer: bytes, tested: Tested | None = None) -> SandboxSealed:
        kept = None if tested is None else pack(self.blobs, msgspec.msgpack.encode(tested))
        event = SandboxSealed(trial=trial, task=task, layer=pack(self.blobs, layer), seconds=0.1, tested=kept)
        self.sealed[trial] = event
        self.events.append(event)
        return event

    def grade(self, task, *trials: str, **changed: object) -> None:
        """Graded by the real verifier; ``changed`` fields are recorded otherwise."""

        async def run() -> None:
            backend = NamespaceBackend(self.directory / "g", name="g")
            async with backend.running():
                verifier = verifier_of(self.config, backend, cache=self.directory / "tools")
                for trial in trials:
                    verdict = await verdict_on(self.sealed[trial], task, verifier, self.blobs, key=trial)
                    event = graded(self.sealed[trial], verdict, self.config.verify.reward_scale)
                    self.events.append(msgspec.structs.replace(event, **changed))

        anyio.run(run)

    def write(self) -> Path:
        writer = FileLog(self.directory / "log").open_writer("supervisor")
        writer.append(CommitHead(), [encode(event) for event in self.events])
        writer.close()
        return self.directory


@pytest.fixture(scope="session")
def built_tools(tmp_path_factory):
    """Tool layers, as a run keeps them; built once for all of these tests."""
    return tmp_path_factory.mktemp("tools")


@pytest.fixture
def own(tmp_path, built_tools, host_makes_sandboxes):
    """A run over a directory of tasks with one task that pytest grades, and that task."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tools").symlink_to(built_tools)
    task = sample_task(tmp_path / "tasks", toml=expecting(*IDS))
    config = replace(Config(), tasks=TasksConfig(source=str(tmp_path / "tasks")))
    return Recorded(tmp_path / "run", config), task


def said(capsys, *arguments) -> tuple[int, str]:
    status = main(["grade", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


@pytest.mark.parametrize("layer", [HALF, BULKY], ids=["inline", "a blob"])
def test_a_recorded_trial_gets_the_same_verdict_again(own, capsys, layer):
    run, task = own
    assert (run.seal("s0.t0", "sample", layer).layer.inline is None) == (layer is BULKY)
    run.grade(task, "s0.t0")
    status, text = said(capsys, run.write(), "--trial", "s0.t0")
    assert status == 0, text
    assert f"passed   {IDS[0]}" in text
    assert f"FAILED   {IDS[1]}" in text
    assert "verdict  graded, 1 of 3, reward 0.05 (fresh-root, from plugin)" in text
    assert "asked    uvx: pytest==8.4.1: pytest" in text
    assert "recorded the same verdict" in text
    assert "note" not in text


def test_what_differs_is_listed_assertion_by_assertion(own, capsys):
    run, task = own
    run.seal("s0.t0", "sample", HALF)
    run.grade(task, "s0.t0")
    flipped = tuple(msgspec.structs.replace(a, passed=not a.passed) for a in run.events[-1].assertions[:1])
    run.events[-1] = msgspec.structs.replace(
        run.events[-1], assertions=flipped + run.events[-1].assertions[1:], reward=0.0
    )
    status, text = said(capsys, run.write(), "--trial", "s0.t0")
    assert status == 1
    assert f"differs  {IDS[0]}: recorded failed, now passed" in text
    assert "differs  reward: recorded 0.0, now 0.05" in text


def test_json_holds_both_verdicts(own, capsys):
    run, task = own
    run.seal("s0.t0", "sample", HALF)
    run.grade(task, "s0.t0", outcome="infra")
    status, text = said(capsys, run.write(), "--trial", "s0.t0", "--json")
    document = json.loads(text)
    assert (status, document["same"]) == (1, False)
    assert document["differences"] == [{"what": "outcome", "recorded": "infra", "now": "graded"}]
    assert document["now"]["passed"] == document["recorded"]["passed"] == 1


def test_all_trials_of_a_run_are_graded_again_with_a_summary(tmp_path, capsys, host_makes_sandboxes):
    """Built-in tasks need no files: they are functions of their names."""
    made = make_task(100_000_000, 1)
    write_task(made, tmp_path / "tasks")
    run = Recorded(tmp_path / "run", Config())
    for trial in ("s0.t0", "s0.t1", "s0.t2"):
        run.seal(trial, made.name, archive_of_files({"app/": b""}))
    task = read_task(tmp_path / "tasks" / made.name)
    run.grade(task, "s0.t0", "s0.t1")
    status, text = said(capsys, run.write(), "--all")
    assert (status, text) == (0, "2 of 2 verdicts agree\n")
    status, text = said(capsys, run.directory, "--trial", "s0.t2")
    assert status == 1
    assert "recorded no verdict: nothing to compare with" in text


def test_a_verdict_that_does_not_agree_is_named_among_all(own, capsys):
    run, task = own
    run.seal("s0.t0", "sample", HALF)
    run.seal("s0.t1", "sample", BULKY)
    run.grade(task, "s0.t0")
    run.grade(task, "s0.t1", outcome="verifier_timeout")
    status, text = said(capsys, run.write(), "--all")
    assert status == 1
    assert text == "s0.t1      sample: outcome: verifier_timeout -> graded\n1 of 2 verdicts agree\n"


def test_other_tests_grade_the_same_trial(own, tmp_path, capsys):
    run, task = own
    run.seal("s0.t0", "sample", HALF)
    run.grade(task, "s0.t0")
    run.write()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/test.sh").write_text("pytest /tests/test_other.py")
    (tmp_path / "other/test_other.py").write_text("def test_stricter(): assert open('/app/out').read() == 'ho'\n")
    status, text = said(capsys, run.directory, "--trial", "s0.t0", "--tests", tmp_path / "other")
    assert status == 1
    assert "FAILED   test_other.py::test_stricter" in text
    assert f"differs  {IDS[0]}: recorded passed, now absent" in text
    assert "note     tests: not the recorded bytes" in text
    status, text = said(capsys, run.directory, "--trial", "s0.t0", "--tests", task.path)
    assert status == 0, text


def test_an_exported_archive_is_graded_too(own, capsys):
    run, task = own
    run.seal("s0.t0", "sample", BULKY)
    run.grade(task, "s0.t0")
    run.write()
    archive = run.directory.with_suffix(".tar.gz")
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("log", "blobs"):
            tar.add(run.directory / name, f"run/{name}")
    status, text = said(capsys, archive, "--trial", "s0.t0")
    assert status == 0, text


def test_a_trial_of_its_own_sandbox_is_judged_again_from_the_record(own, tmp_path, capsys):
    run, _ = own
    task = sample_task(tmp_path / "tasks", toml=f"grading = 'same-sandbox'\n{expecting(*IDS)}")
    run.seal("s0.t0", "sample", HALF, Tested(outcome="verifier_crash", detail="its shell was gone"))
    run.grade(task, "s0.t0")
    run.write()
    status, text = said(capsys, run.directory, "--trial", "s0.t0")
    assert status == 0, text
    assert "its shell was gone" in text
    assert "judged again from what the tests left in the trial's own sandbox, which is gone" in text
    status, text = said(capsys, run.directory, "--trial", "s0.t0", "--tests", task.tests_dir)
    assert status == 2
    assert "which is gone: other tests cannot run there any more" in text


def test_what_cannot_be_graded_again_says_why_with_status_2(own, tmp_path, capsys):
    run, task = own
    run.seal("s0.t0", "sample", BULKY)
    run.grade(task, "s0.t0")
    run.write()
    run.blobs.delete(run.sealed["s0.t0"].layer.digest)
    for arguments, says in (
        ((run.directory, "--trial", "s0.t0"), "s0.t0"),
        ((run.directory, "--trial", "s9.t9"), "no sealed trial 's9.t9'"),
        ((run.directory, "--all"), "0 of 0 verdicts agree, 1 cannot be graded again"),
        ((tmp_path, "--trial", "s0.t0"), "has no folder log/"),
        ((task.path / "task.toml", "--trial", "s0.t0"), "neither a run's directory nor an exported archive"),
        ((run.directory,), "say which trial: --trial ID, or --all"),
    ):
        status, text = said(capsys, *arguments)
        assert (status, says in text) == (2, True), text


class OfFiles:
    """A verifier of somebody's own: looks into the sealed tree, runs nothing."""

    def __init__(self, backend: SandboxBackend):
        pass

    async def grade(self, task, layer: bytes, *, key: str, base: str) -> Verdict:
        found = find_file(layer, "app/out") is not None
        return Verdict("graded", (AssertionResult(id="out is there", passed=found),))


@pytest.mark.parametrize("tested", [None, Tested(outcome="infra", detail="its shell was gone")])
def test_another_verifier_grades_what_a_recorded_trial_left(own, tested):
    run, task = own
    run.seal("s0.t0", "sample", HALF, tested)
    run.grade(task, "s0.t0")

    async def again():
        regrader = Regrader.open(run.write(), make_verifier=OfFiles)
        async with regrader.running():
            return await regrader.grade("s0.t0")

    found = anyio.run(again)
    assert [(result.id, result.passed) for result in found.now.assertions] == [("out is there", True)]
    assert found.now.reward == 1 / run.config.verify.reward_scale
    assert "out is there" in {difference.what for difference in found.differences}
