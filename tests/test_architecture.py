"""The floors: which room may import which, who may load torch, and the few rules that keep files readable."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "t1actors"
FLOORS = {
    "t1kernels": 0,
    "events": 1,
    "config": 1,
    "payloads": 1,
    "nursery": 1,
    "log": 1,
    "sandbox": 2,
    "images": 2,
    "tasks": 2,
    "verify": 2,
    "tito": 2,
    "models": 2,
    "engine": 3,
    "harness": 3,
    "train": 3,
    "actors": 4,
    "runtime": 5,
    "replay": 6,
    "observe": 6,
    "cli": 7,
    "__main__": 7,
}
FORBIDDEN = {
    ("log", "events"): "the log does not know what events mean",
    ("log", "config"): "the log takes its settings as arguments",
    ("sandbox", "models"): "sandboxes know no models",
    ("sandbox", "tito"): "sandboxes know no tokens",
    ("sandbox", "verify"): "sandboxes know no verdicts",
    ("sandbox", "images"): "a backend is given what finds images",
    ("tasks", "images"): "tasks say what is built, they build nothing",
    ("images", "verify"): "images know no verdicts",
    ("images", "models"): "images know no models",
    ("tasks", "verify"): "tasks do not grade themselves",
    ("tasks", "models"): "tasks know no models",
    ("verify", "models"): "the verifier does not know the agent",
    ("verify", "tito"): "the verifier does not know the agent",
    ("tito", "sandbox"): "stitching knows no sandboxes",
    ("tito", "tasks"): "stitching knows no tasks",
    ("models", "sandbox"): "models know no sandboxes",
    ("models", "tasks"): "models know no tasks",
    ("engine", "sandbox"): "engines take and give token ids",
    ("engine", "harness"): "engines take and give token ids",
    ("engine", "train"): "engines do not train",
    ("harness", "train"): "the harness knows no training",
    ("harness", "engine"): "the harness asks for tokens, it does not make them (by the protocol)",
    ("train", "log"): "the step is a pure function: the log is its caller's",
    ("replay", "observe"): "two readers of the log, apart",
    ("observe", "replay"): "two readers of the log, apart",
}
EXCEPTIONS = {
    # What an engine is, without any.
    ("harness", "t1actors.engine.interface"),
    # The protocol of an actor lies in runtime/ and is pure.
    ("actors", "t1actors.runtime.actor"),
}
SEVEN = {"publisher", "pool", "sampler", "verifier", "assembler", "critic", "actor"}
KINDS_OF = {"sampler_agents": "sampler"}
"""Files that hold another kind of one of the seven."""
TORCH_ROOMS = {"t1kernels", "models", "engine", "train", "replay"}
TORCH_ACTORS = {"sampler.py", "critic.py", "actor.py", "training.py"}
TORCH_FREE = [
    "t1actors.cli.main",
    "t1actors.cli.run",
    "t1actors.cli.replay",
    "t1actors.cli.log",
    "t1actors.cli.doctor",
    "t1actors.cli.image",
    "t1actors.cli.serve",
    "t1actors.observe.report",
    "t1actors.runtime.supervisor",
    "t1actors.runtime.process",
    "t1actors.actors.publisher",
    "t1actors.actors.pool",
    "t1actors.actors.verifier",
    "t1actors.actors.assembler",
]
MOST_LINES = 440
"""About 400, as the style asks, with a little room."""


def modules() -> list[Path]:
    return sorted([*PACKAGE.rglob("*.py"), *(ROOT / "kernels").rglob("*.py")])


def room_of(path: Path) -> str:
    if path.is_relative_to(ROOT / "kernels"):
        return "t1kernels"
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Dotted names that a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            assert node.module is not None
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def imported_rooms(path: Path) -> set[tuple[str, str]]:
    """(room, dotted name) of every import of ours."""
    found: set[tuple[str, str]] = set()
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "t1kernels":
            found.add(("t1kernels", name))
        elif parts[0] == "t1actors" and len(parts) > 1 and parts[1] in FLOORS:
            found.add((parts[1], name))
    return found


def is_exempt(room: str, name: str) -> bool:
    return any(room == r and (name == n or name.startswith(n + ".")) for r, n in EXCEPTIONS)


def test_every_room_has_a_floor():
    rooms = {room_of(p) for p in modules()} - {"__init__", "assets", "presets"}
    assert rooms <= set(FLOORS), f"give {sorted(rooms - set(FLOORS))} a floor in docs/architecture.md and here"


def test_no_room_imports_a_floor_above_its_own():
    wrong: list[str] = []
    for path in modules():
        room = room_of(path)
        for other, name in imported_rooms(path):
            if room in FLOORS and FLOORS[other] > FLOORS[room] and not is_exempt(room, name):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("room", "other"), sorted(FORBIDDEN))
def test_a_room_does_not_know_what_is_not_its_business(room, other):
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules()
        if room_of(path) == room
        for found, name in imported_rooms(path)
        if found == other and not is_exempt(room, name)
    ]
    assert not wrong, f"{FORBIDDEN[room, other]}: {wrong}"


def test_actors_meet_only_through_the_log():
    wrong = [
        f"{path.name} imports {name}"
        for path in (PACKAGE / "actors").glob("*.py")
        for name in imports(path)
        if name.startswith("t1actors.actors.") and name.split(".")[2] in SEVEN - {path.stem, KINDS_OF.get(path.stem)}
    ]
    assert not wrong, wrong


def test_torch_is_imported_only_where_numbers_are_made():
    wrong = [
        str(path.relative_to(ROOT))
        for path in modules()
        if room_of(path) not in TORCH_ROOMS and not (room_of(path) == "actors" and path.name in TORCH_ACTORS)
        for name in imports(path)
        if name.split(".")[0] in ("torch", "transformers")
    ]
    assert not wrong, wrong


def test_a_process_that_needs_no_torch_never_loads_it():
    code = f"""
