"""Grades a sealed trial in a sandbox of its own (mode ``fresh-root``).

The root is pristine: the task's environment, the tests and the tool layer read-only from outside, and the trees that
the agent left read-only at the graded paths, and nowhere else. No process of the agent exists any more, programs that
tests start are another user's, so only the grader can write the report, which is read and scored outside.

Guarantees: a sandbox that infrastructure fails to make is tried again as trials' are; the outcome is ``verify.judge``'s on
what was read from outside; a fault of the infrastructure is "infra"; tests, tools and tool layer are the same before and
after. Grading is idempotent by ``key`` and can be repeated on the same bytes; when ``grade`` returns or is cancelled its
sandbox is gone.

What it cannot promise: files behind the interpreter (its standard library) are the host's, and tests that import the
agent's modules, or whose own script starts the agent's programs, run them as the grader.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from itertools import chain

import anyio
import msgspec

from t1actors.events import GradingMode, Isolation
from t1actors.payloads import digest_of
from t1actors.sandbox.archive import EMPTY, archive_of_files, subtree
from t1actors.sandbox.creating import create_with_retries
from t1actors.sandbox.errors import SandboxDied, SandboxError, SandboxUnavailable
from t1actors.sandbox.interface import HOST, Layer, Limits, RunRequest, SandboxBackend, SandboxSpec
from t1actors.sandbox.retries import Retry, RetryPolicy
from t1actors.sandbox.standing import tree_left_at
from t1actors.tasks.layers import environment_layers, tests_layer
from t1actors.tasks.task import Task, TaskError
from t1actors.verify.command import closed, has_grader, subject_in, tests_command, uses_pytest, without_tools
from t1actors.verify.evidence import gather
from t1actors.verify.judge import judge
from t1actors.verify.severed import severed, told
from t1actors.verify.toolbox import ToolLayer
from t1actors.verify.tools import digest_on
from t1actors.verify.verdict import NO_ISOLATION, Verdict

LARGEST_OUTPUT_CHARS = 4_000
OUTPUT_BYTES = 1 << 20
"""What tests may print: pytest's summary comes last."""
_MODE: GradingMode = "fresh-root"
_KILL_S = 10.0
_LOGS = Layer(archive=archive_of_files({"verifier/": b"", "t1/": b""}), at="/logs")


