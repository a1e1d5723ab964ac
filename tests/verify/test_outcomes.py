"""What each way a grading can end is called, and what it pays. The backend is scripted: real ones are in test_grading."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from t1actors.events import AssertionResult, Isolation
from t1actors.sandbox.archive import archive_of_files
from t1actors.sandbox.errors import SandboxDied, SandboxError, SandboxUnavailable
from t1actors.sandbox.interface import Created, Leftover, Limits, RunRequest, RunResult, SandboxSpec
from t1actors.sandbox.retries import RetryPolicy
from t1actors.tasks.generate import make_task
from t1actors.tasks.reader import read_task
from t1actors.tasks.task import Task
from t1actors.tasks.write import write_task
from t1actors.verify import tools
from t1actors.verify.evidence import CTRF as REPORT
from t1actors.verify.evidence import REWARD
from t1actors.verify.grade import grade
from t1actors.verify.reward import reward
from t1actors.verify.verdict import Verdict, VerifyError

EMPTY_TRIAL = archive_of_files({"app/": b""})


def report(tests: dict[str, bool]) -> bytes:
    passed = sum(tests.values())
    summary = {
        "tests": len(tests),
        "passed": passed,
        "failed": len(tests) - passed,
        "skipped": 0,
        "pending": 0,
        "other": 0,
    }
    entries = [{"name": name, "status": "passed" if ok else "failed"} for name, ok in tests.items()]
    return json.dumps({"results": {"summary": summary, "tests": entries}}).encode()


@dataclass
class ScriptedBackend:
    """Answers as told; remembers what it was asked and what is still alive."""

    files: dict[str, bytes] = field(default_factory=dict)
    exit_code: int = 0
    timed_out: bool = False
    create_error: SandboxError | None = None
    create_failures: int = 1 << 30
    run_error: SandboxError | None = None
    run_s: float = 0.0
    create_s: float = 0.0
    before_read: Path | None = None
    alive: set[str] = field(default_factory=set)
    specs: list[SandboxSpec] = field(default_factory=list)
    requests: list[RunRequest] = field(default_factory=list)

    async def create(self, spec: SandboxSpec) -> Created:
        self.specs.append(spec)
        await anyio.sleep(self.create_s)
        self.alive.add(spec.key)
        if self.create_error is not None and len(self.specs) <= self.create_failures:
            self.alive.discard(spec.key)
            raise self.create_error
        return Created(isolation=Isolation(backend="scripted"), phases={}, existed=False)

    async def run(self, sandbox: str, request: RunRequest) -> RunResult:
        self.requests.append(request)
        await anyio.sleep(self.run_s)
        if self.run_error is not None:
            raise self.run_error
        if self.before_read is not None:
            self.before_read.write_text("changed")
        return RunResult(output=(), text="said this", exit_code=self.exit_code, seconds=0.25, timed_out=self.timed_out)

    async def read_file(self, sandbox: str, path: str, *, max_bytes: int) -> bytes | None:
        data = self.files.get(path)
        return data if data is not None and len(data) <= max_bytes else None

    async def seal(self, sandbox: str, *, paths: tuple[str, ...] = ("/",)) -> bytes:
        raise NotImplementedError

    async def kill(self, sandbox: str) -> None:
        self.alive.discard(sandbox)

    async def list(self) -> list[str]:
        return sorted(self.alive)

    async def reap(self, *, dry_run: bool = False) -> list[Leftover]:
        raise NotImplementedError

    async def renew(self, sandbox: str) -> None:
        raise NotImplementedError


@pytest.fixture
def builtin(tmp_path: Path) -> Task:
    generated = make_task(1, 2)
    write_task(generated, tmp_path)
    return read_task(tmp_path / generated.name)


@pytest.fixture
def foreign(tmp_path: Path) -> Task:
    """A task that declares no assertions."""
    for path, text in {
        "task.toml": "",
        "instruction.md": "Do it.",
        "environment/Dockerfile": "FROM x\nWORKDIR /app\nCOPY data /data\n",
        "environment/data": "d",
        "tests/test.sh": "true",
    }.items():
        (tmp_path / "foreign" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "foreign" / path).write_text(text)
    return read_task(tmp_path / "foreign")


def graded(task: Task, backend: ScriptedBackend, deadline_s: float = 20.0) -> Verdict:
    async def run() -> Verdict:
        return await grade(
            task, EMPTY_TRIAL, backend, key="s0.t1/grade", deadline_s=deadline_s, lease_s=9.0, limits=Limits(disk_mb=8)
        )

    verdict = anyio.run(run, backend="trio")
    assert backend.alive == set()
    return verdict


def passing(task: Task, passed: int) -> dict[str, bool]:
    return {"control": True, **{name: place < passed for place, name in enumerate(task.expected)}}


def test_a_complete_report_is_graded_whatever_the_exit_status_was(builtin: Task):
    for exit_code in (0, 1, 137):
        verdict = graded(builtin, ScriptedBackend({REPORT: report(passing(builtin, 4))}, exit_code=exit_code))
        assert (verdict.outcome, verdict.passed, verdict.expected) == ("graded", 4, len(builtin.expected))
        assert tuple(result.id for result in verdict.assertions) == builtin.expected
        assert reward(verdict, 20.0) == 4 / 20
        assert verdict.isolation.backend == "scripted"
        assert dict(verdict.phases)["tests"] == 0.25


def test_exit_status_0_without_a_report_is_a_crash_not_a_pass(builtin: Task):
    verdict = graded(builtin, ScriptedBackend({REWARD: b"1"}, exit_code=0))
    assert (verdict.outcome, reward(verdict, 20.0)) == ("verifier_crash", None)
    assert "exit status 0 and no report (no /logs/verifier/ctrf.json): said this" in verdict.detail


@pytest.mark.parametrize(("exit_code", "outcome"), [(1, "no_report"), (127, "no_report"), (137, "verifier_crash")])
def test_a_failing_verifier_without_a_report_measures_nothing(builtin: Task, exit_code: int, outcome: str):
    verdict = graded(builtin, ScriptedBackend(exit_code=exit_code))
    assert (verdict.outcome, reward(verdict, 20.0)) == (outcome, None)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", report({"control": True})[:-9], report({"control": True}).replace(b"1", b"NaN", 1), b"[]"],
)
def test_a_cut_or_senseless_report_is_partial(builtin: Task, data: bytes):
    verdict = graded(builtin, ScriptedBackend({REPORT: data}))
    assert (verdict.outcome, reward(verdict, 20.0)) == ("partial_report", None)


def test_a_report_too_large_to_read_is_no_report(builtin: Task):
    assert graded(builtin, ScriptedBackend({REPORT: b" " * (5 << 20)}, exit_code=1)).outcome == "no_report"


def test_zero_tests_run_is_a_crash(builtin: Task, foreign: Task):
    for task in (builtin, foreign):
        verdict = graded(task, ScriptedBackend({REPORT: report({})}))
        assert (verdict.outcome, reward(verdict, 20.0)) == ("verifier_crash", None)


def test_a_control_assertion_that_fails_or_is_missing_measures_nothing(builtin: Task):
    everything = dict.fromkeys(builtin.expected, True)
    for tests in (everything, {**everything, "control": False}):
        verdict = graded(builtin, ScriptedBackend({REPORT: report(tests)}))
        assert (verdict.outcome, reward(verdict, 20.0)) == ("verifier_crash", None)


def test_expected_assertions_that_a_complete_report_lacks_are_failed_and_others_are_not_counted(builtin: Task):
    tests = {"control": True, builtin.expected[1]: True, "invented": True, "another": True}
    verdict = graded(builtin, ScriptedBackend({REPORT: report(tests)}))
    assert (verdict.outcome, verdict.passed, verdict.expected) == ("graded", 1, len(builtin.expected))
    assert [result.passed for result in verdict.assertions[:3]] == [False, True, False]


def test_a_verifier_out_of_time_is_a_timeout_however_it_is_noticed(builtin: Task):
    stopped = graded(builtin, ScriptedBackend({REPORT: report(passing(builtin, 9))}, timed_out=True))
    hung = graded(builtin, ScriptedBackend({REPORT: report(passing(builtin, 9))}, run_s=60.0), deadline_s=0.05)
    assert [verdict.outcome for verdict in (stopped, hung)] == ["verifier_timeout", "verifier_timeout"]
    assert [reward(verdict, 20.0) for verdict in (stopped, hung)] == [None, None]


def test_the_tests_get_the_tighter_of_the_tasks_limit_and_the_runs(builtin: Task):
    backend = ScriptedBackend({REPORT: report(passing(builtin, 0))})
    graded(builtin, backend, deadline_s=900.0)
    graded(builtin, backend, deadline_s=30.0)
    assert [request.limit_s for request in backend.requests] == [60.0, 30.0]
    assert [spec.limits.command_s for spec in backend.specs] == [60.0, 30.0]


def test_faults_of_the_infrastructure_are_never_a_reward(builtin: Task):
    everything = {REPORT: report(passing(builtin, 99))}
    for backend in (
        ScriptedBackend(everything, create_error=SandboxError("odd")),
        ScriptedBackend(everything, run_error=SandboxDied("killed from outside", "killed")),
        ScriptedBackend(everything, create_s=60.0),
    ):
        verdict = graded(builtin, backend, deadline_s=0.2)
        assert (verdict.outcome, reward(verdict, 20.0)) == ("infra", None)
        assert verdict.detail


def test_a_host_that_can_make_no_sandbox_any_more_is_not_one_trials_bad_luck(builtin: Task):
    gone = SandboxUnavailable("asking the fork server", "it ended", "Start it anew.")
    with pytest.raises(SandboxUnavailable):
        graded(builtin, ScriptedBackend(create_error=gone))


def test_a_verifier_that_runs_out_of_its_own_memory_crashed(builtin: Task):
    assert (
        graded(builtin, ScriptedBackend(run_error=SandboxDied("out of memory", "memory"))).outcome == "verifier_crash"
    )


def test_tests_that_change_on_the_host_while_they_run_measure_nothing(builtin: Task):
    backend = ScriptedBackend({REPORT: report(passing(builtin, 9))}, before_read=builtin.tests_dir / "assertions.json")
    verdict = graded(builtin, backend)
    assert (verdict.outcome, verdict.detail) == ("infra", "the tests or the tools changed on the host during grading")


def test_the_digest_of_the_tests_and_of_the_tools_are_in_every_verdict(builtin: Task):
    first = graded(builtin, ScriptedBackend({REPORT: report(passing(builtin, 1))}))
    crashed = graded(builtin, ScriptedBackend())
    assert len(first.tests_digest) == len(first.tools_digest) == 64
    assert (crashed.tests_digest, crashed.tools_digest) == (first.tests_digest, first.tools_digest)
    (builtin.tests_dir / "assertions.json").write_text("{}")
    assert graded(builtin, ScriptedBackend()).tests_digest != first.tests_digest


def test_the_grader_sees_the_agents_tree_read_only_and_the_rest_pristine(foreign: Task):
    trial = archive_of_files(
        {"app/mine": b"m", "data": b"poisoned", "tests/test.sh": b"exit 0", "usr/bin/python3": b"x"}
    )
    backend = ScriptedBackend({REPORT: report({"a": True})})

    async def run() -> Verdict:
        return await grade(foreign, trial, backend, key="k", deadline_s=9.0, lease_s=9.0, limits=Limits(disk_mb=8))

    assert anyio.run(run, backend="asyncio").outcome == "graded"
    layers = {layer.at: layer for layer in backend.specs[0].layers}
    assert set(layers) == {"/", "/logs", "/tests", "/app"}
    assert {at for at, layer in layers.items() if layer.read_only} == {"/tests", "/app"}
    assert layers["/app"].archive == archive_of_files({"mine": b"m"})
    assert b"poisoned" not in b"".join(layer.archive for layer in backend.specs[0].layers)
    assert b"exit 0" not in b"".join(layer.archive for layer in backend.specs[0].layers)


def test_binary_fallback_is_only_for_tasks_without_any_assertion_channel(builtin: Task, foreign: Task):
    paid = graded(foreign, ScriptedBackend({REWARD: b"1\n"}))
    assert (paid.outcome, paid.binary, reward(paid, 20.0)) == ("graded", 1, 1.0)
    unpaid = graded(foreign, ScriptedBackend({REWARD: b"0\n"}, exit_code=1))
    assert (unpaid.outcome, reward(unpaid, 20.0)) == ("graded", 0.0)
    # With a report its tests count; with declared assertions reward.txt is not even read.
    reported = graded(foreign, ScriptedBackend({REPORT: report({"a": True, "b": False}), REWARD: b"1\n"}))
    assert (reported.binary, reported.passed, reward(reported, 20.0)) == (None, 1, 1 / 20)
    assert reward(graded(builtin, ScriptedBackend({REWARD: b"1\n"})), 20.0) is None
    for text in (b"1000000", b"nan", b"0.5"):
        assert graded(foreign, ScriptedBackend({REWARD: text})).outcome == "partial_report"


FAULT = SandboxError("the shim was killed")


@pytest.mark.parametrize("failures", [1, 2])
def test_a_graders_sandbox_that_infrastructure_fails_is_tried_again_and_the_verdict_says_so(
    builtin: Task, failures: int
):
    files = {REPORT: report(passing(builtin, 9))}
    backend = ScriptedBackend(files, create_error=FAULT, create_failures=failures)
    verdict = graded(builtin, backend)
    assert (verdict.outcome, len(backend.specs)) == ("graded", failures + 1)
    assert [(retry.attempt, retry.cause, retry.detail) for retry in verdict.retried] == [
        (attempt, "SandboxError", "the shim was killed") for attempt in range(1, failures + 1)
    ]


def test_a_graders_sandbox_that_cannot_be_had_measures_nothing(builtin: Task):
    backend = ScriptedBackend({REPORT: report(passing(builtin, 9))}, create_error=FAULT)
    verdict = graded(builtin, backend)
    assert (verdict.outcome, verdict.detail, len(backend.specs)) == ("infra", "the shim was killed", 3)
    assert len(verdict.retried) == 2


def test_a_creation_that_hangs_is_tried_again_too(builtin: Task):
    backend = ScriptedBackend(create_s=60.0)

    async def run() -> Verdict:
        return await grade(
            builtin,
            EMPTY_TRIAL,
            backend,
            key="k",
            deadline_s=60.0,
            lease_s=9.0,
            limits=Limits(),
            retries=RetryPolicy(most=1, pause_s=0.0),
            create_deadline_s=0.01,
        )

    verdict = anyio.run(run, backend="trio")
    assert (verdict.outcome, [retry.cause for retry in verdict.retried]) == ("infra", ["TimeoutError"])
    assert verdict.detail == "no sandbox to grade in within 0.01 s"


def test_a_cancelled_grading_leaves_no_sandbox(builtin: Task):
    backend = ScriptedBackend(run_s=60.0)

    async def run() -> None:
        with anyio.move_on_after(0.05):
            await grade(builtin, EMPTY_TRIAL, backend, key="k", deadline_s=60.0, lease_s=9.0, limits=Limits())

    anyio.run(run, backend="trio")
    assert backend.requests
    assert backend.alive == set()


def test_a_host_without_an_interpreter_under_usr_is_refused_with_what_to_do(
    builtin: Task, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tools, "SEARCHED", ("/usr/share",))
    with pytest.raises(VerifyError, match=r"no python3 under /usr \(searched /usr/share\).*apt-get install python3"):
        graded(builtin, ScriptedBackend())


def test_more_passed_assertions_pay_more_even_above_1():
    def of(passed: int, expected: int) -> Verdict:
        return Verdict("graded", tuple(AssertionResult(id=str(i), passed=i < passed) for i in range(expected)))

    assert [reward(of(passed, expected), 20.0) for passed, expected in ((10, 20), (2, 4), (35, 35))] == [0.5, 0.1, 1.75]
    assert reward(of(0, 4), 20.0) == 0.0
