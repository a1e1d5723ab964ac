"""Whether a task is fit to train on, found out in real sandboxes.

A task is worked on twice, ``runs`` times each: by nobody, and by its own reference solution. What either leaves is graded as
any trial is. From that follow the expected ids (of a clean run of the reference), the baseline (what passes when nothing is
done), and how often the reference fails.

Guarantees: ``check_task`` ends with a record whatever the task does; it raises only where this host makes no sandboxes. No
sandbox is left when it returns or is cancelled. The solution is in the reference's own sandbox, read-only at /solution, and
in no other.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio
import msgspec

from t1actors.config import REFUSED_ADDRESSES
from t1actors.sandbox.archive import archive_of_directory
from t1actors.sandbox.errors import ArchiveError, SandboxDied, SandboxError, SandboxUnavailable
from t1actors.sandbox.interface import HOST, Layer, Limits, NetworkName, RunRequest, SandboxBackend, SandboxSpec
from t1actors.tasks.layers import environment_layers
from t1actors.tasks.leaks import find_leaks
from t1actors.tasks.record import CheckRecord, Problem
from t1actors.tasks.task import Task, TaskError
from t1actors.verify.grade import grade
from t1actors.verify.toolbox import ToolLayer
from t1actors.verify.verdict import Verdict
from t1actors.verify.verifier import Verifier

PARTS: Final = ("read", "needs", "build", "untouched", "reference", "flaky", "leak", "history")
"""What a check looks at, in this order."""
SOLUTION_AT = "/solution"
LEASE_S = 120.0
REFERENCE_LIMIT_S = 1800.0
"""For the reference of a task that gives its agent no limit."""
_GRADING_MARGIN_S = 60.0
_KILL_S = 30.0
_OUTPUT_CHARS = 2_000


class EnvironmentFailed(Exception):
    """The task's environment cannot be made: says why."""


class ProgramsMissing(Exception):
    """The task's environment has no program of a name that the task needs: says which."""


@dataclass(frozen=True)
class Ground:
    """What a trial's sandbox starts from."""

    layers: tuple[Layer, ...]
    env: tuple[tuple[str, str], ...]
    base: str = HOST
    network: NetworkName = "none"
    refused_addresses: tuple[str, ...] = REFUSED_ADDRESSES


async def host_ground(task: Task) -> Ground:
    """The task's own files on the host's root. Raises ``TaskError``."""
    return Ground(environment_layers(task), task.environment.env)


@dataclass(frozen=True)
class Tried:
    """One trial of a check. ``layer`` is its sealed tree, ``solving`` what was wrong with the solution's own run."""

    layer: bytes
    verdict: Verdict
    solving: str = ""
    output: str = ""

    @property
    def results(self) -> dict[str, bool]:
        return {result.id: result.passed for result in self.verdict.assertions}

    @property
    def missed(self) -> list[str]:
        """Ids that did not pass."""
        return [name for name, passed in self.results.items() if not passed]

    @property
    def passes(self) -> bool:
        """Everything that is expected of a solution."""
        if self.verdict.binary is not None:
            return self.verdict.binary == 1
        return self.verdict.outcome == "graded" and not self.missed


async def check_task(
    task: Task,
    backend: SandboxBackend,
    *,
    key: str,
    runs: int,
    limits: Limits,
    ground_of: Callable[[Task], Awaitable[Ground]] = host_ground,
) -> CheckRecord:
    """The record of ``task`` (``tasks.record``), with every problem that was found.

    Args:
        key: what the check's sandboxes are called; no other check has it.
        runs: how often each of the two is tried.
        limits: of the trial's sandboxes, as in a run.
        ground_of: makes what they start from, within the task's limit for its build. ``EnvironmentFailed`` and ``TaskError``
            are the task's fault.

    Raises:
        SandboxUnavailable: this host makes no sandboxes (any more).
        VerifyError: nothing can be graded on this host.
    """
    record = CheckRecord(digest=task.digest)
    try:
        ground = await _made(task, ground_of)
        tools = await Verifier(backend).tool_layer_for(task)
        untouched = [await _try(task, backend, f"{key}.untouched{n}", limits, ground, tools) for n in range(runs)]
        solved: list[Tried] = []
        if task.solution_dir is not None:
            solving = replace(ground, layers=(*ground.layers, _solution(task.solution_dir)))
            solved = [
                await _try(task, backend, f"{key}.reference{n}", limits, solving, tools, solve=True)
                for n in range(runs)
            ]
    except ProgramsMissing as error:
        return msgspec.structs.replace(record, problems=(Problem(part="needs", text=str(error)),))
    except EnvironmentFailed as error:
        return msgspec.structs.replace(record, problems=(Problem(part="build", text=str(error)),))
    return _recorded(task, record, untouched, solved)


