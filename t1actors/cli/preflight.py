"""What a run brings of its own, looked at before it starts: the tasks of a directory, the model folder.

Guarantees: a run starts only with a model that can be loaded and encoded for, and with pools that are not empty; which
tasks of the directory it uses is decided here, once, and why the others are left out is told. No torch is imported.

Left to others: what a task must be (``tasks.reader``), whether machine and sandbox are fit (``cli.checks``).
"""

from __future__ import annotations

import difflib
import shlex
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from t1actors.actors.environments import image_builder, image_store, why_no_network
from t1actors.actors.live_tests import why_not
from t1actors.actors.schedule import Schedule
from t1actors.cli.errors import CommandFailed
from t1actors.config import Config, SandboxConfig
from t1actors.harness.choice import make_harness, programs_of
from t1actors.harness.interface import Harness
from t1actors.models.fit import ModelFacts, check_model
from t1actors.models.folder import BUILTIN_PREFIX
from t1actors.observe.quantities import size
from t1actors.runtime.actor import Unrecoverable
from t1actors.sandbox.shim.network import TOOL as NETWORK_TOOL
from t1actors.tasks.choice import ChosenTask, LeftOutTask, TaskChoice, changed
from t1actors.tasks.pools import BUILTIN, KINDS
from t1actors.tasks.reader import read_task, task_digest, task_folders
from t1actors.tasks.record import CheckRecord, as_checked, read_record
from t1actors.tasks.settings import KEYS
from t1actors.tasks.task import Task, TaskError
from t1actors.verify.tools import find_program

SHOWN = 4
"""Left-out tasks that are named on the terminal; ``tasks.md`` names all."""


@dataclass(frozen=True)
class Preflight:
    """``lines`` are for the terminal; ``tasks_md`` is empty where the tasks are built in."""

    choice: TaskChoice | None
    lines: tuple[str, ...]
    tasks_md: str = ""


def with_full_paths(config: Config) -> Config:
    """The same with absolute paths, so that a run can be resumed from anywhere."""
    model, tasks = config.model, config.tasks
    if not model.policy.startswith(BUILTIN_PREFIX):
        model = replace(model, policy=str(Path(model.policy).absolute()))
    if model.critic != "policy" and not model.critic.startswith(BUILTIN_PREFIX):
        model = replace(model, critic=str(Path(model.critic).absolute()))
    if tasks.source != BUILTIN:
        tasks = replace(tasks, source=str(Path(tasks.source).absolute()))
    sandbox = config.sandbox
    if not sandbox.images.startswith("~"):
        sandbox = replace(sandbox, images=str(Path(sandbox.images).absolute()))
    return replace(config, model=model, tasks=tasks, sandbox=sandbox)


def preflight(config: Config, memory_bytes: int | None) -> Preflight:
    """Look at what ``config`` names; ``memory_bytes`` is what this machine has available, where that is known.

    Raises ``CommandFailed``, ``ModelFolderError``, ``TaskError``.
    """
    facts, tokenizer = check_model(config)
    harness = make_harness(config.rollout, tokenizer)
    _check_harness(config, harness)
    lines = _model_lines(config, facts, memory_bytes)
    if config.tasks.source == BUILTIN:
        _pools(config, None)
        return Preflight(None, tuple(lines))
    choice, notes = choose_tasks(config, harness)
    schedule = _pools(config, choice)
    count = len(choice.usable) + len(choice.left_out)
    sizes = ", ".join(f"{len(schedule.pool(kind))} {kind}" for kind in KINDS if schedule.pool(kind))
    lines.append(f"tasks  usable {len(choice.usable)} of {count} in {choice.source}: {sizes}")
    lines += [f"       left out {task.name}: {task.reason}" for task in choice.left_out[:SHOWN]]
    if len(choice.left_out) > SHOWN:
        lines.append(f"       and {len(choice.left_out) - SHOWN} more; tasks.md in the run's directory has all")
    lines += [f"       {note}" for note in [*notes, *_repeats(config, schedule)]]
    return Preflight(choice, tuple(lines), _tasks_md(choice, schedule, notes))


def check_unchanged(config: Config, choice: TaskChoice) -> None:
    """The chosen tasks are what they were when the run began. Raises ``CommandFailed`` naming the first that is not."""
    for task in choice.usable:
        folder = Path(config.tasks.source) / task.name
        if not folder.is_dir():
            raise CommandFailed(changed(task.name, f"{folder} is not there"))
        digest = task_digest(folder)
        if digest != task.digest:
            raise CommandFailed(changed(task.name, f"its files have the digest {digest[:16]}, not {task.digest[:16]}"))


