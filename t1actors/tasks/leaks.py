"""What of the answer lies in what the agent is given: the solution, the tests, or their outcome.

Looked through are the task's ``environment/``, of which images are built, and the sealed tree of a trial in which nothing
was done: what was copied in and what a set-up left, not the files of an image below. Looked for are the texts of
``solution/`` and of the programs in ``tests/``; in git objects, which outlive what a check-out shows, also the files that
the reference solution leaves behind.

Guarantees: nothing is run and no link followed. A finding names the file or object and whose text it holds; some tasks mean
it to be so, and say that (``[metadata.t1] accept``).

Not found: an answer in other words, or packed by anything but git.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from t1actors.sandbox.archive import walk
from t1actors.tasks.git_objects import GitDataError, git_objects, is_object_file
from t1actors.tasks.task import Task

SHORTEST_BYTES = 40
"""Shorter texts are in many files by chance."""
LARGEST_BYTES = 16 << 20
"""Larger files are not looked through."""
_PROGRAMS = (".py", ".sh", ".bash", ".pl", ".rb", ".js", ".c")


@dataclass(frozen=True)
class Leak:
    """``kind`` is one of ``settings.ACCEPTABLE``: ``leak`` for files, ``history`` for git objects."""

    kind: str
    text: str


def find_leaks(task: Task, untouched: bytes, solved: bytes) -> list[Leak]:
    """What the archive ``untouched`` of a trial that did nothing holds of the answer; ``solved`` is the reference's."""
    before, after = tree(untouched), tree(solved)
    given = set(before.values())
    context = {f"environment/{path}": data for path, data in _contents(task.path / "environment")}
    before |= {path: data for path, data in context.items() if data not in given and path != "environment/Dockerfile"}
    secrets = _secrets(task)
    found: list[Leak] = []
    for path, data in sorted(before.items()):
        if not is_object_file(path):
            found += [Leak("leak", f"{_shown(path)} holds {name}") for name, text in secrets.items() if text in data]
    outcome = {
        f"/{path} as the reference leaves it": data.strip()
        for path, data in after.items()
        if before.get(path) != data and len(data.strip()) >= SHORTEST_BYTES and not _in_repository(path)
    }
    found += _in_history(before, {**outcome, **secrets})
    return found


def tree(archive: bytes) -> dict[str, bytes]:
    """Regular files of an archive that are not too large, by path without a leading slash."""
    found: dict[str, bytes] = {}
    folders: list[str] = []
    for member in walk(archive):
        name = member.name.decode("utf-8", "replace")
        if member.kind in "DO":
            folders.append(name)
        elif member.kind == "E":
            folders.pop()
        elif member.kind == "F" and member.size_bytes <= LARGEST_BYTES:
            data = bytearray(member.size_bytes)
            for extent in member.extents:
                data[extent.offset : extent.offset + len(extent.data)] = extent.data
            found[posixpath.join(*folders[1:], name)] = bytes(data)
    return found


def _secrets(task: Task) -> dict[str, bytes]:
    """Texts that only the author knows, by the file they are in."""
    found: dict[str, bytes] = {}
    for path, data in _contents(task.solution_dir):
        found[f"solution/{path}"] = _body(data)
    for path, data in _contents(task.tests_dir):
        if path.endswith(_PROGRAMS):
            found[f"tests/{path}"] = _body(data)
    return {name: text for name, text in found.items() if len(text) >= SHORTEST_BYTES}


def _contents(folder: Path | None) -> Iterator[tuple[str, bytes]]:
    """Path and bytes of the regular files in ``folder`` that are not too large."""
    if folder is not None:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST_BYTES:
                yield path.relative_to(folder).as_posix(), path.read_bytes()


def _shown(path: str) -> str:
    """In the task's own directory, or in the sandbox."""
    return path if path.startswith("environment/") else f"/{path}"


def _body(text: bytes) -> bytes:
    """Without the comments and the empty lines that it begins with: others have those, too."""
    lines = text.strip().split(b"\n")
    while lines and (not lines[0].strip() or lines[0].lstrip().startswith(b"#")):
        lines.pop(0)
    return b"\n".join(lines)


def _in_repository(path: str) -> bool:
    return ".git" in path.split("/") or is_object_file(path)


def _in_history(before: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> list[Leak]:
    found: list[Leak] = []
    try:
        for held in git_objects({path: data for path, data in before.items() if is_object_file(path)}):
            for name, text in wanted.items():
                if text in held.data:
                    found.append(Leak("history", f"{held.kind} {held.name[:12]} in {_shown(held.place)} holds {name}"))
    except GitDataError as error:
        found.append(Leak("history", f"the git history cannot be looked through: {error}"))
    return found
