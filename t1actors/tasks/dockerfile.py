"""The Dockerfile subset that built-in environments need: FROM, WORKDIR, COPY, ENV.

Guarantees: what is returned is all that the file says; anything else is refused with the file, the line and the
instruction's name. (RUN and the rest come with real images.)
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from t1actors.tasks.task import Copy, Environment, TaskError

_UNSUPPORTED = (
    "ADD", "ARG", "CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD", "RUN", "SHELL",
    "STOPSIGNAL", "USER", "VOLUME",
)  # fmt: skip


def read_dockerfile(file: Path) -> Environment:
    """Raises ``TaskError``."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise TaskError(f"{file}: missing; a task's environment is a Dockerfile that begins with FROM") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: cannot be read as text: {error}") from error
    base, workdir = "", "/"
    copies: list[Copy] = []
    env: list[tuple[str, str]] = []
    for number, line in _instructions(text):
        place = f"{file}, line {number}"
        word, _, rest = line.partition(" ")
        word, rest = word.upper(), rest.strip()
        if word in _UNSUPPORTED:
            raise TaskError(f"{place}: {word} is not supported yet; supported are FROM, WORKDIR, COPY and ENV")
        if word not in ("FROM", "WORKDIR", "COPY", "ENV"):
            raise TaskError(f"{place}: {word!r} is no Dockerfile instruction")
        if not rest:
            raise TaskError(f"{place}: {word} needs an argument")
        if word == "FROM":
            if base:
                raise TaskError(f"{place}: a second FROM; builds in several stages are not supported yet")
            base = _base(rest, place)
            continue
        if not base:
            raise TaskError(f"{place}: {word} before FROM; the first instruction must be FROM")
        if "$" in rest:
            raise TaskError(f"{place}: variables ($) in {word} are not supported yet; write the value out")
        if word == "WORKDIR":
            workdir = posixpath.normpath(posixpath.join(workdir, _words(rest, place)[0]))
        elif word == "COPY":
            copies.append(_copy(rest, workdir, place))
        else:
            env += _env(rest, place)
    if not base:
        raise TaskError(f"{file}: no FROM; the first instruction must name the base image")
    return Environment(base=base, workdir=workdir, copies=tuple(copies), env=tuple(env))


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """(line number, instruction) with comments dropped and continued lines joined."""
    joined, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (joined and not line.strip()):
            continue
        start = start if joined else number
        joined += line.strip()
        if joined.endswith("\\"):
            joined = joined[:-1].rstrip() + " "
            continue
        if joined:
            yield start, re.sub(r"^(\S+)\s+", r"\1 ", joined)
        joined = ""
    if joined.strip():
        yield start, joined.strip()


def _words(text: str, place: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise TaskError(f"{place}: {error}") from error


def _base(rest: str, place: str) -> str:
    words = rest.split()
    if words[0].startswith("--"):
        raise TaskError(f"{place}: FROM {words[0].partition('=')[0]} is not supported yet")
    if len(words) != 1 and not (len(words) == 3 and words[1].upper() == "AS"):
        raise TaskError(f"{place}: FROM {rest}: expected FROM image")
    return words[0]


def _copy(rest: str, workdir: str, place: str) -> Copy:
    if rest.startswith("--"):
        raise TaskError(f"{place}: COPY {rest.split()[0].partition('=')[0]} is not supported yet")
    if rest.startswith("["):
        try:
            parsed: object = json.loads(rest)
        except ValueError as error:
            raise TaskError(f"{place}: COPY {rest}: not a JSON list: {error}") from error
        words = (
            [word for word in cast("list[object]", parsed) if isinstance(word, str)] if isinstance(parsed, list) else []
        )
    else:
        words = _words(rest, place)
    if len(words) < 2:
        raise TaskError(f"{place}: COPY {rest}: expected COPY source... target")
    *sources, target = words
    for source in sources:
        if ".." in source.split("/") or any(mark in source for mark in "*?["):
            raise TaskError(f"{place}: COPY {source}: sources are plain paths inside the environment directory")
    into = target.endswith("/") or target == "." or len(sources) > 1
    return Copy(
        sources=tuple(posixpath.normpath(source.lstrip("/") or ".") for source in sources),
        target=posixpath.normpath(posixpath.join(workdir, target)),
        into=into,
    )


def _env(rest: str, place: str) -> list[tuple[str, str]]:
    words = _words(rest, place)
    if "=" not in words[0]:
        if len(words) < 2:
            raise TaskError(f"{place}: ENV {rest}: expected ENV NAME=value")
        return [(words[0], rest.split(None, 1)[1])]
    pairs: list[tuple[str, str]] = []
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise TaskError(f"{place}: ENV {word}: expected NAME=value")
        pairs.append((name, value))
    return pairs