def _check_harness(config: Config, harness: Harness) -> None:
    """What it tells every model leaves room for an answer; and where sandboxes have the host's /usr, what it needs is there
    (of images, the first sandbox says). Raises ``CommandFailed``."""
    told, rollout = len(harness.opening("", "")), config.rollout
    if told + rollout.max_new_tokens > rollout.max_ids:
        raise CommandFailed(
            f"rollout.max_ids = {rollout.max_ids:,}: what the harness {rollout.harness} tells the model takes {told:,} ids "
            f"without any task, and an answer may take {rollout.max_new_tokens:,} (rollout.max_new_tokens): raise it"
        )
    if rollout.harness == "command":
        _check_program(shlex.split(rollout.command)[0])
    on_host = config.sandbox.backend == "namespaces" and (config.sandbox.host_base or config.tasks.source == BUILTIN)
    lacking = [name for name in programs_of(config.rollout) if on_host and find_program(name) is None]
    if lacking:
        raise CommandFailed(
            f"rollout.harness = {config.rollout.harness!r} needs {', '.join(lacking)} in every sandbox, and the host's /usr, "
            f"which is theirs, has none: install it there (apt-get install {' '.join(lacking)})"
        )


def _check_program(program: str) -> None:
    if shutil.which(program) is None:
        raise CommandFailed(
            f"rollout.command: there is no program {program!r} here: name one on the PATH, or by its full path"
        )
    lacking = [name for name in ("hypercorn", "sniffio", "starlette") if find_spec(name) is None]
    if lacking:
        raise CommandFailed(
            f'rollout.harness = "command" serves the model over HTTP, which needs {", ".join(lacking)}: '
            "pip install 't1actors[serve]'"
        )


# --- tasks ------------------------------------------------------------------------------------------------------------


def choose_tasks(config: Config, harness: Harness) -> tuple[TaskChoice, list[str]]:
    """The directory's tasks, each usable or left out with its reason, and what is worth knowing of the usable ones.

    Raises ``TaskError`` when there is no such directory, ``CommandFailed`` when none is usable.
    """
    directory = Path(config.tasks.source)
    if not directory.is_dir():
        found = "not a directory" if directory.exists() else "no such directory"
        raise TaskError(f"tasks.source = {str(directory)!r}: {found}; name one that holds a folder for each task")
    usable: list[Task] = []
    left_out: list[LeftOutTask] = []
    records: dict[str, CheckRecord | None] = {}
    for folder in task_folders(directory):
        try:
            task, records[folder.name] = read_task(folder), read_record(folder)
        except TaskError as error:
            left_out.append(LeftOutTask(name=folder.name, reason=_short(str(error), folder)))
            continue
        lacking = [*unmet(task, config, harness), *_failed_check(task, records[task.name])]
        if lacking:
            left_out.append(LeftOutTask(name=task.name, reason="; ".join(lacking)))
        else:
            usable.append(task)
    if not usable:
        found = "".join(f"\n  {task.name}: {task.reason}" for task in left_out[: 2 * SHOWN]) or " it holds no folder"
        raise CommandFailed(f"no task in {directory} can be used:{found}")
    checked = [_as_found(task, records[task.name]) for task in usable]
    chosen = tuple(
        ChosenTask(name=task.name, digest=task.digest, expected=task.expected, baseline=task.baseline)
        for task in checked
    )
    notes = [*_notes(checked, config.sandbox), *_check_notes(directory, usable, records)]
    return TaskChoice(source=str(directory), usable=chosen, left_out=tuple(left_out)), notes


def _of_this(task: Task, record: CheckRecord | None) -> CheckRecord | None:
    """The record, where it is of the task as it is now."""
    return record if record is not None and record.digest == task.digest else None


def _failed_check(task: Task, record: CheckRecord | None) -> list[str]:
    found = _of_this(task, record)
    return [f"`t1 task check`: {problem.part}: {problem.text}" for problem in (found.problems if found else ())[:1]]


def _as_found(task: Task, record: CheckRecord | None) -> Task:
    found = _of_this(task, record)
    return as_checked(task, found.expected, found.baseline) if found else task


def _check_notes(directory: Path, usable: list[Task], records: dict[str, CheckRecord | None]) -> list[str]:
    notes: list[str] = []
    unchecked = [task.name for task in usable if _of_this(task, records[task.name]) is None]
    if unchecked:
        changed_since = sum(records[name] is not None for name in unchecked)
        since = f", {changed_since} of them not since they changed" if changed_since else ""
        notes.append(f"{len(unchecked)} were not checked{since}: `t1 task check {directory}`")
    with_baseline = [task.name for task in usable if _as_found(task, records[task.name]).baseline]
    if with_baseline:
        notes.append(
            f"{len(with_baseline)} pass some assertions when nothing is done (docs/tasks.md): those are no gain, "
            f"as of {with_baseline[0]}"
        )
    return notes


def unmet(task: Task, config: Config, harness: Harness) -> list[str]:
    """What ``task`` needs and a trial of this run does not give it."""
    found = unmet_by_sandbox(task, config.sandbox)
    if reason := why_not(task, config):
        found.append(reason)
    ids = len(harness.opening(task.instruction, ""))
    if ids >= config.rollout.max_ids:
        found.append(f"its instruction takes {ids} ids, rollout.max_ids is {config.rollout.max_ids}")
    return found


