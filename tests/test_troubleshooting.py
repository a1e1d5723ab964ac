"""The messages that docs/troubleshooting.md quotes are those that the code says, word for word."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
OTHERS = PAGE.partition("## Other programs")[0]


@cache
def said():
    """All text of the code: every string, those with values in them with "..." in their place."""
    found = [path.read_text() for path in (ROOT / "tools").glob("*.sh")]
    for path in [*(ROOT / "t1actors").rglob("*.py"), *(ROOT / "tools").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "..." for p in node.values)
                found.append("".join(str(part) for part in parts))
    return "\n".join(found)


def quoted():
    for line in OTHERS.splitlines():
        if line.startswith("| `"):
            yield from re.findall(r"`([^`]+)`", line.split(" | ")[0])


@pytest.mark.parametrize("message", list(quoted()))
def test_a_quoted_message_is_in_the_code(message):
    for part in re.split(r"\.\.\.|\bRUN\b", message.removeprefix("setup: ")):
        assert part.strip(" ,;:(") in said(), f"{part!r} of {message!r} is said nowhere"


def test_the_page_quotes_messages():
    assert len(list(quoted())) > 30
