"""Reads task directories in the Harbor / Terminal-Bench layout.

Guarantees: what is read is whole (every file that will be needed is there) and is named by a digest of all its bytes;
keys of task.toml that mean nothing here are kept in ``Task.unknown_keys``; what cannot be honoured (compose files,
GPUs, build steps) is refused by name. Nothing here runs anything.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from dataclasses import replace
from pathlib import Path

import blake3

from t1actors.tasks.dockerfile import image_environment, read_dockerfile
from t1actors.tasks.generate import parse_name, sub_goals_of_level
from t1actors.tasks.table import Table
from t1actors.tasks.task import Environment, Task, TaskError

VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
_RESERVED = ("", "bin", "dev", "etc", "lib", "lib64", "logs", "proc", "sbin", "sys", "tests", "usr")
"""No working directory begins here: the tree an agent leaves is graded as a mount of its own."""
KEYS = (
    "version", "schema_version", "source", "solution", "task", "name",
    "metadata.t1.expected", "metadata.t1.control", "metadata.t1.families", "metadata.t1.level", "metadata.t1.sub_goals",
    "metadata.t1.seed", "verifier.timeout_sec", "agent.timeout_sec", "environment.docker_image",
    "environment.build_timeout_sec", "environment.cpus", "environment.memory_mb", "environment.memory",
    "environment.storage_mb", "environment.storage", "environment.allow_internet", "environment.gpus",
    "environment.gpu_types",
)  # fmt: skip
"""Keys of task.toml that mean something here, or in Harbor; for telling a misspelt one."""
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_MB = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
"""Harbor's older sizes are strings ("2G"); a bare number is megabytes."""


def read_task(directory: Path) -> Task:
    """The task in ``directory``.

    Raises:
        TaskError: something is missing or malformed; the message names the file, the key or line, and what would be
        right.
    """
    if not directory.is_dir():
        raise TaskError(f"{directory}: no such task directory; built-in tasks are written by `t1 tasks make`")
    file = directory / "task.toml"
    top = Table(file, _parse_toml(file))
    _check_version(file, top)
    metadata, verifier, agent = top.table("metadata"), top.table("verifier"), top.table("agent")
    environment = top.table("environment")
    top.ignore("source", "solution", "task", "name")
    metadata_t1 = metadata.table("t1")
    metadata_t1.ignore("seed")
    gpus = environment.integer("gpus") or 0
    if gpus > 0:
        raise TaskError(f"{file}: environment.gpus = {gpus}: sandboxes with GPUs are not supported; set it to 0")
    environment.ignore("gpu_types")
    tests_dir = directory / "tests"
    if not (tests_dir / "test.sh").is_file():
        raise TaskError(f"{tests_dir / 'test.sh'}: missing; it is what grades a trial")
    parsed = parse_name(directory.name)
    sub_goals = metadata_t1.integer("sub_goals")
    task = Task(
        name=directory.name,
        path=directory,
        digest=task_digest(directory),
        instruction=_instruction(directory / "instruction.md"),
        environment=_environment(directory / "environment", environment.string("docker_image")),
        tests_dir=tests_dir,
        solution_dir=directory / "solution" if (directory / "solution" / "solve.sh").is_file() else None,
        expected=_distinct(metadata_t1, "expected"),
        control=metadata_t1.string("control") or "",
        families=metadata_t1.strings("families"),
        level=metadata_t1.integer("level") or 0,
        sub_goals=sub_goals if sub_goals is not None else (sub_goals_of_level(parsed[1]) if parsed else 0),
        agent_timeout_s=agent.number("timeout_sec"),
        verifier_timeout_s=verifier.number("timeout_sec") or 600.0,
        build_timeout_s=environment.number("build_timeout_sec") or 600.0,
        cpus=environment.number("cpus"),
        memory_mb=_megabytes(environment, "memory_mb", "memory"),
        storage_mb=_megabytes(environment, "storage_mb", "storage"),
        allow_internet=environment.boolean("allow_internet") or False,
        unknown_keys=(),
    )
    # Metadata is free text of the task's author: only its t1 table is ours.
    unknown = tuple(key for key in top.unknown() if not key.startswith("metadata.") or key.startswith("metadata.t1."))
    return replace(task, unknown_keys=unknown)


