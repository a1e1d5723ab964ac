"""Reads the Dockerfile subset that tasks use: FROM (several stages), WORKDIR, RUN, COPY, ENV, ARG, CMD.

Guarantees: what is returned is all that the file says; anything else is refused with the file, the line and the
instruction's name. Nothing is expanded or run here: ``tasks.recipe`` holds what was read, ``images.build`` does it.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

from t1actors.tasks.dockerwords import expand, raw_words
from t1actors.tasks.recipe import Heredoc, Instruction, Recipe, Stage, arguments, pairs
from t1actors.tasks.task import Copy, Environment, TaskError

_WORDS = ("FROM", "WORKDIR", "RUN", "COPY", "ENV", "ARG", "CMD")
_UNSUPPORTED = (
    "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD", "SHELL", "STOPSIGNAL", "USER", "VOLUME",
)  # fmt: skip
_FLAGS = {"FROM": ("platform",), "COPY": ("from", "chown", "chmod", "link"), "RUN": ()}
_ROOT = ("0", "root", "0:0", "root:root", "root:0", "0:root")
IGNORE_FILE = ".dockerignore"
_HEREDOC = re.compile(r"""\d*<<(-?)(["']?)([A-Za-z_][A-Za-z0-9_]*)\2""")


def read_dockerfile(file: Path) -> Environment:
    """Raises ``TaskError``."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise TaskError(f"{file}: missing; a task's environment is a Dockerfile that begins with FROM") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: cannot be read as text: {error}") from error
    recipe = replace(parse(text, str(file)), has_ignore_file=(file.parent / IGNORE_FILE).is_file())
    try:
        return _environment(recipe)
    except ValueError as error:
        raise TaskError(f"{file}: {error}") from error


def image_environment(image: str, where: str) -> Environment:
    """What a task says that names a ready image instead of a Dockerfile."""
    return Environment(base=image, workdir="/app", recipe=Recipe(where, (), (Stage(0, image, "", ()),)))


# --- syntax -----------------------------------------------------------------------------------------------------------


class _Line(NamedTuple):
    number: int
    word: str
    text: str
    heredocs: tuple[Heredoc, ...]


def parse(text: str, file: str) -> Recipe:
    """The recipe that ``text`` is. Raises ``TaskError``."""
    before: list[Instruction] = []
    stages: list[Stage] = []
    for number, word, rest, heredocs in _lines(text, file):
        place = f"{file}, line {number}"
        if word == "ADD":
            what = "ADD with a URL" if "://" in rest else "ADD"
            raise TaskError(
                f"{place}: {what} is not supported; COPY files, and download in a RUN where there is a network"
            )
        if word in _UNSUPPORTED:
            raise TaskError(f"{place}: {word} is not supported; supported are {', '.join(_WORDS)}")
        if word not in _WORDS:
            raise TaskError(f"{place}: {word!r} is no Dockerfile instruction")
        if not rest and not heredocs:
            raise TaskError(f"{place}: {word} needs an argument")
        flags, rest = _flags(word, rest, place)
        if word == "FROM":
            stages.append(_stage(number, rest, place))
            continue
        instruction = Instruction(number, word, rest, flags, heredocs)
        _check(instruction, place)
        if stages:
            last = stages[-1]
            stages[-1] = Stage(last.line, last.base, last.name, (*last.instructions, instruction))
        elif word == "ARG":
            before.append(instruction)
        else:
            raise TaskError(f"{place}: {word} before FROM; the first instruction must be FROM")
    if not stages:
        raise TaskError(f"{file}: no FROM; the first instruction must name the base image")
    return Recipe(file, tuple(before), tuple(stages))


def _lines(text: str, file: str) -> Iterator[_Line]:
    """Comments dropped, continued lines joined, heredocs read."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        start = at + 1
        directive = re.fullmatch(r"#\s*escape\s*=\s*(\S)\s*", lines[at], re.IGNORECASE) if at < 2 else None
        if directive and directive[1] != "\\":
            raise TaskError(
                f"{file}, line {start}: the escape character {directive[1]} is not supported; use a backslash"
            )
        if not lines[at].strip() or lines[at].lstrip().startswith("#"):
            at += 1
            continue
        joined = lines[at].lstrip()
        at += 1
        while re.search(r"\\[ \t]*$", joined) and at < len(lines):
            joined = re.sub(r"\\[ \t]*$", "", joined)
            while at < len(lines) and (not lines[at].strip() or lines[at].lstrip().startswith("#")):
                at += 1
            joined += lines[at] if at < len(lines) else ""
            at += 1
        joined = re.sub(r"\\[ \t]*$", "", joined).strip()
        word, _, rest = re.sub(r"^(\S+)\s+", r"\1 ", joined).partition(" ")
        heredocs: list[Heredoc] = []
        if word.upper() in ("RUN", "COPY"):
            for strip, quote, name in _begun_heredocs(rest):
                body: list[str] = []
                while True:
                    if at >= len(lines):
                        raise TaskError(
                            f"{file}, line {start}: {word.upper()} <<{name} has no line {name} that ends it"
                        )
                    line = lines[at].lstrip("\t") if strip else lines[at]
                    at += 1
                    if line == name:
                        break
                    body.append(line + "\n")
                heredocs.append(Heredoc(name, "".join(body), bool(quote)))
        yield _Line(start, word.upper(), rest.strip(), tuple(heredocs))


def _begun_heredocs(text: str) -> list[tuple[str, str, str]]:
    """(dash, quote, name) of each word that begins one: `1<<2` in an expression or a quoted text does not."""
    try:
        words = raw_words(text)
    except ValueError:  # a shell may make sense of it
        return []
    found = [_HEREDOC.fullmatch(word) for word in words]
    return [(match[1], match[2], match[3]) for match in found if match]


def _flags(word: str, rest: str, place: str) -> tuple[tuple[tuple[str, str], ...], str]:
    found: list[tuple[str, str]] = []
    while word in _FLAGS and rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        name, _, value = flag.removeprefix("--").partition("=")
        rest = rest.strip()
        if name not in _FLAGS[word]:
            raise TaskError(f"{place}: {word} --{name} is not supported")
        if name == "platform" and not value.startswith(
            ("$", "linux/")
        ):  # the image itself says which machine it is for
            raise TaskError(f"{place}: FROM --platform={value}: sandboxes run Linux")
        if name == "chown" and value not in _ROOT:
            raise TaskError(f"{place}: COPY --chown={value}: only root's; change owners in a RUN")
        if name == "chmod" and not re.fullmatch("[0-7]{3,4}", value):
            raise TaskError(f"{place}: COPY --chmod={value}: expected a mode such as 755")
        found.append((name, value))
    return tuple(found), rest


def _stage(number: int, rest: str, place: str) -> Stage:
    words = rest.split()
    if len(words) == 3 and words[1].upper() == "AS":
        return Stage(number, words[0], words[2].lower(), ())
    if len(words) != 1:
        raise TaskError(f"{place}: FROM {rest}: expected FROM image, or FROM image AS name")
    return Stage(number, words[0], "", ())


def _check(instruction: Instruction, place: str) -> None:
    """What is wrong whatever the variables are."""
    text = instruction.text
    try:
        if instruction.word == "COPY":
            words = copy_words(instruction)
            if len(words) < 2:
                raise ValueError(f"COPY {text}: expected COPY source... target")
            if any(".." in source.split("/") for source in words[:-1]) and not dict(instruction.flags).get("from"):
                raise ValueError(f"COPY {text}: sources are paths inside the environment directory")
        elif instruction.word == "ENV":
            pairs(text, {})
        elif instruction.word in ("RUN", "CMD"):
            run_words(instruction)
        else:
            raw_words(text)
    except ValueError as error:
        raise TaskError(f"{place}: {error}") from error


def copy_words(instruction: Instruction) -> list[str]:
    """The sources and the target of a COPY, not expanded; heredocs as ``<<NAME``. Raises ``ValueError``."""
    if instruction.text.startswith("["):
        return _json_list("COPY", instruction.text)
    return raw_words(instruction.text)


def run_words(instruction: Instruction) -> list[str]:
    """The program and arguments of a RUN or CMD: a shell's, unless it is written as a list. Raises ``ValueError``."""
    text = instruction.text
    if text.startswith("["):
        try:
            return _json_list(instruction.word, text)
        except ValueError:
            if instruction.word == "CMD" or not re.match(r"\[\s*(\s|-|!)", text):  # else the shell's own test
                raise
    heredocs = instruction.heredocs
    if heredocs and _HEREDOC.fullmatch(text):
        script = heredocs[0].text
        if script.startswith("#!"):
            interpreter = script.splitlines()[0][2:].split()
            return [*interpreter, "-c", script.partition("\n")[2]]
        return ["/bin/sh", "-c", script]
    documents = "".join(f"\n{document.text}{document.name}" for document in heredocs)
    return ["/bin/sh", "-c", text + documents]


def _json_list(word: str, text: str) -> list[str]:
    try:
        parsed: object = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{word} {text}: not a JSON list: {error}") from error
    items = cast("list[object]", parsed) if isinstance(parsed, list) else []
    strings = [item for item in items if isinstance(item, str)]
    if not strings or len(strings) != len(items):
        raise ValueError(f"{word} {text}: expected a list of strings")
    return strings


# --- what can be said without building --------------------------------------------------------------------------------


def _environment(recipe: Recipe) -> Environment:
    """Variables of the base image are not known here; nothing that is read from this depends on them but a working directory
    that is written with them."""
    outer: dict[str, str] = {}
    for argument in recipe.arguments:
        outer.update((name, value) for name, value in arguments(argument.text, outer, {}) if value is not None)
    last = recipe.stages[-1]
    chain = [last]
    while True:
        base = expand(chain[0].base, outer).lower()
        earlier = [stage for stage in recipe.stages if stage.name == base and stage.line < chain[0].line]
        if not earlier:
            break
        chain.insert(0, earlier[-1])
    workdir = "/"
    env: dict[str, str] = {}
    copies: list[Copy] = []
    for stage in chain:
        values: dict[str, str] = {}
        for instruction in stage.instructions:
            known = {**values, **env}
            if instruction.word == "ARG":
                values.update((n, v) for n, v in arguments(instruction.text, known, outer) if v is not None)
            elif instruction.word == "ENV":
                env.update(pairs(instruction.text, known))
            elif instruction.word == "WORKDIR":
                workdir = posixpath.normpath(posixpath.join(workdir, expand(instruction.text, known)))
            elif instruction.word == "COPY" and not recipe.takes_a_build:
                copies.append(_plain_copy(instruction, workdir))
    base = expand(chain[0].base, outer)
    if recipe.takes_a_build:
        return Environment(base=base, workdir=workdir, recipe=recipe)
    return Environment(base=base, workdir=workdir, copies=tuple(copies), env=tuple(env.items()), recipe=recipe)


def _plain_copy(instruction: Instruction, workdir: str) -> Copy:
    *sources, target = [expand(word, {}) for word in copy_words(instruction)]
    return Copy(
        sources=tuple(posixpath.normpath(source.lstrip("/") or ".") for source in sources),
        target=posixpath.normpath(posixpath.join(workdir, target)),
        into=target.endswith("/") or target == "." or len(sources) > 1,
    )
