"""What the documentation names is there: pages, anchors, files, modules, configuration keys, events."""

import ast
import dataclasses
import importlib.util
import re
from typing import get_args, get_type_hints

import pytest

from t1actors import events
from t1actors.config import Config
from tests.docs.pages import ROOT, pages

PACKAGE = ROOT / "t1actors"
SUFFIXES = (".py", ".md", ".toml", ".json", ".sh", ".svg", ".png")
OF_A_RUN_OR_A_TASK = {
    "report.md", "report.json", "config.toml", "mine.toml", "task.toml", "instruction.md", "test.sh", "solve.sh", "check.py",
    "sitecustomize.py", "conftest.py", "ctrf.json", "tasks.json", "config.json", "tokenizer.json",
    "manifest.json",
}  # fmt: skip
"""Files that a run, a task or a reader writes."""


def keys_of(cls: type, prefix: str = "") -> set[str]:
    """Every section and key of the configuration, dotted."""
    found: set[str] = set()
    for name, hint in get_type_hints(cls).items():
        found.add(prefix + name)
        if dataclasses.is_dataclass(hint):
            found |= keys_of(hint, f"{prefix}{name}.")
    return found


SECTIONS = {f.name for f in dataclasses.fields(Config)}
KEYS = keys_of(Config)
ROOMS = {p.name for p in PACKAGE.iterdir() if p.is_dir() and not p.name.startswith("_")}
EVENTS = {event.__name__ for event in get_args(events.AnyEvent)}
SPANS = [(place, text) for page in pages() for place, text in page.spans]


def test_links_lead_to_pages_and_anchors_that_are_there():
    by_path = {page.path: page for page in pages()}
    broken: list[str] = []
    for page in pages():
        for place, target in page.links:
            if re.match(r"https?://", target):
                continue
            path, _, anchor = target.partition("#")
            file = (ROOT / page.path).parent / path if path else ROOT / page.path
            name = file.resolve().relative_to(ROOT).as_posix()
            if not file.exists() or (anchor and anchor not in by_path[name].anchors):
                broken.append(f"{place}: {target}")
    assert not broken, broken


def test_every_page_is_in_the_index():
    index = next(page for page in pages() if page.path == "docs/index.md")
    linked = {target.partition("#")[0] for _, target in index.links}
    missing = {p.name for p in (ROOT / "docs").glob("*.md")} - linked - {"index.md"}
    assert not missing, f"docs/index.md does not lead to {sorted(missing)}"


def test_every_decision_is_in_the_list_of_decisions():
    index = next(page for page in pages() if page.path == "docs/decisions/README.md")
    linked = {target for _, target in index.links}
    missing = {p.name for p in (ROOT / "docs" / "decisions").glob("0*.md")} - linked
    assert not missing, f"docs/decisions/README.md does not lead to {sorted(missing)}"


def test_configuration_keys_exist():
    wrong = [
        f"{place}: {key}"
        for place, text in SPANS
        for key in re.findall(r"(?<![\w./])[a-z]+(?:\.[a-z_]+)+(?![\w./(:])", text)
        if key.split(".")[0] in SECTIONS and key not in KEYS and not is_module(key) and not key.endswith(SUFFIXES)
    ]
    assert not wrong, f"no such keys in t1actors/config.py: {wrong}"


def is_module(dotted: str) -> bool:
    """`runtime.actor`, or `tasks.pools` and a name in it."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        path = PACKAGE.joinpath(*parts[:length])
        if path.is_dir() or path.with_suffix(".py").exists():
            return length == len(parts) or (length == len(parts) - 1 and defines(path, parts[-1]))
    return False


def defines(path, name: str) -> bool:
    """Whether the module at ``path`` (without suffix) binds the name."""
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    bound: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.Assign):
            bound |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            bound.add(node.target.id)
        elif isinstance(node, ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
    return name in bound


def test_modules_and_what_they_define_exist():
    wrong: list[str] = []
    for place, text in SPANS:
        for dotted in re.findall(r"(?<![\w./-])(?:t1actors\.)?[a-z_]+(?:\.\w+)+", text):
            bare = dotted.removeprefix("t1actors.")
            if dotted.endswith(SUFFIXES) or bare.split(".")[0] not in ROOMS | {"events", "config", "payloads"}:
                continue
            if bare not in KEYS and not is_module(bare):
                wrong.append(f"{place}: {dotted}")
    assert not wrong, f"no such modules, or nothing of that name in them: {wrong}"


@pytest.mark.parametrize("name", ["t1kernels.interface", "t1kernels.native"])
def test_the_kernels_import_under_their_name(name):
    assert importlib.util.find_spec(name) is not None


def test_files_and_folders_exist():
    wrong: list[str] = []
    for place, text in SPANS:
        if not re.fullmatch(r"[\w./-]+", text) or text.startswith(("/", "-")) or "RUN" in text:
            continue
        if not (text.endswith(SUFFIXES) or (text.endswith("/") and "/" in text[:-1])):
            continue
        if text.rsplit("/", 1)[-1] in OF_A_RUN_OR_A_TASK or text.startswith("runs/"):
            continue
        room = (ROOT / place.partition(":")[0]).parent
        near = [ROOT / text, PACKAGE / text, room / text, ROOT / "kernels" / text]
        anywhere = [*PACKAGE.glob(f"*/{text}"), *(ROOT / "kernels" / "t1kernels").rglob(text)]
        if not any(path.exists() for path in near) and not anywhere:
            wrong.append(f"{place}: {text}")
    assert not wrong, f"no such files: {wrong}"


def test_events_exist_under_these_names():
    """Words in CamelCase that end as our events do, a subject and a past participle, and are no class of ours."""
    endings = {re.findall(r"[A-Z][a-z]+", name)[-1] for name in EVENTS if name != "BatchShort"}
    other = {
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    wrong: list[str] = []
    for page in pages():
        for number, line in page.prose:
            for word in re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", line):
                last = re.findall(r"[A-Z][a-z]+", word)[-1]
                if last in endings and word not in EVENTS and word not in other:
                    wrong.append(f"{page.path}:{number}: {word}")
    assert not wrong, f"no such events in t1actors/events.py: {wrong}"
