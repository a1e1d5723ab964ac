"""What a task.toml says, in the spellings of Harbor's schema 1.0 to 1.4.

Guarantees: every key that decides how a task runs or is graded is read with its type checked, or refused by name where it
asks for what is not here (several containers, steps, GPUs, another operating system); a key that Harbor knows and that
changes nothing here is listed in ``Settings.unused_keys``, any other in ``Settings.unknown_keys``. Whatever the file
holds, the outcome is ``Settings`` or a ``TaskError`` that names the file, and the key where one is at fault.

Left to others: the rest of the task's directory (``tasks.reader``).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from t1actors.tasks.grading import KEYS as GRADING_KEYS
from t1actors.tasks.grading import GradingRules, read_grading
from t1actors.tasks.network import KEYS as NETWORK_KEYS
from t1actors.tasks.network import NetworkNeeds, read_network
from t1actors.tasks.table import Table
from t1actors.tasks.task import TaskError

VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
ACCEPTABLE = ("history", "leak")
"""Findings of `t1 task check` that a task may declare to be intended."""

_TOP = ("schema_version", "version", "source", "artifacts", "steps", "multi_step_reward_strategy", "multi_step_reward_mode",
        "task", "metadata", "verifier", "agent", "environment", "solution")  # fmt: skip
_PACKAGE = ("name", "version", "description", "authors", "keywords")
_PHASE = ("timeout_sec", "user", *NETWORK_KEYS)
_ENVIRONMENT = (
    "docker_image", "build_timeout_sec", "os", "cpus", "memory_mb", "memory", "storage_mb", "storage", "gpus", "gpu_types",
    "tpu", *NETWORK_KEYS, "allow_internet", "env", "workdir", "mcp_servers", "skills_dir", "healthcheck",
)  # fmt: skip
_T1 = (
    "expected", "control", "baseline", "accept", "programs", "families", "level", "sub_goals", "seed", *GRADING_KEYS,
)  # fmt: skip
KEYS = (
    *_TOP,
    *(f"task.{key}" for key in _PACKAGE),
    *(f"metadata.t1.{key}" for key in _T1),
    *(f"verifier.{key}" for key in (*_PHASE, "env", "environment_mode", "environment", "collect")),
    *(f"agent.{key}" for key in _PHASE),
    *(f"environment.{key}" for key in _ENVIRONMENT),
    "solution.env",
)
"""Keys of task.toml that mean something here or in Harbor: for telling a misspelt one."""

_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_MB = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
"""Harbor's older sizes are strings ("2G"); a bare number is megabytes."""


@dataclass(frozen=True)
class Settings:
    """``workdir`` and ``docker_image`` are None where the file leaves them to the Dockerfile."""

    docker_image: str | None
    workdir: str | None
    env: tuple[tuple[str, str], ...]
    verifier_env: tuple[tuple[str, str], ...]
    solution_env: tuple[tuple[str, str], ...]
    expected: tuple[str, ...]
    control: str
    baseline: tuple[str, ...]
    accept: tuple[str, ...]
    programs: tuple[str, ...]
    families: tuple[str, ...]
    level: int
    sub_goals: int | None
    agent_timeout_s: float | None
    verifier_timeout_s: float
    build_timeout_s: float
    cpus: float | None
    memory_mb: int | None
    storage_mb: int | None
    network: NetworkNeeds
    grading: GradingRules
    unused_keys: tuple[str, ...]
    unknown_keys: tuple[str, ...]


def read_settings(file: Path) -> Settings:
    """Raises ``TaskError``."""
    top = Table(file, _parse(file))
    _check_version(top)
    _refuse_steps(top)
    top.table("task").skip(*_PACKAGE)
    metadata, verifier, agent = top.table("metadata"), top.table("verifier"), top.table("agent")
    environment, solution = top.table("environment"), top.table("solution")
    t1 = metadata.table("t1")
    t1.skip("seed")
    _refuse_other_machines(environment)
    _refuse_other_verifiers(verifier)
    expected, baseline = _distinct(t1, "expected"), _distinct(t1, "baseline")
    if expected and (extra := [name for name in baseline if name not in expected]):
        raise t1.wrong("baseline", extra, "ids that metadata.t1.expected has, too")
    for phase in (agent, verifier):
        _refuse_other_users(phase)
    network = read_network(environment, agent, verifier)
    environment.unused("gpu_types", "skills_dir")
    verifier.unused("environment_mode")
    top.unused("artifacts")
    top.skip("source", "multi_step_reward_strategy", "multi_step_reward_mode")
    accept = t1.strings("accept")
    if wrong := [name for name in accept if name not in ACCEPTABLE]:
        raise t1.wrong("accept", wrong, f"findings that a task may intend: {', '.join(ACCEPTABLE)}")
    return Settings(
        docker_image=_filled(environment, "docker_image"),
        workdir=_workdir(environment),
        env=_variables(environment),
        verifier_env=_variables(verifier),
        solution_env=_variables(solution),
        expected=expected,
        control=t1.string("control") or "",
        baseline=baseline,
        accept=accept,
        programs=t1.strings("programs"),
        families=t1.strings("families"),
        level=t1.integer("level") or 0,
        sub_goals=t1.integer("sub_goals"),
        agent_timeout_s=agent.number("timeout_sec"),
        verifier_timeout_s=verifier.number("timeout_sec") or 600.0,
        build_timeout_s=environment.number("build_timeout_sec") or 600.0,
        cpus=environment.number("cpus"),
        memory_mb=_megabytes(environment, "memory_mb", "memory"),
        storage_mb=_megabytes(environment, "storage_mb", "storage"),
        network=network,
        grading=read_grading(t1),
        unused_keys=top.without_effect(),
        # Metadata is free text of the task's author: only its t1 table is ours.
        unknown_keys=_not_metadata(top.unknown()),
    )