import importlib, sys
for name in {TORCH_FREE}:
    importlib.import_module(name)
    if "torch" in sys.modules or "transformers" in sys.modules:
        sys.exit(f"{{name}} loads torch")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_our_kernels_neither_shadow_nor_are_shadowed_by_the_library_of_that_name():
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert (ROOT / "kernels" / "t1kernels" / "__init__.py").exists()


def test_every_module_says_what_it_is_for():
    silent = [
        str(path.relative_to(ROOT))
        for path in modules()
        if path.read_text().strip() and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert not silent, silent


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def public_functions(body: list[ast.stmt]) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in body if isinstance(node, FUNCTIONS) and not node.name.startswith("_")]


def protocols() -> dict[str, set[str]]:
    """Every protocol of ours, by the names of its methods."""
    return {
        node.name: {method.name for method in public_functions(node.body)}
        for path in modules()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
    }


def is_plain_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A property of one ``return``: its name and type say it all."""
    names = {ast.unparse(decorator) for decorator in node.decorator_list}
    return (
        bool(names & {"property", "cached_property"}) and len(node.body) == 1 and isinstance(node.body[0], ast.Return)
    )


def test_every_public_class_function_and_method_says_what_it_is_for():
    """Public: no leading underscore, at the top of a module or in a public class there. What needs no text of its own: dunder
    methods, properties of one ``return``, and methods that keep a protocol of ours (a class that has all of its methods):
    the protocol documents them."""
    known = protocols()
    silent: list[str] = []
    for path in modules():
        tree = ast.parse(path.read_text())
        found: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]] = [
            (node.name, node) for node in public_functions(tree.body)
        ]
        for kind in (node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")):
            methods = public_functions(kind.body)
            names = {method.name for method in methods}
            kept = {
                name
                for protocol, wanted in known.items()
                if protocol != kind.name and wanted <= names
                for name in wanted
            }
            found.append((kind.name, kind))
            found += [(f"{kind.name}.{m.name}", m) for m in methods if m.name not in kept and not is_plain_property(m)]
        place = path.relative_to(ROOT)
        silent += [f"{place}:{node.lineno} {name}" for name, node in found if not ast.get_docstring(node)]
    assert not silent, "\n".join(silent)


def test_no_file_is_longer_than_one_idea():
    # One file each on purpose: the vocabulary and the configuration tree.
    whole = {PACKAGE / "events.py", PACKAGE / "config.py"}
    long = {
        str(path.relative_to(ROOT)): lines
        for path in modules()
        if path not in whole and (lines := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert not long, long
