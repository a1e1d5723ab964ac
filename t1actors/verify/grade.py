"""Grades a sealed trial in a sandbox of its own (mode ``fresh-root``).

The root is pristine: the task's environment, the tests read-only at /tests, and the tree the agent left read-only at the
task's working directory, and nowhere else. No process of the agent exists any more, so only the grader can write the report,
which is read and scored outside.

Guarantees: the outcome is "graded" only when the verifier ran to the end of a complete report whose control assertion (if
the task has one) passed; an exit status alone decides nothing; expected assertions that such a report lacks are failed
ones; a fault of the infrastructure is "infra". Grading is idempotent by ``key`` and can be repeated on the same bytes; when
``grade`` returns or is cancelled its sandbox is gone.

What it cannot promise: files behind the interpreter (its standard library) are the host's, and a task whose tests run the
agent's programs runs them as the grader's user.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace

import anyio
import msgspec

from t1actors.events import AssertionResult, Isolation, Outcome
from t1actors.payloads import digest_of
from t1actors.sandbox.archive import EMPTY, archive_of_files, subtree
from t1actors.sandbox.errors import SandboxDied, SandboxError, SandboxUnavailable
from t1actors.sandbox.interface import Layer, Limits, RunRequest, RunResult, SandboxBackend, SandboxSpec
from t1actors.sandbox.standing import tree_left_at
from t1actors.tasks.layers import environment_layers, tests_layer
from t1actors.tasks.task import Task, TaskError
from t1actors.verify.report import Report, ReportError, parse_binary, parse_ctrf
from t1actors.verify.tools import find_tools
from t1actors.verify.verdict import NO_ISOLATION, Verdict

REPORT = "/logs/verifier/ctrf.json"
REWARD = "/logs/verifier/reward.txt"
LARGEST_REPORT_BYTES = 4 << 20
_KILL_S = 10.0
_LOGS = Layer(archive=archive_of_files({"verifier/": b""}), at="/logs")


async def grade(
    task: Task,
    layer: bytes,
    backend: SandboxBackend,
    *,
    key: str,
    deadline_s: float,
    lease_s: float,
    limits: Limits,
    base: str = "host",
) -> Verdict:
    """The verdict on ``layer``, the sealed archive (rooted at /) of a trial at ``task``.

    Args:
        key: names the grading sandbox and its one command; the same key after a crash continues the same grading.
        deadline_s: the longest this may take, at most the task's own verifier timeout for the tests themselves.
        limits: of the trial's sandbox; the grader has room for what the agent left on top of them.
        base: what the trial's sandbox stood on; an image has the programs that grade in it, and its digest is theirs.

    Raises:
        VerifyError: nothing can be graded on this host (no interpreter under /usr).
        SandboxUnavailable: no sandbox can be made (any more): the fork server ended, say; start the backend anew.
    """
    started = time.monotonic()
    tools_digest = _tools_digest(base)
    run = _Grading()
    verdict = Verdict("infra", detail=f"not graded within {deadline_s:g} s")
    with anyio.move_on_after(deadline_s) as scope:
        try:
            tests = tests_layer(task)
            run.tests_digest = digest_of(tests.archive)
            layers = (*_pristine(task, base), _LOGS, tests, *_agent_trees(task, layer, base))
            limit_s = min(task.verifier_timeout_s, deadline_s)
            disk_mb = 2 * limits.disk_mb + len(layer) // (1 << 20)
            spec = SandboxSpec(
                key=key,
                workdir=task.workdir,
                env=task.environment.env,
                limits=msgspec.structs.replace(limits, disk_mb=disk_mb, command_s=limit_s),
                lease_s=lease_s,
                layers=layers,
                base=base,
            )
            verdict = await _run_tests(task, spec, backend, run, limit_s)
            if digest_of(tests_layer(task).archive) != run.tests_digest or _tools_digest(base) != tools_digest:
                verdict = Verdict("infra", detail="the tests or the tools changed on the host during grading")
        except SandboxDied as error:
            verdict = Verdict("verifier_crash" if error.cause == "memory" else "infra", detail=str(error))
        except SandboxUnavailable:
            raise  # no sandbox can be made any more: the caller's host is at fault, not this trial's luck
        except (SandboxError, TaskError) as error:
            verdict = Verdict("infra", detail=str(error))
        finally:
            # The verdict stands even where the sandbox cannot be removed now: its lease ends by itself.
            with anyio.move_on_after(_KILL_S, shield=True), contextlib.suppress(SandboxError):
                await backend.kill(key)
    if scope.cancelled_caught and run.testing:
        verdict = Verdict("verifier_timeout", detail=f"the tests did not end within {deadline_s:g} s")
    return replace(
        verdict,
        tests_digest=run.tests_digest,
        tools_digest=tools_digest,
        isolation=run.isolation,
        seconds=time.monotonic() - started,
        phases=tuple(run.phases.items()),
    )


@dataclass
class _Grading:
    """What is known of a grading that may end at any point."""

    tests_digest: str = ""
    isolation: Isolation = NO_ISOLATION
    testing: bool = False
    phases: dict[str, float] = field(default_factory=dict[str, float])


def _tools_digest(base: str) -> str:
    return find_tools().digest if base == "host" else base.removeprefix("sha256:")


def _pristine(task: Task, base: str) -> tuple[Layer, ...]:
    """The task's own files beside the graded ones; an image has them."""
    return environment_layers(task, outside=task.workdir) if base == "host" else ()