def unmet_by_sandbox(task: Task, sandbox: SandboxConfig) -> list[str]:
    """What ``task`` needs and a sandbox of that configuration does not give it."""
    found: list[str] = []
    recipe = task.environment.recipe
    if recipe is not None and (not sandbox.host_base or task.environment.takes_a_build):
        builder = image_builder(sandbox, image_store(sandbox))
        try:
            found += [f"its image {reason}" for reason in builder.lacking(recipe)]
        except TaskError as error:
            found.append(str(error))
    if reason := why_no_network(task, sandbox):
        found.append(reason)
    elif task.network.agent != "none" and shutil.which(NETWORK_TOOL) is None:
        found.append(f"it asks for a network, which takes {NETWORK_TOOL}: apt-get install {NETWORK_TOOL}")
    for needed, key, have in (
        (task.memory_mb, "memory_mb", sandbox.memory_mb),
        (task.storage_mb, "disk_mb", sandbox.disk_mb),
    ):
        if needed is not None and needed > have:
            what = "memory" if key == "memory_mb" else "disk"
            found.append(f"needs {needed} MB of {what}, a sandbox has {have}: --set sandbox.{key}={needed}")
    stands_in = sandbox.backend == "namespaces" and sandbox.host_base
    lacking = [name for name in task.programs if stands_in and find_program(name) is None]
    if lacking:
        found.append(f"needs {', '.join(lacking)}, and the host's /usr has none: install it there")
    return found


def _notes(usable: list[Task], sandbox: SandboxConfig) -> list[str]:
    notes: list[str] = []
    stand_in = "the host's own /usr" if sandbox.backend == "namespaces" else f"the image {sandbox.docker.image}"
    bases = Counter(task.environment.base for task in usable)
    named = ", ".join(f"{base} ({count})" for base, count in bases.most_common(SHOWN))
    notes.append(
        f"{stand_in} stands in for the images {named}" if sandbox.host_base else f"built on the images {named}"
    )
    undeclared = [task.name for task in usable if not task.expected]
    if undeclared:
        notes.append(
            f"{len(undeclared)} declare no expected assertions (docs/tasks.md): what their report lists is what counts, "
            f"as for {undeclared[0]}"
        )
    for task in usable:
        for key in task.unknown_keys:
            near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            notes.append(f"{task.name}: task.toml has the key {key}, which means nothing here{hint}")
    return notes


def _short(message: str, folder: Path) -> str:
    """The message with paths as they are inside the task's folder."""
    return message.replace(f"{folder}/", "")


def _pools(config: Config, choice: TaskChoice | None) -> Schedule:
    try:
        return Schedule(config, Path(), choice)
    except Unrecoverable as error:
        raise CommandFailed(str(error)) from error


def _repeats(config: Config, schedule: Schedule) -> list[str]:
    train, launched = len(schedule.pool("train")), config.launched_per_step
    if not train or launched <= train:
        return []
    return [f"a step launches {launched} trials from {train} training tasks: some are drawn more than once"]


def _tasks_md(choice: TaskChoice, schedule: Schedule, notes: list[str]) -> str:
    pool_of = {name: kind for kind in KINDS for name in schedule.pool(kind)}
    lines = ["# Tasks of this run", "", f"From `{choice.source}`, as it was when the run began.", ""]
    lines += [f"- {note}" for note in notes]
    if choice.left_out:
        lines += ["", "## Left out", "", "| task | why |", "|---|---|"]
        lines += [f"| {task.name} | {task.reason.replace('|', '/')} |" for task in choice.left_out]
    lines += ["", "## Used", "", "| task | pool | digest |", "|---|---|---|"]
    lines += [f"| {task.name} | {pool_of.get(task.name, '-')} | {task.digest[:16]} |" for task in choice.usable]
    return "\n".join(lines) + "\n"


# --- the model --------------------------------------------------------------------------------------------------------


def _model_lines(config: Config, facts: ModelFacts, memory_bytes: int | None) -> list[str]:
    """Says nothing of a built-in model. Raises ``CommandFailed`` when it cannot be held."""
    needed = f"its weights and optimizers take about {size(facts.needed_bytes)} of memory in all processes together"
    if memory_bytes is not None and facts.needed_bytes > memory_bytes:
        raise CommandFailed(
            f"{facts.folder}: {facts.parameters:,} parameters; {needed}, and this machine has {size(memory_bytes)} left; "
            "free some, take a smaller model, or set model.train_dtype and model.sampler_dtype to bfloat16"
        )
    if config.model.policy.startswith(BUILTIN_PREFIX):
        return []
    return [
        f"model  {facts.folder}: {facts.parameters:,} parameters, {facts.vocabulary:,} ids, {facts.positions:,} positions, "
        f"chat format: {facts.chat_format}",
        f"       {needed}",
    ]
