"""Reads task directories in the Harbor / Terminal-Bench layout.

Guarantees: what is read is whole (every file that will be needed is there) and is named by a digest of all its bytes;
what task.toml says is read by ``tasks.settings``; what cannot be honoured (compose files, build steps) is refused by name.
Nothing here runs anything.
"""

from __future__ import annotations

import os
import posixpath
import stat
from dataclasses import replace
from pathlib import Path

import blake3

from t1actors.tasks.dockerfile import image_environment, read_dockerfile
from t1actors.tasks.generate import parse_name, sub_goals_of_level
from t1actors.tasks.settings import Settings, read_settings
from t1actors.tasks.task import Environment, Task, TaskError

_RESERVED = ("", "bin", "dev", "etc", "lib", "lib64", "logs", "proc", "sbin", "sys", "tests", "usr")
"""No working directory begins here: the tree an agent leaves is graded as a mount of its own."""


def read_task(directory: Path) -> Task:
    """The task in ``directory``.

    Raises:
        TaskError: something is missing or malformed; the message names the file, the key or line, and what would be
        right.
    """
    if not directory.is_dir():
        raise TaskError(f"{directory}: no such task directory; built-in tasks are written by `t1 task make`")
    file = directory / "task.toml"
    settings = read_settings(file)
    tests_dir = directory / "tests"
    if (directory / "steps").is_dir():
        raise TaskError(f"{directory / 'steps'}: tasks of several steps are not supported; make a task of each step")
    if not (tests_dir / "test.sh").is_file():
        raise TaskError(f"{tests_dir / 'test.sh'}: missing; it is what grades a trial")
    parsed = parse_name(directory.name)
    solution = directory / "solution" / "solve.sh"
    return Task(
        name=directory.name,
        path=directory,
        digest=task_digest(directory),
        instruction=_instruction(directory / "instruction.md"),
        environment=_as_set(file, settings, _environment(directory / "environment", settings.docker_image)),
        tests_dir=tests_dir,
        solution_dir=solution.parent if solution.is_file() else None,
        expected=settings.expected,
        control=settings.control,
        families=settings.families,
        level=settings.level,
        sub_goals=settings.sub_goals
        if settings.sub_goals is not None
        else (sub_goals_of_level(parsed[1]) if parsed else 0),
        agent_timeout_s=settings.agent_timeout_s,
        verifier_timeout_s=settings.verifier_timeout_s,
        build_timeout_s=settings.build_timeout_s,
        cpus=settings.cpus,
        memory_mb=settings.memory_mb,
        storage_mb=settings.storage_mb,
        network=settings.network,
        unknown_keys=settings.unknown_keys,
        unused_keys=settings.unused_keys,
        baseline=settings.baseline,
        accept=settings.accept,
        programs=settings.programs,
        verifier_env=settings.verifier_env,
        solution_env=settings.solution_env,
        grading=settings.grading,
    )


def read_tasks(directory: Path) -> tuple[list[Task], list[TaskError]]:
    """Every task of ``directory`` (its folders with a task.toml) by name, and an error for each that cannot be used."""
    if not directory.is_dir():
        raise TaskError(f"{directory}: no such directory; it should hold a folder for each task")
    tasks: list[Task] = []
    errors: list[TaskError] = []
    for path in task_folders(directory):
        try:
            tasks.append(read_task(path))
        except TaskError as error:
            errors.append(error)
    return tasks, errors


def task_folders(directory: Path) -> list[Path]:
    """The folders of a directory of tasks, by name; hidden ones are not tasks."""
    return sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))


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
    _check_workdir(f"{file}: the working directory", environment.workdir)
    for copy in environment.copies:
        for source in copy.sources:
            if not (directory / source).exists():
                raise TaskError(f"{file}: COPY {source}: {directory / source} does not exist")
    return environment


def _check_workdir(what: str, path: str) -> None:
    if path.split("/")[1] in _RESERVED:
        raise TaskError(f"{what} is {path}: grading needs one of its own, as in WORKDIR /app")


def _as_set(file: Path, settings: Settings, environment: Environment) -> Environment:
    """What task.toml says of the working directory and of variables goes before the Dockerfile."""
    workdir = environment.workdir
    if settings.workdir is not None:
        workdir = posixpath.normpath(f"/{settings.workdir.lstrip('/')}")
        _check_workdir(f"{file}: environment.workdir", workdir)
    return replace(environment, workdir=workdir, env=(*environment.env, *settings.env))
