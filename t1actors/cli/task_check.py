"""`t1 task check`: are these tasks fit to train on?"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
import trio
from cyclopts import Parameter

from t1actors.actors.environments import Environments, image_store
from t1actors.cli.errors import FAILED, CommandFailed
from t1actors.cli.numbers import Whole, at_least
from t1actors.cli.preflight import unmet_by_sandbox
from t1actors.cli.progress import Progress
from t1actors.cli.settings import Sets
from t1actors.cli.task_folders import TaskDirectories, TaskPreset, sandbox_config, tasks_at
from t1actors.config import SandboxConfig
from t1actors.images.errors import BuildFailed, ImageMissing
from t1actors.sandbox.choice import limits_of, make_backend
from t1actors.sandbox.interface import SandboxBackend
from t1actors.tasks.reader import read_task, task_digest
from t1actors.tasks.record import CheckRecord, Problem, write_record
from t1actors.tasks.task import Task, TaskError
from t1actors.verify.task_check import EnvironmentFailed, Ground, check_task

OUTPUT_LINES = 20
"""Of what a task's own programs said, at the end."""


@dataclass(frozen=True)
class Checked:
    """A task's folder and what was found; ``seconds`` is how long that took."""

    folder: Path
    record: CheckRecord
    seconds: float


def check(
    *directories: TaskDirectories,
    runs: Annotated[Whole, Parameter(help="How often each task is solved, and left alone: finds flaky tests.")] = 1,
    jobs: Annotated[Whole, Parameter(help="Tasks at once.")] = 2,
    preset: TaskPreset = None,
    sets: Sets = (),
    as_json: Annotated[bool, Parameter(name="--json", negative=(), help="Print one JSON list.")] = False,
) -> int:
    """Try tasks in real sandboxes: each is made, solved by its reference, and left alone.

    The reference has to pass every expected assertion, doing nothing must not, and neither the solution nor the tests may
    lie in what the agent gets. What is found is kept beside the task, in .checked/, for runs to use. Exit status 0: all
    passed. 1: some did not, and the lines say which part.

    Example: `t1 task check my-tasks`

    Example: `t1 task check my-tasks/one my-tasks/two --runs 5 --json`
    """
    at_least(1, "--runs", runs)
    at_least(1, "--jobs", jobs)
    folders = tasks_at(directories)
    sandbox = sandbox_config(preset, sets)
    found: list[Checked] = []
    with Progress("tasks") as progress:

        def tell(checked: Checked) -> None:
            found.append(checked)
            if not as_json:
                progress.clear()
                print("\n".join(lines_of(checked)), flush=True)

        progress(0, len(folders))
        trio.run(_check_all, folders, sandbox, runs, jobs, tell, progress)
    failed = [checked for checked in found if not checked.record.passed]
    if as_json:
        print(json.dumps([_plain(checked) for checked in found], indent=1))
    elif len(found) > 1:
        print(f"{len(found) - len(failed)} of {len(found)} tasks passed")
    return FAILED if failed else 0


async def _check_all(
    folders: Sequence[Path],
    sandbox: SandboxConfig,
    runs: int,
    jobs: int,
    tell: Callable[[Checked], None],
    progress: Progress,
) -> None:
    """``tell`` of each in the order of ``folders``, as soon as those before it are told."""
    done: dict[int, Checked] = {}
    told = 0
    waiting = iter(enumerate(folders))

    async def work(backend: SandboxBackend) -> None:
        nonlocal told
        for place, folder in waiting:
            started_s = anyio.current_time()
            record = await check_folder(
                folder, backend, key=f"c{place}", runs=runs, sandbox=sandbox, environments=environments
            )
            done[place] = Checked(folder, record, anyio.current_time() - started_s)
            while told in done:
                tell(done[told])
                told += 1
            progress(len(done), len(folders), folder.name)

    with tempfile.TemporaryDirectory(prefix="t1-check-") as root:
        images = image_store(sandbox)
        environments = Environments(sandbox, images)
        backend = make_backend(sandbox, Path(root) / "sandboxes", name="check", images=images)
        async with backend.running(), anyio.create_task_group() as workers:
            for _ in range(min(jobs, len(folders))):
                workers.start_soon(work, backend)


async def check_folder(
    folder: Path,
    backend: SandboxBackend,
    *,
    key: str,
    runs: int,
    sandbox: SandboxConfig,
    environments: Environments,
) -> CheckRecord:
    """Check the task in ``folder`` and keep the record. Raises ``CommandFailed`` when it cannot be kept, and what
    ``check_task`` raises."""
    try:
        task = read_task(folder)
    except TaskError as error:
        return _of_part("read", str(error).replace(f"{folder}/", ""))
    lacking = unmet_by_sandbox(task, sandbox)
    if lacking:
        return _of_part("needs", "; ".join(lacking), task.digest)
    limits = limits_of(sandbox)

    async def ground_of(task: Task) -> Ground:
        try:
            start = await environments.of(task)
        except (BuildFailed, ImageMissing) as error:
            raise EnvironmentFailed(str(error)) from error
        return Ground(start.layers, start.env, start.base, start.network, sandbox.refused_addresses)

    record = await check_task(task, backend, key=key, runs=runs, limits=limits, ground_of=ground_of)
    if task_digest(folder) != task.digest:
        return _of_part("read", "its files changed while it was checked; check it again")
    try:
        write_record(folder, record)
    except OSError as error:
        raise CommandFailed(
            f"what was found of {folder} cannot be kept beside it: {error}; make its parent directory writable, or check a "
            "copy"
        ) from error
    return record


def _of_part(part: str, text: str, digest: str = "") -> CheckRecord:
    return CheckRecord(digest=digest, problems=(Problem(part=part, text=text),))


def lines_of(checked: Checked) -> list[str]:
    """A line of the verdict, and one of each further problem, note and piece of output."""
    record, name = checked.record, checked.folder.name
    if record.passed:
        gain = len(record.expected) - len(record.baseline)
        what = f"the reference passes {len(record.expected)} assertions, doing nothing {len(record.baseline)}"
        if record.baseline:
            what += f" (worth {gain}; no gain: {', '.join(record.baseline)})"
        if not record.expected:
            what = "the reference passes, doing nothing does not"
        shown = [f"ok    {name}: {what}; {record.runs} run{'s' * (record.runs > 1)}, {checked.seconds:.1f} s"]
    else:
        shown = [f"FAIL  {name}: {problem.part}: {problem.text}" for problem in record.problems]
        rate = f"{record.failed_runs} of {record.runs} runs of the reference failed"
        shown += [f"      {rate}"] if record.runs > 1 else []
    shown += [f"      note: {note}" for note in record.notes]
    for problem in record.problems:
        shown += [f"      | {line}" for line in problem.output.splitlines()[-OUTPUT_LINES:]]
    return shown


def _plain(checked: Checked) -> dict[str, object]:
    record = checked.record
    return {
        "task": checked.folder.name,
        "directory": str(checked.folder),
        "passed": record.passed,
        "flake_rate": record.flake_rate,
        "seconds": round(checked.seconds, 3),
        **msgspec.to_builtins(record),
    }