async def grade(
    task: Task,
    layer: bytes,
    backend: SandboxBackend,
    *,
    key: str,
    deadline_s: float,
    lease_s: float,
    limits: Limits,
    tool_layer: ToolLayer | None = None,
    base: str = HOST,
    retries: RetryPolicy = RetryPolicy(),  # noqa: B008
    create_deadline_s: float | None = None,
) -> Verdict:
    """The verdict on ``layer``, the sealed archive (rooted at /) of a trial at ``task``.

    Args:
        key: names the grading sandbox and its one command; the same key after a crash continues the same grading.
        deadline_s: the longest this may take, at most the task's own verifier timeout for the tests themselves.
        limits: of the trial's sandbox; the grader has room for what the agent left on top of them.
        tool_layer: what tests that use pytest are given (``verify.toolbox``); others are graded without.
        base: what the trial's sandbox stood on; an image has the programs that grade in it, and its digest is theirs.
        retries: how often its sandbox is tried again where infrastructure failed it; the verdict has each (``retried``).
        create_deadline_s: of one such try; None: only ``deadline_s`` ends it.

    Raises:
        VerifyError: nothing can be graded on this host (no interpreter under /usr).
        SandboxUnavailable: no sandbox can be made (any more): the fork server ended, say; start the backend anew.
    """
    started = time.monotonic()
    tools_digest = digest_on(base)
    run = _Grading()
    verdict = Verdict("infra", detail=f"not graded within {deadline_s:g} s")
    with anyio.move_on_after(deadline_s) as scope:
        try:
            tests = tests_layer(task)
            run.tests_digest = digest_of(tests.archive)
            given = tool_layer if tool_layer is not None and uses_pytest(tests) else None
            run.tool_layer_digest = given.digest if given is not None else ""
            fixed = (closed(task, tests), *((given.layer,) if given is not None else ()))
            limit_s = min(task.verifier_timeout_s, deadline_s)
            room_mb = (len(layer) + sum(len(part.archive) for part in fixed)) // (1 << 20)
            warnings: list[str] = []
            spec = SandboxSpec(
                key=key,
                workdir=task.workdir,
                env=(*task.environment.env, *task.verifier_env),
                limits=msgspec.structs.replace(
                    limits,
                    disk_mb=2 * limits.disk_mb + room_mb,
                    memory_mb=limits.memory_mb + (_PYTEST_MB if given is not None else 0),
                    output_bytes=max(limits.output_bytes, OUTPUT_BYTES),
                    command_s=limit_s,
                ),
                lease_s=lease_s,
                layers=(*_environment(task, base), _LOGS, *fixed, *_agent_trees(task, layer, base, warnings)),
                base=base,
            )
            began = time.monotonic()
            created = await create_with_retries(
                backend, spec, retries, deadline_s=create_deadline_s, on_retry=run.retried.append
            )
            run.isolation = created.isolation
            run.phases["create"] = time.monotonic() - began
            own_root = base != HOST or run.isolation.backend == "docker"
            lacks_tools = given is not None and own_root and not await has_grader(backend, key)
            if lacks_tools:
                given, run.tool_layer_digest = None, ""
            subject, separation = subject_in(run.isolation)
            if task.grading.subject != "user":
                subject, separation = "", ()
            command = tests_command(task, tools=given is not None, subject=subject, image=base != HOST)
            request = RunRequest(key=f"{key}/tests", command=command, limit_s=limit_s)
            verdict = await _run_tests(task, key, backend, run, request)
            if lacks_tools:
                verdict = without_tools(verdict)
            if given is not None:
                warnings += separation
                if task.grading.subject == "grader":
                    warnings.append("programs that tests start run as the grader's user: task.toml says so")
            verdict = replace(verdict, warnings=(*verdict.warnings, *warnings))
            if digest_of(tests_layer(task).archive) != run.tests_digest or digest_on(base) != tools_digest:
                verdict = Verdict("infra", detail="the tests or the tools changed on the host during grading")
        except SandboxDied as error:
            verdict = Verdict("verifier_crash" if error.cause == "memory" else "infra", detail=str(error))
        except SandboxUnavailable:
            raise  # no sandbox can be made any more: the caller's host is at fault, not this trial's luck
        except TimeoutError:
            verdict = Verdict("infra", detail=f"no sandbox to grade in within {create_deadline_s} s")
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
        mode=_MODE,
        tests_digest=run.tests_digest,
        tools_digest=tools_digest,
        tool_layer_digest=run.tool_layer_digest,
        isolation=run.isolation,
        output=run.output,
        seconds=time.monotonic() - started,
        phases=tuple(run.phases.items()),
        retried=tuple(run.retried),
    )


_PYTEST_MB = 64
"""Room for pytest itself and the tool layer, beside what the trial was allowed."""


@dataclass
class _Grading:
    """What is known of a grading that may end at any point."""

    tests_digest: str = ""
    tool_layer_digest: str = ""
    isolation: Isolation = NO_ISOLATION
    testing: bool = False
    output: str = ""
    phases: dict[str, float] = field(default_factory=dict[str, float])
    retried: list[Retry] = field(default_factory=list[Retry])


def _environment(task: Task, base: str) -> tuple[Layer, ...]:
    """The environment's files, but for what lies at the graded paths; an image has them."""
    layers = environment_layers(task) if base == HOST else ()
    return tuple(x for x in layers if not any(f"{x.at}/".startswith(f"{path}/") for path in task.graded_paths))


def _agent_trees(task: Task, layer: bytes, base: str, warnings: list[str]) -> tuple[Layer, ...]:
    """What the agent left at the graded paths; a directory it deleted is an empty one. ``warnings`` hear of what is left
    out."""
    if base != HOST:
        trees = [tree_left_at(layer, path) for path in task.graded_paths]
    else:
        trees = [Layer(archive=subtree(layer, path) or EMPTY, at=path, read_only=True) for path in task.graded_paths]
    kept, gone = zip(*(severed(tree) for tree in trees), strict=True)
    if any(gone):
        warnings.append(told(tuple(chain.from_iterable(gone))))
    return kept


async def _run_tests(task: Task, sandbox: str, backend: SandboxBackend, run: _Grading, request: RunRequest) -> Verdict:
    run.testing = True
    result = await backend.run(sandbox, request)
    run.testing = False
    run.output = result.text.strip()[-LARGEST_OUTPUT_CHARS:]
    run.phases["tests"] = result.seconds
    began = time.monotonic()
    evidence = await gather(backend, sandbox, result)
    run.phases["read"] = time.monotonic() - began
    return replace(judge(task, evidence), stand_ins=evidence.stand_ins)