def _parse(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if file.with_name("task.yaml").exists():
            raise TaskError(
                f"{file}: missing, but there is a task.yaml: a task in the layout of Terminal-Bench 1; convert it to "
                "Harbor's (task.toml, instruction.md, environment/, tests/test.sh)"
            ) from error
        raise TaskError(
            f"{file}: missing; a task directory has task.toml, instruction.md, environment/ and tests/"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: cannot be read as text: {error}") from error
    except RecursionError as error:
        raise TaskError(f"{file}: not TOML: nested too deep") from error
    except ValueError as error:  # tomllib's own error is one, and so is a number of thousands of digits
        raise TaskError(f"{file}: not TOML: {error}") from error


def _check_version(top: Table) -> None:
    key = "schema_version" if top.has("schema_version") else "version"
    version = top.string(key)
    top.skip("version")
    if version is not None and version not in VERSIONS:
        raise top.wrong(key, version, f"one of {VERSIONS[0]} to {VERSIONS[-1]}")


def _refuse_steps(top: Table) -> None:
    if top.filled("steps"):
        raise top.refused("steps", "tasks of several steps are not supported; make a task of each step")


def _refuse_other_machines(environment: Table) -> None:
    gpus = environment.integer("gpus") or 0
    if gpus > 0:
        raise environment.refused("gpus", "sandboxes with GPUs are not supported; set it to 0", gpus)
    if environment.filled("tpu"):
        raise environment.refused("tpu", "sandboxes with TPUs are not supported; leave it out")
    system = environment.string("os")
    if system is not None and system.lower() != "linux":
        raise environment.refused("os", "sandboxes are Linux", system)
    if environment.filled("mcp_servers"):
        raise environment.refused(
            "mcp_servers", "agents have a shell and no MCP client, and a sandbox is one container; leave it out"
        )
    if environment.filled("healthcheck"):
        raise environment.refused(
            "healthcheck", "a sandbox is ready when it is made, nothing runs in it beforehand; leave it out"
        )


def _refuse_other_verifiers(verifier: Table) -> None:
    if verifier.filled("environment"):
        raise verifier.refused(
            "environment", "grading takes the task's own environment, pristine; leave a verifier's own out"
        )
    if verifier.filled("collect"):
        raise verifier.refused(
            "collect", "what a trial leaves is sealed whole; commands of other services cannot be run"
        )


def _refuse_other_users(phase: Table) -> None:
    user = phase.string_or_integer("user")
    if user not in (None, "", "root", 0):
        raise phase.refused("user", "commands run as the sandbox's own root; leave it out", user)


def _filled(table: Table, key: str) -> str | None:
    value = table.string(key)
    if value is not None and (not value.strip() or not value.isprintable()):
        raise table.wrong(key, value, "a name, or leave it out")
    return value


def _workdir(environment: Table) -> str | None:
    value = _filled(environment, "workdir")
    if value is not None and not value.startswith("/"):
        raise environment.wrong("workdir", value, "an absolute path")
    return value


def _variables(table: Table) -> tuple[tuple[str, str], ...]:
    pairs = table.string_map("env")
    for name, value in pairs:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise table.wrong("env", {name: value}, "names of variables and text")
        if "${" in value:
            raise table.refused(
                f"env.{name}", "the host's variables reach no sandbox; write the value out or leave it out", value
            )
    return pairs


def _distinct(table: Table, key: str) -> tuple[str, ...]:
    values = table.strings(key)
    if len(set(values)) != len(values):
        raise table.wrong(key, list(values), "different assertion ids")
    return values


def _megabytes(table: Table, key: str, old_key: str) -> int | None:
    value = table.integer(key)
    old = table.string(old_key)
    if old is None:
        return value
    match = _SIZE.fullmatch(old.strip())
    if match is None:
        raise table.wrong(old_key, old, 'a size such as "2G" or "512M"')
    old_mb = max(1, round(float(match[1]) * _MB[match[2].upper()]))
    if value not in (None, old_mb):
        raise table.wrong(old_key, old, f"what {key} = {value} says, or only one of the two")
    return old_mb


def _not_metadata(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(key for key in keys if not key.startswith("metadata.") or key.startswith("metadata.t1."))
