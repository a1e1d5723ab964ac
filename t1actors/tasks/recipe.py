"""What a Dockerfile of the supported subset says, as values: stages of instructions, not yet run and not yet expanded.

Left to others: reading the file (``tasks.dockerfile``), and doing what it says (``images.build``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from t1actors.tasks.dockerwords import expand, raw_words

Word = Literal["ARG", "CMD", "COPY", "ENV", "RUN", "WORKDIR"]


@dataclass(frozen=True)
class Heredoc:
    """A document that stands in the Dockerfile itself. ``literal``: its variables are not expanded."""

    name: str
    text: str
    literal: bool


@dataclass(frozen=True)
class Instruction:
    """``text`` is what follows the word, continued lines joined; ``flags`` are its leading ``--name=value``."""

    line: int
    word: Word
    text: str
    flags: tuple[tuple[str, str], ...] = ()
    heredocs: tuple[Heredoc, ...] = ()

    def __str__(self) -> str:
        flags = "".join(f"--{name}={value} " for name, value in self.flags)
        return f"{self.word} {flags}{self.text}"


@dataclass(frozen=True)
class Stage:
    """``base`` and ``name`` as they are written; the name is empty where it has none."""

    line: int
    base: str
    name: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Recipe:
    """``file`` is what to call it in errors; ``arguments`` are the ARGs before the first FROM. It has a stage at least."""

    file: str
    arguments: tuple[Instruction, ...]
    stages: tuple[Stage, ...]
    has_ignore_file: bool = False

    @property
    def takes_a_build(self) -> bool:
        """Whether it is more than one base with files and literal variables on it."""
        if self.has_ignore_file or self.arguments or len(self.stages) > 1:
            return True
        return any(_takes_a_build(instruction) for stage in self.stages for instruction in stage.instructions)


def _takes_a_build(instruction: Instruction) -> bool:
    if instruction.word == "CMD":
        return False
    if instruction.word in ("RUN", "ARG") or instruction.flags or instruction.heredocs or "$" in instruction.text:
        return True
    return instruction.word == "COPY" and any(mark in instruction.text for mark in "*?[") and instruction.text[0] != "["


def pairs(text: str, values: dict[str, str]) -> list[tuple[str, str]]:
    """What ``ENV`` sets, expanded with what was set before it. Raises ``ValueError``."""
    words = raw_words(text)
    if "=" not in words[0]:
        if len(words) < 2:
            raise ValueError(f"ENV {text}: expected ENV NAME=value")
        return [(expand(words[0], values), expand(text.split(None, 1)[1], values))]
    found: list[tuple[str, str]] = []
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise ValueError(f"ENV {word}: expected NAME=value")
        found.append((expand(name, values), expand(value, values)))
    return found


def arguments(text: str, values: dict[str, str], outer: dict[str, str]) -> list[tuple[str, str | None]]:
    """What ``ARG`` declares: names with their defaults, or with what was declared before the first FROM."""
    found: list[tuple[str, str | None]] = []
    for word in raw_words(text):
        name, separator, value = word.partition("=")
        found.append((name, expand(value, values) if separator else outer.get(name)))
    return found