# --- one trial ----------------------------------------------------------------------------------------------------------


async def _made(task: Task, ground_of: Callable[[Task], Awaitable[Ground]]) -> Ground:
    try:
        with anyio.fail_after(task.build_timeout_s):
            return await ground_of(task)
    except TimeoutError as error:
        raise EnvironmentFailed(f"the environment was not built within {task.build_timeout_s:g} s") from error
    except TaskError as error:
        raise EnvironmentFailed(str(error)) from error


def _solution(directory: Path) -> Layer:
    try:
        return Layer(archive=archive_of_directory(directory), at=SOLUTION_AT, read_only=True)
    except ArchiveError as error:
        raise EnvironmentFailed(f"{directory}: cannot be read: {error}") from error


async def _try(
    task: Task,
    backend: SandboxBackend,
    key: str,
    limits: Limits,
    ground: Ground,
    tools: ToolLayer | None,
    *,
    solve: bool = False,
) -> Tried:
    try:
        layer, solving, output = await _worked(task, backend, key, limits, ground, solve=solve)
    except SandboxUnavailable:
        raise
    except SandboxError as error:
        return Tried(b"", Verdict("infra", detail=str(error)))
    verdict = await grade(
        task,
        layer,
        backend,
        key=f"{key}.grade",
        deadline_s=task.verifier_timeout_s + _GRADING_MARGIN_S,
        lease_s=task.verifier_timeout_s + 2 * _GRADING_MARGIN_S,
        limits=limits,
        base=ground.base,
        tool_layer=tools,
    )
    return Tried(layer, verdict, solving, output)


async def _worked(
    task: Task, backend: SandboxBackend, key: str, limits: Limits, ground: Ground, *, solve: bool
) -> tuple[bytes, str, str]:
    """What is left in a sandbox where the reference was run, or nothing; what was wrong, and what was said."""
    solving = output = ""
    try:
        await _create(task, backend, key, limits, ground)
        if not solve:
            await _look_for_programs(task, backend, key)
        if solve:
            limit_s = task.agent_timeout_s or REFERENCE_LIMIT_S
            variables = "".join(f"{name}={shlex.quote(value)} " for name, value in task.solution_env)
            request = RunRequest(key=f"{key}/solve", command=f"{variables}bash {SOLUTION_AT}/solve.sh", limit_s=limit_s)
            try:
                result = await backend.run(key, request)
            except SandboxDied as error:
                solving = f"the sandbox died under solution/solve.sh: {error}"
            else:
                output = result.text.strip()[-_OUTPUT_CHARS:]
                if result.exit_code != 0:
                    limit = f" (limit: {result.limit_hit})" if result.limit_hit else ""
                    solving = f"solution/solve.sh ended with status {result.exit_code}{limit}"
        return await backend.seal(key), solving, output
    finally:
        with anyio.move_on_after(_KILL_S, shield=True), contextlib.suppress(SandboxError):
            await backend.kill(key)


async def _look_for_programs(task: Task, backend: SandboxBackend, key: str) -> None:
    names = " ".join(shlex.quote(name) for name in task.programs)
    if not names:
        return
    command = f'for name in {names}; do command -v "$name" >/dev/null || echo "$name"; done'
    result = await backend.run(key, RunRequest(key=f"{key}/programs", command=command, limit_s=_KILL_S))
    if result.text.strip():
        raise ProgramsMissing(f"needs {', '.join(result.text.split())}, and its environment has none")


async def _create(task: Task, backend: SandboxBackend, key: str, limits: Limits, ground: Ground) -> None:
    spec = SandboxSpec(
        key=key,
        workdir=task.workdir,
        env=ground.env,
        limits=msgspec.structs.replace(limits, command_s=task.agent_timeout_s or REFERENCE_LIMIT_S),
        lease_s=LEASE_S,
        layers=ground.layers,
        base=ground.base,
        network=ground.network,
        refused_addresses=ground.refused_addresses,
    )
    try:
        with anyio.fail_after(task.build_timeout_s):
            await backend.create(spec)
    except SandboxUnavailable:
        raise
    except TimeoutError as error:
        raise EnvironmentFailed(f"the environment was not made within {task.build_timeout_s:g} s") from error
    except SandboxError as error:
        raise EnvironmentFailed(str(error)) from error


