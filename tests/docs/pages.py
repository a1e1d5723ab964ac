"""The documentation as data: code blocks, commands, code spans, links and headings of every page.

Only what our pages use of Markdown is understood, and blocks must be fenced and say what they are: a block that says nothing
cannot be checked.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^ {0,3}```(.*)$")
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|<img [^>]*src=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.+?)\s*$")


@dataclass(frozen=True)
class Block:
    """A code block: the page's path from the root, the line it begins on, its language, its text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command of a shell block, or of a code span (``inline``: it may hold placeholders such as FOLDER)."""

    place: str
    text: str
    inline: bool = False


@dataclass(frozen=True)
class Page:
    """``prose`` is (line number, text) outside of code blocks."""

    path: str
    blocks: tuple[Block, ...]
    prose: tuple[tuple[int, str], ...]

    @property
    def spans(self) -> list[tuple[str, str]]:
        """(place, text) of every code span."""
        return [(f"{self.path}:{n}", found) for n, line in self.prose for found in SPAN.findall(line)]

    @property
    def links(self) -> list[tuple[str, str]]:
        """(place, target) of every link and picture."""
        return [(f"{self.path}:{n}", m[1] or m[2]) for n, line in self.prose for m in LINK.finditer(SPAN.sub("", line))]

    @property
    def anchors(self) -> set[str]:
        """What a link may name behind ``#``."""
        return {anchor(m[1]) for _, line in self.prose if (m := HEADING.match(line))}


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return kept.replace(" ", "-")


def read_page(path: Path) -> Page:
    """Raises ``AssertionError`` for a fence that is never closed."""
    name = path.relative_to(ROOT).as_posix()
    blocks: list[Block] = []
    prose: list[tuple[int, str]] = []
    inside: tuple[int, str, list[str]] | None = None
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        fence = FENCE.match(line)
        if inside is None and fence:
            inside = (number, fence[1].strip(), [])
        elif inside is None:
            prose.append((number, line))
        elif fence:
            blocks.append(Block(name, inside[0], inside[1], "\n".join(inside[2]) + "\n"))
            inside = None
        else:
            inside[2].append(line)
    assert inside is None, f"{name}:{inside[0]}: this block is never closed"
    return Page(name, tuple(blocks), tuple(prose))


@cache
def pages() -> tuple[Page, ...]:
    """README.md and everything in docs/."""
    return tuple(read_page(path) for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])


def blocks(language: str) -> list[Block]:
    return [block for page in pages() for block in page.blocks if block.language == language]


def shell_commands() -> list[Command]:
    """Every command of every ``sh`` block, ``a && b`` as two."""
    found: list[Command] = []
    for block in blocks("sh"):
        for offset, line in enumerate(block.text.splitlines(), start=1):
            text = re.sub(r"(^|\s)#.*$", "", line).strip()
            found += [Command(f"{block.page}:{block.line + offset}", part.strip()) for part in text.split("&&") if part]
    return found


def inline_commands() -> list[Command]:
    """Code spans that are commands: `t1 doctor`, `just bench --quick`."""
    return [
        Command(place, part.strip(), inline=True)
        for page in pages()
        for place, text in page.spans
        for part in text.split("&&")
        if re.match(r"(t1|just|python3?|pip install|\.venv/bin/t1) ", part.strip())
    ]
