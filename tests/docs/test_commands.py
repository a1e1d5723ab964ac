"""Every command in README.md and docs/ does what it says, as far as seconds allow: see ``treatments``."""

import contextlib
import io
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from t1actors.cli.main import app, main
from t1actors.config import resolve
from tests.docs.pages import ROOT, Command, blocks, inline_commands, pages, shell_commands
from tests.docs.treatments import on_the_recorded_run, plain, treatment

LANGUAGES = {"sh", "python", "text", "toml", "json", "mermaid"}
COMMANDS = [*shell_commands(), *inline_commands()]


def of(action: str, *, inline: bool | None = None) -> list[Command]:
    """The commands with that treatment, each once."""
    found: dict[str, Command] = {}
    for command in COMMANDS:
        chosen = treatment(plain(command.text))
        if chosen is not None and chosen.action == action and inline in (None, command.inline):
            found.setdefault(plain(command.text), command)
    return list(found.values())


def named(commands: list[Command], *marks: pytest.MarkDecorator) -> list[object]:
    return [pytest.param(command, id=plain(command.text).replace("/", "|"), marks=marks) for command in commands]


def test_every_block_says_what_it_is():
    wrong = [block.place for page in pages() for block in page.blocks if block.language not in LANGUAGES]
    assert not wrong, f"begin these blocks with ``` and one of {sorted(LANGUAGES)}: {wrong}"


def test_commands_stand_in_sh_blocks_where_they_are_found():
    hidden = [
        f"{page.path}:{number}"
        for page in pages()
        for number, line in page.prose
        if re.match(r"(?: {4,}|\$ )(?:\$ )?(?:t1|just|python3?|pip|\.venv/\S+) ", line)
    ]
    hidden += [b.place for b in blocks("text") if re.search(r"^(?:\$ )?(?:t1|just|pip) ", b.text, re.MULTILINE)]
    assert not hidden, f"write these as ```sh blocks, without a prompt: {hidden}"


def test_every_command_has_a_treatment():
    new = [f"{c.place}: {c.text}" for c in COMMANDS if treatment(plain(c.text)) is None]
    assert not new, f"say in tests/docs/treatments.py how each of these is tested: {new}"


def command_paths(parent=app, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and every group of commands."""
    found = [path]
    for name in parent:
        if not name.startswith("-"):
            found += command_paths(parent[name], (*path, name))
    return found


# --- run ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [*named(of("run", inline=False)), *named(of("slow", inline=False), pytest.mark.slow)]
)
def test_the_command_works(command: Command, workplace: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(workplace)
    text, _, rest = on_the_recorded_run(plain(command.text)).partition("|")
    text, _, file = text.partition(">")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(shlex.split(text)[1:])
    assert status == 0, f"{command.place}: status {status}\n{out.getvalue()}"
    assert out.getvalue(), f"{command.place}: printed nothing"
    if file:
        Path(file.strip()).write_text(out.getvalue())
    if rest:
        piped = subprocess.run(rest, shell=True, input=out.getvalue(), capture_output=True, text=True, check=False)
        assert piped.returncode == 0, piped.stderr
        assert piped.stdout


# --- parsed only --------------------------------------------------------------------------------------------------------

PLACEHOLDERS = {"N": "1", "[--lifeline]": "", "COMMAND": "run"}


def parse(text: str, place: str) -> None:
    """What the command line's own parser makes of a `t1` command. ``--set`` goes through the configuration, too."""
    tokens = [PLACEHOLDERS.get(token, token) for token in shlex.split(text.partition(">")[0].partition("|")[0])[1:]]
    try:
        _, bound, *_ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except Exception as error:
        raise AssertionError(f"{place}: `{text}` is refused: {error}") from error
    sets = [s for s in bound.arguments.get("sets", ()) if not s.startswith("key=")]
    resolve(preset=bound.arguments.get("preset"), sets=sets)


@pytest.mark.parametrize("command", named([*of("parse"), *of("run", inline=True), *of("slow", inline=True)]))
def test_the_command_line_takes_it(command: Command):
    assert "..." not in command.text, f"{command.place}: name the arguments"
    named_only = command.inline and tuple(command.text.split()[1:]) in command_paths()
    if not named_only:
        parse(plain(command.text), command.place)


# --- just ---------------------------------------------------------------------------------------------------------------


def recipes() -> dict[str, tuple[list[str], list[str]]]:
    """Name -> (parameters, lines) of the Justfile's recipes."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    name = ""
    for line in (ROOT / "Justfile").read_text().splitlines():
        head = re.match(r"([a-z_][\w-]*)((?: \*?\w+)*):(?!=)", line)
        if head:
            name = head[1]
            found[name] = (head[2].split(), [])
        elif line.startswith("    ") and name:
            found[name][1].append(line.strip())
    return found


@pytest.mark.parametrize("command", named(of("recipe")))
def test_the_recipe_takes_these_arguments_and_makes_a_command_of_them(command: Command):
    name, *arguments = shlex.split(plain(command.text))[1:]
    assert name in recipes(), f"{command.place}: the Justfile has no recipe {name}"
    parameters, lines = recipes()[name]
    fixed = [p for p in parameters if not p.startswith("*")]
    assert len(arguments) >= len(fixed), f"{command.place}: `just {name}` takes {parameters}"
    assert len(arguments) == len(fixed) or len(parameters) > len(fixed), f"{command.place}: too many arguments"
    for line in lines:
        for n, argument in enumerate(arguments, start=1):
            line = line.replace(f'"${n}"', argument)
        line = line.replace('"$@"', " ".join(arguments))
        line = line.replace("{{bin}}/", "")
        if line.startswith("t1 "):
            parse(line, command.place)
        elif " -m bench " in line:
            options_of(line.partition(" -m ")[2].split(), command.place)


# --- benchmarks and tools -------------------------------------------------------------------------------------------------


def options_of(words: list[str], place: str) -> None:
    """The module or file is there, and its source has every option."""
    module, *rest = words
    path = ROOT / module if module.endswith(".py") else ROOT / module.replace(".", "/")
    sources = [p for p in (path, path.with_suffix(".py"), path / "__main__.py") if p.is_file()]
    assert sources, f"{place}: no {module}"
    text = "".join(p.read_text() for p in [*sources, ROOT / "bench" / "tables.py"])
    unknown = [w for w in rest if w.startswith("--") and f'"{w}"' not in text]
    assert not unknown, f"{place}: {module} has no {unknown}"


@pytest.mark.parametrize("command", named(of("script")))
def test_the_script_is_there_and_has_the_options(command: Command):
    options_of(command.text.removeprefix("python ").removeprefix("-m ").split(), command.place)


# --- help ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", command_paths(), ids=" ".join)
def test_the_help_of_every_command_and_group_has_an_example_that_parses(path: tuple[str, ...]):
    found = app
    for name in path:
        found = found[name]
    examples = re.findall(r"Example: `(t1 [^`]+)`", found.help or "")
    assert examples, f"t1 {' '.join(path)} --help shows no line Example: `t1 {' '.join(path)} ...`"
    for example in examples:
        assert example.startswith(" ".join(("t1", *path)))
        parse(example, f"t1 {' '.join(path)} --help")