def _agent_trees(task: Task, layer: bytes, base: str) -> tuple[Layer, ...]:
    """What the agent left at the graded paths; a directory it deleted is an empty one."""
    if base != "host":
        return tuple(tree_left_at(layer, path) for path in task.graded_paths)
    return tuple(Layer(archive=subtree(layer, path) or EMPTY, at=path, read_only=True) for path in task.graded_paths)


async def _run_tests(task: Task, spec: SandboxSpec, backend: SandboxBackend, run: _Grading, limit_s: float) -> Verdict:
    began = time.monotonic()
    created = await backend.create(spec)
    run.isolation = created.isolation
    run.phases["create"] = time.monotonic() - began
    run.testing = True
    result = await backend.run(
        spec.key, RunRequest(key=f"{spec.key}/tests", command="bash /tests/test.sh", limit_s=limit_s)
    )
    run.testing = False
    run.phases["tests"] = result.seconds
    began = time.monotonic()
    report = await backend.read_file(spec.key, REPORT, max_bytes=LARGEST_REPORT_BYTES)
    fallback = None
    if report is None and not task.expected:
        fallback = await backend.read_file(spec.key, REWARD, max_bytes=64)
    run.phases["read"] = time.monotonic() - began
    return judge(task, result, report, fallback)


def judge(task: Task, result: RunResult, report: bytes | None, fallback: bytes | None) -> Verdict:
    """The outcome of a verifier that ended with ``result`` and left ``report`` (and, for a task that declares no
    assertions and has no report, ``fallback``: its reward.txt). Pure."""
    said = result.text.strip()[-500:]
    if result.timed_out:
        return Verdict("verifier_timeout", detail=f"the tests were stopped after {result.seconds:g} s: {said}")
    if report is None:
        return _without_report(result, fallback, said)
    try:
        parsed = parse_ctrf(report)
    except ReportError as error:
        return Verdict("partial_report", detail=f"{REPORT}: {error}")
    return _with_report(task, parsed, said)


def _without_report(result: RunResult, fallback: bytes | None, said: str) -> Verdict:
    if fallback is not None:
        try:
            return Verdict("graded", binary=parse_binary(fallback))
        except ReportError as error:
            return Verdict("partial_report", detail=str(error))
    # A verifier that says it failed may have failed to report; one that says it is well, or was killed, is broken.
    outcome: Outcome = "no_report" if 0 < result.exit_code <= 128 else "verifier_crash"
    return Verdict(outcome, detail=f"exit status {result.exit_code} and no {REPORT}: {said}")


def _with_report(task: Task, report: Report, said: str) -> Verdict:
    results = dict(report.results)
    if task.control and not results.get(task.control, False):
        return Verdict("verifier_crash", detail=f"the control assertion {task.control!r} did not pass: {said}")
    expected = task.expected or tuple(name for name in results if name != task.control)
    if not expected or not results:
        return Verdict("verifier_crash", detail=f"{REPORT}: no tests ran: {said}")
    return Verdict("graded", tuple(AssertionResult(id=name, passed=results.get(name, False)) for name in expected))
