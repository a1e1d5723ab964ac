"""`t1 task show`: what was read of a task, and where it could run."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from t1actors.cli.preflight import unmet_by_sandbox
from t1actors.cli.settings import Sets
from t1actors.cli.task_folders import TaskDirectories, TaskPreset, sandbox_config, tasks_at
from t1actors.config import BACKENDS, Backend, SandboxConfig
from t1actors.tasks.reader import read_task
from t1actors.tasks.record import CheckRecord, as_checked, read_record
from t1actors.tasks.settings import KEYS
from t1actors.tasks.task import Task

WIDTH = 13
IDS_SHOWN = 12


def show(
    *directories: TaskDirectories,
    preset: TaskPreset = None,
    sets: Sets = (),
    as_json: Annotated[bool, Parameter(name="--json", negative=(), help="Print one JSON list.")] = False,
) -> None:
    """Print what was read of tasks: environment, limits, digest, assertions, keys that mean nothing, and whether a sandbox
    here can run them: one of the configured backend, and one of the other. Nothing is run; `t1 task check` tries them.

    Example: `t1 task show my-tasks/one`
    """
    sandbox = sandbox_config(preset, sets)
    shown = [facts(read_task(folder), read_record(folder), sandbox) for folder in tasks_at(directories)]
    if as_json:
        print(json.dumps(shown, indent=1))
    else:
        print("\n\n".join("\n".join(lines(found)) for found in shown))


def facts(task: Task, record: CheckRecord | None, sandbox: SandboxConfig) -> dict[str, object]:
    """What `--json` prints of a task."""
    current = record if record is not None and record.digest == task.digest else None
    known = as_checked(task, current.expected, current.baseline) if current else task
    return {
        "task": task.name,
        "directory": str(task.path),
        "digest": task.digest,
        "instruction": task.instruction,
        "base": task.environment.base,
        "workdir": task.workdir,
        "env": dict(task.environment.env),
        "limits": {
            "cpus": task.cpus,
            "memory_mb": task.memory_mb,
            "storage_mb": task.storage_mb,
            "agent_s": task.agent_timeout_s,
            "verifier_s": task.verifier_timeout_s,
            "build_s": task.build_timeout_s,
            "network": task.network.agent,
        },
        "solution": task.solution_dir is not None,
        "expected": list(known.expected),
        "expected_from": "task.toml" if task.expected else "t1 task check" if known.expected else "",
        "control": task.control,
        "baseline": list(known.baseline),
        "check": _check_state(task, record),
        "programs": list(task.programs),
        "unknown_keys": {key: _near(key) for key in task.unknown_keys},
        "unused_keys": list(task.unused_keys),
        "backend": sandbox.backend,
        "backends": {name: unmet_by_sandbox(task, replace(sandbox, backend=name)) for name in _backends(sandbox)},
    }


def lines(found: dict[str, object]) -> list[str]:
    """The same for people."""
    limits, backends, unknown = found["limits"], found["backends"], found["unknown_keys"]
    assert isinstance(limits, dict)
    assert isinstance(backends, dict)
    assert isinstance(unknown, dict)
    instruction = str(found["instruction"])
    first = instruction.splitlines()[0]
    rows = [
        ("digest", str(found["digest"])),
        ("instruction", f"{len(instruction):,} characters: {first[:80]}{'...' if first != instruction else ''}"),
        ("environment", f"FROM {found['base']}, working directory {found['workdir']}"),
        ("limits", _limits(limits)),
        ("solution", "solution/solve.sh" if found["solution"] else "none"),
        ("expected", _ids(found["expected"], f" ({found['expected_from']})")),
        ("control", str(found["control"]) or "none"),
        ("baseline", _ids(found["baseline"], ", no gain: they pass when nothing is done")),
        ("check", str(found["check"])),
    ]
    rows += [("programs", ", ".join(_strings(found["programs"])))] if found["programs"] else []
    rows += [("unknown key", key + (f"; did you mean {near}?" if near else "")) for key, near in unknown.items()]
    rows += [("no effect", key) for key in _strings(found["unused_keys"])]
    for name, reasons in backends.items():
        setting = "" if name == found["backend"] else f"with --set sandbox.backend={name}: "
        rows.append((str(name), f"{setting}no: {'; '.join(reasons)}" if reasons else f"{setting}can run it"))
    return [f"{found['task']}  {found['directory']}", *(f"  {name:<{WIDTH}}{text}" for name, text in rows)]


def _backends(sandbox: SandboxConfig) -> Sequence[Backend]:
    """The configured one first."""
    return sorted(BACKENDS, key=lambda name: name != sandbox.backend)


def _check_state(task: Task, record: CheckRecord | None) -> str:
    if record is None:
        return f"never; `t1 task check {task.path}`"
    if record.digest != task.digest:
        return f"not since it changed; `t1 task check {task.path}`"
    if record.problems:
        return f"failed: {record.problems[0].part}: {record.problems[0].text}"
    return f"passed, {record.runs} run{'s' * (record.runs > 1)} on {record.isolation}"


def _limits(limits: dict[str, object]) -> str:
    named = {"cpus": "{} CPUs", "memory_mb": "{} MB of memory", "storage_mb": "{} MB of disk", "agent_s": "agent {:g} s",
             "verifier_s": "verifier {:g} s", "build_s": "build {:g} s"}  # fmt: skip
    said = [text.format(limits[key]) for key, text in named.items() if limits[key] is not None]
    return ", ".join([*said, _NETWORKS[str(limits["network"])]])


_NETWORKS = {"none": "no network", "internet": "asks for a network", "hosts": "asks for a network to named hosts"}


def _ids(ids: object, after: str) -> str:
    names = _strings(ids)
    if not names:
        return "none known"
    more = f", and {len(names) - IDS_SHOWN} more" if len(names) > IDS_SHOWN else ""
    return f"{len(names)}{after}: {', '.join(names[:IDS_SHOWN])}{more}"


def _strings(value: object) -> Sequence[str]:
    assert isinstance(value, list)
    return [str(item) for item in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _near(key: str) -> str:
    return next(iter(difflib.get_close_matches(key, KEYS, n=1, cutoff=0.6)), "")
