"""The tests that docs/known-faults.md names are there, and no fault of its list is without one."""

import ast
import re

from tests.docs.pages import ROOT, pages

PAGE = "docs/known-faults.md"
FAULTS = [
    *(f"T{n}" for n in range(1, 12)),
    *(f"R{n}" for n in range(1, 10)),
    *(f"C{n}" for n in range(1, 5)),
    "T12",
    "T13",
    *(f"S{n}" for n in range(1, 9)),
]
ROW = re.compile(r"^\| ([A-Z]\d+) \|.*\| ([^|]*) \|$")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def lines() -> list[str]:
    return [text for _, text in next(page for page in pages() if page.path == PAGE).prose]


def functions_of(path: str) -> set[str]:
    file = ROOT / path
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_known_fault_has_a_test():
    tested = [match[1] for line in lines() if (match := ROW.match(line)) and NAMED.search(match[2])]
    assert tested == FAULTS


def test_every_test_that_guards_a_known_fault_exists():
    named = [match for line in lines() for match in NAMED.findall(line)]
    missing = [f"{path}::{name}" for path, name in named if name not in functions_of(path)]
    assert not missing, f"{PAGE} names tests that are not there: {missing}"
