"""``uv``, ``uvx``, ``pip``, ``curl``, ``wget`` and ``apt-get`` for tests' scripts that would fetch pytest from the
network.

They answer as if the fetch had been done when what is asked for is in the tool layer (or on the machine) already, hand
pytest over to the grader's own, and otherwise say by name what is missing, and fail. Each thing done is one JSON line
in ``STAND_INS``.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence

sys.path.insert(0, os.path.abspath(f"{os.path.dirname(__file__)}/../../.."))

from t1actors.verify.inside.places import NESTED, PROGRAMS, STAND_INS

MISSING = 1
PROVIDED = {"pytest-json-ctrf": "the grader's own report", "uv": "this stand-in", "pip": "this stand-in"}
BY_PROGRAM = (
    "curl",
    "wget",
    "python3-pip",
    "python3-venv",
    "python-is-python3",
    "python3-full",
    "ca-certificates",
    "pipx",
)
"""Debian packages whose work is done here already."""
HERE = re.compile(r"^(https?://)?(localhost|127\.0\.0\.1|\[::1\])([:/]|$)")
INSTALLER = """# In place of uv's installer: uv is there.
mkdir -p "$HOME/.local/bin"
printf '# nothing to add: uv is on PATH\\n' > "$HOME/.local/bin/env"
"""
WITH_VALUE = {
    "pip": ("-i", "--index-url", "--extra-index-url", "-t", "--target", "--python", "-p", "--prefix", "-c", "--constraint"),
    "uvx": ("-p", "--python", "-i", "--index-url", "--default-index", "--index", "-c", "--python-preference"),
    "curl": ("-o", "--output", "-H", "--header", "-m", "--max-time", "--retry", "--retry-delay", "--connect-timeout"),
    "wget": ("-O", "--output-document", "-T", "--timeout", "-t", "--tries", "-P"),
}  # fmt: skip


class Missing(Exception):
    """What the script asked for cannot be had offline."""


def note(program: str, what: str) -> None:
    """Record what a stand-in did. Only the grader may: what the agent's programs ask for is not recorded."""
    if os.geteuid() != 0 or os.environ.get(NESTED):
        return
    line = json.dumps({"program": program, "did": what}).encode() + b"\n"
    file = os.open(STAND_INS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    os.write(file, line)
    os.close(file)


def require(program: str, requirements: Sequence[str]) -> None:
    """Every package of ``requirements`` is here, in whatever version. Raises ``Missing``."""
    for requirement in requirements:
        match = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
        if match is None or "/" in requirement:
            raise Missing(f"{requirement}: only packages by name are known offline")
        name = re.sub(r"[-_.]+", "-", match[0]).lower()
        try:
            have = PROVIDED.get(name) or f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            raise Missing(f"{requirement}: not in the offline tool layer; add it to verify.tool_packages") from None
        note(program, f"{requirement}: {have}")


def words_of(
    program: str, given: Sequence[str], collect: tuple[str, ...] = ()
) -> tuple[list[str], dict[str, list[str]]]:
    """(first words that are no option, and all behind them; values of the options in ``collect``). uv's own options end
    where the command that it runs begins, so everything from the first plain word on is left as it is."""
    found: dict[str, list[str]] = {name: [] for name in collect}
    words = list(given)
    while words and words[0].startswith("-") and words[0] != "--":
        name, equals, value = words.pop(0).partition("=")
        if name in collect:
            found[name].append(value if equals else words.pop(0))
        elif name in WITH_VALUE.get(program, ()) and not equals:
            words.pop(0)
    return words[1:] if words[:1] == ["--"] else words, found


def run(words: Sequence[str]) -> int:
    """The command that uv was to run: found on PATH, where the grader's programs come first."""
    if not words:
        raise Missing("no command to run")
    program = shutil.which(words[0])
    if program is None:
        raise Missing(f"{words[0]}: not in the offline tool layer")
    os.execv(program, list(words))


def uvx(given: Sequence[str]) -> int:
    """Run a program with packages: those must be here."""
    words, found = words_of("uvx", given, ("-w", "--with", "--from"))
    require("uvx", [part for values in found.values() for value in values for part in value.split(",")])
    if words and "@" in words[0]:
        words[0] = words[0].partition("@")[0]
    return run(words)


def uv(given: Sequence[str]) -> int:
    """uv's commands, as far as scripts that grade use them."""
    if given[:1] in (["--version"], ["-V"]):
        print("uv 0 (offline stand-in)")
        return 0
    words, _ = words_of("uv", given)
    command, rest = (words[0], words[1:]) if words else ("", [])
    if command == "pip":
        return pip(rest)
    if command == "tool" and rest[:1] == ["install"]:
        return pip(rest)
    if command == "add":
        return pip(["install", *rest])
    if command == "tool" and rest[:1] == ["run"]:
        return uvx(rest[1:])
    if command == "run":
        return uvx(rest)
    if command == "venv":
        return venv([word for word in rest if not word.startswith("-")] or [".venv"])
    if command in ("init", "sync", "lock", "python"):
        note("uv", f"{command}: nothing to do")
        return 0
    raise Missing(f"uv {' '.join(given)}: this stand-in does not do that")


def pip(given: Sequence[str]) -> int:
    """Installing what is here already."""
    if given[:1] != ["install"]:
        if given[:1] in (["--version"], ["list"], ["check"], ["cache"]):
            return 0
        raise Missing(f"pip {' '.join(given)}: this stand-in does nothing but install")
    rest, wanted = list(given[1:]), list[str]()
    while rest:
        word = rest.pop(0)
        if word in ("-r", "--requirement"):
            with open(rest.pop(0), encoding="utf-8") as file:
                lines = [line.partition("#")[0].strip() for line in file]
            wanted += [line for line in lines if line and not line.startswith("-")]
        elif word in WITH_VALUE["pip"]:
            rest.pop(0)
        elif not word.startswith("-"):
            wanted.append(word)
    require("pip", wanted)
    return 0


def venv(given: Sequence[str]) -> int:
    """A directory that looks like an environment, of which every program is the grader's."""
    places = [word for word in given if not word.startswith("-")]
    for place in places:
        try:
            os.makedirs(f"{place}/bin", exist_ok=True)
            for name in ("python", "python3", "pip", "pip3", "pytest"):
                if not os.path.lexists(f"{place}/bin/{name}"):
                    os.symlink(f"{PROGRAMS}/{name}", f"{place}/bin/{name}")
            with open(f"{place}/bin/activate", "w", encoding="utf-8") as file:
                file.write(f"export VIRTUAL_ENV='{os.path.abspath(place)}'\ndeactivate() {{ unset VIRTUAL_ENV; }}\n")
        except OSError as error:
            raise Missing(f"venv {place}: {error.strerror}; what the agent left is read-only to the grader") from error
        note("venv", f"{place}: the grader's Python")
    return 0


def fetch(program: str, given: Sequence[str]) -> int:
    """curl and wget: uv's installer is answered, the machine itself is asked for real, the network is not there."""
    words, urls, target = list(given), list[str](), ""
    while words:
        word = words.pop(0)
        if word in WITH_VALUE[program]:
            value = words.pop(0) if words else ""
            if word in ("-o", "--output", "-O", "--output-document"):
                target = value
        elif re.fullmatch(r"-[A-Za-z]*O", word) and program == "wget":  # as in -qO
            target = words.pop(0) if words else ""
        elif word.startswith("-qO"):
            target = word[3:]
        elif not word.startswith("-"):
            urls.append(word)
    real = next((path for path in (f"/usr/bin/{program}", f"/bin/{program}") if os.access(path, os.X_OK)), None)
    if urls and all(HERE.match(url) for url in urls):
        if real is None:
            raise Missing(f"{program} is not installed here")
        os.execv(real, [program, *given])
    if not urls or not all("astral.sh/uv" in url or "/astral-sh/uv/" in url for url in urls):
        raise Missing(f"{program} {' '.join(urls)}: there is no network while grading")
    note(program, f"{' '.join(urls)}: uv is there already")
    if target in ("", "-"):
        sys.stdout.write(INSTALLER)
    else:
        with open(target, "w", encoding="utf-8") as file:
            file.write(INSTALLER)
    return 0


def apt(given: Sequence[str]) -> int:
    """Installing what is on the machine already."""
    words = [word for word in given if not word.startswith("-")]
    command, packages = (words[0], words[1:]) if words else ("", [])
    if command in ("update", "upgrade", "clean", "autoclean", "autoremove"):
        note("apt-get", f"{command}: nothing to do")
        return 0
    if command != "install":
        raise Missing(f"apt-get {' '.join(given)}: this stand-in does nothing but update and install")
    for package in packages:
        name = package.partition("=")[0]
        if name not in BY_PROGRAM and shutil.which(name) is None:
            raise Missing(f"{package}: not on this machine, and there is no network while grading")
        note("apt-get", f"{package}: there already")
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "uv": uv,
    "uvx": uvx,
    "pip": pip,
    "venv": venv,
    "curl": lambda given: fetch("curl", given),
    "wget": lambda given: fetch("wget", given),
    "apt-get": apt,
}


def main(program: str, given: Sequence[str]) -> int:
    """Do what ``program`` was asked for; its exit status."""
    try:
        return COMMANDS[program](given)
    except Missing as missing:
        note(program, f"missing: {missing}")
        print(f"t1: {program}: {missing}", file=sys.stderr)
        return MISSING


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
