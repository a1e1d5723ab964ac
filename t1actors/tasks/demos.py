"""Executed demonstrations: scripted, noisy work on built-in tasks, done in real sandboxes for the warm start to learn from.

Guarantees: commands are functions of the task's name and the seed; observations are what the shell really said, written by
the same function that a rollout uses (the caller gives it); results come in the order of the names, whatever runs first.

The commands are this project's own, so a demonstration is checked in the sandbox it ran in: nothing here is a grading of an
agent's trial (``verify`` does that).
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import anyio
import msgspec

from t1actors.sandbox.archive import File, archive_of_files
from t1actors.sandbox.interface import Layer, Limits, RunRequest, SandboxBackend, SandboxSpec
from t1actors.tasks.draws import Draws
from t1actors.tasks.generate import WORKDIR, GeneratedTask, demonstration, make_named_task
from t1actors.tasks.layers import TESTS_AT
from t1actors.tasks.task import TaskError
from t1actors.tasks.write import CONTROL, task_files

REPORT = "/logs/verifier/ctrf.json"
LEASE_S = 120.0

ObservationText = Callable[[str, int, int], str]
"""(output, exit code, most characters) -> what the model is shown: ``harness.native.observation_text``."""


class Demonstration(msgspec.Struct, frozen=True, kw_only=True):
    """``observations`` has one entry for every command but the last, which submits. ``passed`` of ``expected``
    assertions held at the end."""

    task: str
    level: int
    instruction: str
    commands: tuple[str, ...]
    observations: tuple[str, ...]
    passed: int
    expected: int


async def record_demonstrations(
    backend: SandboxBackend,
    names: Sequence[str],
    *,
    seed: int,
    wrong_share: float,
    stop_share: float,
    observe: ObservationText,
    observation_chars: int,
    limits: Limits,
    parallel: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> list[Demonstration]:
    """One demonstration of each built-in task in ``names``, ``parallel`` sandboxes at a time.

    Raises:
        TaskError: a name is no built-in task's.
        SandboxError: a sandbox could not be made or died; nothing is left of it.
    """
    done: dict[str, Demonstration] = {}
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:
            task = make_named_task(name)
            draws = Draws(f"demonstration-{seed}-{name}")
            commands = demonstration(task, draws, wrong_share=wrong_share, stop_share=stop_share)
            try:
                done[name] = await _record(backend, task, commands, observe, observation_chars, limits)
            finally:
                with anyio.CancelScope(shield=True):
                    await backend.kill(_key(task))
            if progress is not None:
                progress(len(done), len(names))

    async with anyio.create_task_group() as workers:
        for _ in range(min(parallel, len(names))):
            workers.start_soon(work)
    return [done[name] for name in names]


def generated_layers(task: GeneratedTask) -> tuple[Layer, ...]:
    """A generated task's environment and its tests, without a task directory: the same bytes as from one."""
    files = {path: File(content.encode(), 0o600) for path, content in task.files}
    tests = {
        path.removeprefix("tests/"): File(content.encode(), 0o700 if executable else 0o600)
        for path, content, executable in task_files(task)
        if path.startswith("tests/")
    }
    environment = [Layer(archive=archive_of_files(files, directory_mode=0o700), at=WORKDIR)] if files else []
    return (*environment, Layer(archive=archive_of_files(tests, directory_mode=0o700), at=TESTS_AT, read_only=True))


def write_demonstrations(path: Path, demonstrations: Sequence[Demonstration]) -> None:
    """As gzipped JSON lines; equal demonstrations give equal bytes (of one zlib)."""
    lines = b"".join(msgspec.json.encode(demonstration) + b"\n" for demonstration in demonstrations)
    path.write_bytes(gzip.compress(lines, 9, mtime=0))


def read_demonstrations(path: Path) -> Iterator[Demonstration]:
    """What ``write_demonstrations`` wrote. Raises ``TaskError`` naming the line that is none."""
    decoder = msgspec.json.Decoder(Demonstration)
    try:
        with gzip.open(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    yield decoder.decode(line)
                except msgspec.MsgspecError as error:
                    raise TaskError(f"{path}, line {number}: no demonstration: {error}") from error
    except (OSError, EOFError) as error:
        raise TaskError(f"{path}: cannot be read: {error}; `t1 warmstart demos` makes it again") from error


def _key(task: GeneratedTask) -> str:
    return f"demo-{task.name}"


async def _record(
    backend: SandboxBackend,
    task: GeneratedTask,
    commands: tuple[str, ...],
    observe: ObservationText,
    observation_chars: int,
    limits: Limits,
) -> Demonstration:
    key = _key(task)
    layers = generated_layers(task)
    await backend.create(SandboxSpec(key=key, workdir=WORKDIR, limits=limits, lease_s=LEASE_S, layers=layers))
    observations: list[str] = []
    for turn, command in enumerate(commands[:-1]):
        request = RunRequest(key=f"{key}/{turn}", command=command, limit_s=limits.command_s)
        result = await backend.run(key, request)
        observations.append(observe(result.text, result.exit_code, observation_chars))
    request = RunRequest(key=f"{key}/tests", command="bash /tests/test.sh", limit_s=limits.command_s)
    result = await backend.run(key, request)
    report = await backend.read_file(key, REPORT, max_bytes=1 << 20)
    if report is None:
        raise TaskError(
            f"{task.name}: its tests wrote no {REPORT}: exit status {result.exit_code}: {result.text[-500:]}"
        )
    return Demonstration(
        task=task.name,
        level=task.level,
        instruction=task.instruction,
        commands=commands,
        observations=tuple(observations),
        passed=_passed(report),
        expected=len(task.assertions),
    )


class _Test(msgspec.Struct):
    name: str
    status: str


class _Results(msgspec.Struct):
    tests: list[_Test]


class _Report(msgspec.Struct):
    results: _Results


def _passed(report: bytes) -> int:
    results = msgspec.json.decode(report, type=_Report).results
    return sum(test.status == "passed" for test in results.tests if test.name != CONTROL)
