""".dockerignore: which files of an environment directory a COPY never sees.

Lines as Docker reads them: ``*`` and ``?`` within a name, ``**`` over any number of directories, ``!`` takes back what an
earlier line left out, ``#`` begins a comment. The last line that matches a path, or a directory above it, decides.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from t1actors.tasks.dockerfile import IGNORE_FILE


class Ignored:
    """``hides(path)`` for paths relative to the directory."""

    def __init__(self, text: str = "") -> None:
        self._rules: list[tuple[bool, re.Pattern[str]]] = []
        for line in text.splitlines():
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            keeps = line.startswith("!")
            pattern = posixpath.normpath(line.removeprefix("!").strip()).strip("/")
            if pattern not in ("", "."):
                self._rules.append((keeps, re.compile(_expression(pattern))))

    @classmethod
    def of(cls, directory: Path) -> Ignored:
        """What the directory's own file says; nothing is hidden where it has none."""
        try:
            return cls((directory / IGNORE_FILE).read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            return cls()

    def hides(self, path: str) -> bool:
        """Whether ``path`` is left out."""
        parts = path.split("/")
        above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        hidden = False
        for keeps, expression in self._rules:
            if any(expression.fullmatch(candidate) for candidate in above):
                hidden = not keeps
        return hidden

    @property
    def takes_back(self) -> bool:
        """Whether something below a hidden directory may be seen all the same."""
        return any(keeps for keeps, _ in self._rules)


def matches(pattern: str, name: str) -> bool:
    """Whether one part of a path matches a COPY's pattern."""
    return re.fullmatch(_expression(pattern), name) is not None


def _expression(pattern: str) -> str:
    found, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**/", at):
            found, at = found + "(?:.*/)?", at + 3
            continue
        if pattern.startswith("**", at):
            found, at = found + ".*", at + 2
            continue
        at += 1
        if char == "*":
            found += "[^/]*"
        elif char == "?":
            found += "[^/]"
        elif char == "[" and (end := pattern.find("]", at + 1)) > 0:
            inside = pattern[at:end].replace("\\", "\\\\")
            found, at = found + f"[{inside}]", end + 1
        elif char == "\\" and at < len(pattern):
            found, at = found + re.escape(pattern[at]), at + 1
        else:
            found += re.escape(char)
    return found