def read_tasks(directory: Path) -> tuple[list[Task], list[TaskError]]:
    """Every task of ``directory`` (its folders with a task.toml) by name, and an error for each that cannot be used."""
    if not directory.is_dir():
        raise TaskError(f"{directory}: no such directory; it should hold a folder for each task")
    tasks: list[Task] = []
    errors: list[TaskError] = []
    for path in sorted(directory.iterdir()):
        if path.name.startswith(".") or not path.is_dir():
            continue
        try:
            tasks.append(read_task(path))
        except TaskError as error:
            errors.append(error)
    return tasks, errors


def task_digest(directory: Path) -> str:
    """blake3 over everything below ``directory`` in path order: its path, kind, mode and content. Modes too, because what is
    copied into a sandbox keeps them: whether another user may read a file there decides what a command prints."""
    hasher = blake3.blake3()
    pending = [""]
    found: list[str] = []
    while pending:
        folder = pending.pop()
        with os.scandir(directory / folder) as entries:
            for entry in entries:
                path = f"{folder}{entry.name}"
                found.append(path)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path + "/")
    for path in sorted(found):
        full = directory / path
        mode, content = os.lstat(full).st_mode, b""
        if stat.S_ISLNK(mode):
            kind, mode, content = b"l", 0, os.fsencode(os.readlink(full))
        elif stat.S_ISREG(mode):
            kind, content = b"f", full.read_bytes()
        elif stat.S_ISDIR(mode):
            kind = b"d"
        else:
            raise TaskError(f"{full}: neither a file, a directory nor a link; tasks hold nothing else")
        name = os.fsencode(path)
        hasher.update(kind + stat.S_IMODE(mode).to_bytes(2, "little") + len(name).to_bytes(4, "little") + name)
        hasher.update(len(content).to_bytes(8, "little") + content)
    return hasher.hexdigest()


# --- parts ------------------------------------------------------------------------------------------------------------


def _parse_toml(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise TaskError(
            f"{file}: missing; a task directory has task.toml, instruction.md, environment/ and tests/"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: cannot be read as text: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{file}: not TOML: {error}") from error


def _check_version(file: Path, top: Table) -> None:
    version = top.string("schema_version") or top.string("version") or VERSIONS[0]
    top.ignore("schema_version", "version")
    if version not in VERSIONS:
        raise TaskError(f"{file}: version = {version!r}: known are {VERSIONS[0]} to {VERSIONS[-1]}")


def _instruction(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip("\n")
    except FileNotFoundError as error:
        raise TaskError(f"{file}: missing; it is what the agent is asked") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: cannot be read as text: {error}") from error
    if not text.strip():
        raise TaskError(f"{file}: empty; it is what the agent is asked")
    return text


def _environment(directory: Path, docker_image: str | None) -> Environment:
    for name in ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml"):
        if (directory / name).exists():
            raise TaskError(
                f"{directory / name}: compose files are not supported; describe one container in a Dockerfile"
            )
    if docker_image is not None:
        return image_environment(docker_image, f"{directory.parent / 'task.toml'}: environment.docker_image")
    file = directory / "Dockerfile"
    environment = read_dockerfile(file)
    if environment.workdir.split("/")[1] in _RESERVED:
        raise TaskError(
            f"{file}: the working directory is {environment.workdir}: grading needs one of its own, as in WORKDIR /app"
        )
    for copy in environment.copies:
        for source in copy.sources:
            if not (directory / source).exists():
                raise TaskError(f"{file}: COPY {source}: {directory / source} does not exist")
    return environment


def _distinct(table: Table, key: str) -> tuple[str, ...]:
    values = table.strings(key)
    if len(set(values)) != len(values):
        raise table.wrong(key, list(values), "different assertion ids")
    return values


def _megabytes(table: Table, key: str, old_key: str) -> int | None:
    value = table.integer(key)
    old = table.string(old_key)
    if value is not None or old is None:
        return value
    match = _SIZE.fullmatch(old.strip())
    if match is None:
        raise table.wrong(old_key, old, 'a size such as "2G" or "512M"')
    return max(1, round(float(match[1]) * _MB[match[2].upper()]))
