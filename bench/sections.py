"""`bench/RESULTS.md` as sections, so that each command replaces its own and leaves the others' alone.

Guarantees: a section that is not replaced keeps its text; replaced sections stay where they are, new ones come last; what
stands before the first section is the head, which only `just bench` writes. A section begins with a line `## NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "RESULTS.md"
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Document:
    """``sections`` by name, each with its heading line, in order."""

    head: str
    sections: Mapping[str, str]

    @staticmethod
    def parse(text: str) -> Document:
        found = list(_HEADING.finditer(text))
        ends = [*(match.start() for match in found[1:]), len(text)]
        sections = {match[1].strip(): text[match.start() : end] for match, end in zip(found, ends, strict=True)}
        if len(sections) != len(found):
            raise ValueError("two sections of the results have one name; every section is one command's")
        return Document(text[: found[0].start()] if found else text, sections)

    def text(self) -> str:
        return self.head + "".join(self.sections.values())

    def replaced(self, sections: Mapping[str, str], *, head: str | None = None) -> Document:
        """With these sections (a name and the text below its heading) and, when given, another head."""
        made = {name: f"## {name}\n\n{body.strip()}\n\n" for name, body in sections.items()}
        kept = {name: text.rstrip("\n") + "\n\n" for name, text in self.sections.items()}
        return Document(self.head if head is None else head.strip() + "\n\n", {**kept, **made})


def update(path: Path, sections: Mapping[str, str], *, head: str | None = None) -> None:
    """Replace these sections of the file, which need not be there yet."""
    before = Document.parse(path.read_text()) if path.exists() else Document("# Results\n\n", {})
    path.write_text(before.replaced(sections, head=head).text().rstrip("\n") + "\n")