# --- what follows -------------------------------------------------------------------------------------------------------


def _recorded(task: Task, record: CheckRecord, untouched: Sequence[Tried], solved: Sequence[Tried]) -> CheckRecord:
    clean = next((tried for tried in solved if tried.passes), None)
    expected = task.expected or (tuple(clean.results) if clean is not None else ())
    gained = {name for tried in untouched for name, passed in tried.results.items() if passed}
    flaky = sorted({*_varying(untouched), *_varying(solved)})
    problems = [*_of_untouched(untouched), *_of_reference(task, solved)]
    if flaky:
        problems.append(Problem(part="flaky", text=f"not the same in all runs: {', '.join(flaky)}"))
    if untouched[0].layer:
        leaks = find_leaks(task, untouched[0].layer, solved[0].layer if solved else untouched[0].layer)
        problems += [Problem(part=leak.kind, text=leak.text) for leak in leaks if leak.kind not in task.accept]
    problems.sort(key=lambda problem: PARTS.index(problem.part))
    graded = (clean or untouched[0]).verdict
    return msgspec.structs.replace(
        record,
        problems=tuple(problems),
        notes=tuple(_notes(task, solved, clean)),
        expected=expected,
        baseline=tuple(name for name in expected if name in gained or name in task.baseline),
        flaky=tuple(flaky),
        runs=len(untouched),
        failed_runs=sum(not tried.passes for tried in solved),
        tests_digest=graded.tests_digest,
        tools_digest=graded.tools_digest,
        isolation=graded.isolation.backend,
    )


def _of_untouched(untouched: Iterable[Tried]) -> list[Problem]:
    """Doing nothing must be graded, and must leave something to do."""
    for tried in untouched:
        verdict = tried.verdict
        if verdict.outcome != "graded":
            text = f"a trial that does nothing is not graded: {verdict.outcome}: {verdict.detail}"
            return [Problem(part="untouched", text=text, output=verdict.output)]
        if tried.passes:
            count = len(tried.results)
            what = f"all {count} assertions" if verdict.binary is None else "the tests"
            return [Problem(part="untouched", text=f"a trial that does nothing passes {what}", output=verdict.output)]
    return []


def _of_reference(task: Task, solved: Sequence[Tried]) -> list[Problem]:
    if task.solution_dir is None:
        text = "no solution/solve.sh: nothing shows that the task can be solved"
        return [Problem(part="reference", text=text)]
    failed = [tried for tried in solved if not tried.passes]
    if not failed:
        return []
    first = failed[0]
    often = f" in {len(failed)} of {len(solved)} runs" if len(solved) > 1 else ""
    if first.verdict.outcome != "graded":
        what = f"is not graded{often}: {first.verdict.outcome}: {first.verdict.detail}"
    elif first.verdict.binary is not None:
        what = f"does not pass the tests{often}"
    else:
        what = f"fails {len(first.missed)} of {len(first.results)} assertions{often}: {', '.join(first.missed)}"
    solving = f"; {first.solving}" if first.solving else ""
    said = "\n".join(text for text in (first.output, first.verdict.output) if text)
    return [Problem(part="reference", text=f"the reference {what}{solving}", output=said)]


def _varying(trials: Sequence[Tried]) -> set[str]:
    """Ids that passed in one of the graded trials and failed in another."""
    graded = [tried.results for tried in trials if tried.verdict.outcome == "graded"]
    names = {name for results in graded for name in results}
    return {name for name in names if len({results.get(name, False) for results in graded}) > 1}


def _notes(task: Task, solved: Sequence[Tried], clean: Tried | None) -> list[str]:
    notes = [f"{key} means nothing here" for key in task.unknown_keys]
    notes += [f"{key} has no effect here" for key in task.unused_keys]
    if not task.expected and clean is not None and clean.verdict.binary is None:
        notes.append("task.toml declares no expected ids; those of the reference's run are recorded")
    if not task.expected and clean is not None and clean.verdict.binary is not None:
        notes.append("the tests report no assertions, only 0 or 1")
    notes += sorted(
        {f"{tried.solving}, and all the same it passes" for tried in solved if tried.solving and tried.passes}
    )
    return notes
