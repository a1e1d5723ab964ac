"""The tool layer: pytest, its plugins and the stand-ins, as one read-only archive for graders' sandboxes.

Built on the host from packages that are installed there (or from wheels in a directory), for the interpreter that will
grade; nothing is downloaded. Content-addressed: the same packages and interpreter give the same bytes, and the digest
goes into every verdict. Guarantees: only what the interpreter can run (versions and compiled files are checked), no
scripts of packages, no ``.pth`` files; a layer read from the cache has the digest that names it.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import blake3
import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from t1actors.payloads import digest_of
from t1actors.sandbox.archive import archive_of_directory
from t1actors.sandbox.interface import Layer
from t1actors.verify.inside.places import LIBRARY, NESTED, PROGRAMS, TOOLS
from t1actors.verify.verdict import VerifyError

PACKAGES = ("pytest",)
_UNUSED = re.compile(
    r"pygments/(lexers/(?!(__init__|_mapping|diff|python|special)\.py$)|styles/(?!(__init__|_mapping|default)\.py$))"
)
"""Much of what pytest installs colours other languages."""
_INSIDE = ("__init__", "places", "cases", "landlock", "links", "subject", "launch", "stand_in")
_SECONDS = 120.0
_ASK = (
    "import json, platform, sys, sysconfig; print(json.dumps({'version': platform.python_version(), "
    "'suffix': sysconfig.get_config_var('EXT_SUFFIX') or '', 'platform': sys.platform, 'machine': platform.machine()}))"
)
_COMPILE = (
    "import compileall, py_compile, sys; mode = py_compile.PycInvalidationMode.UNCHECKED_HASH; here = sys.argv[1]; "
    f"sys.exit(not compileall.compile_dir(here, quiet=1, stripdir=here, prependdir='{LIBRARY}', invalidation_mode=mode))"
)


@dataclass(frozen=True)
class ToolLayer:
    """``packages`` are names with versions. ``layer`` is what a grader's sandbox gets."""

    archive: bytes
    digest: str
    packages: tuple[str, ...]

    @property
    def layer(self) -> Layer:
        return Layer(archive=self.archive, at=TOOLS, read_only=True)


class _Interpreter(msgspec.Struct, frozen=True):
    version: str
    suffix: str
    platform: str
    machine: str


@dataclass(frozen=True)
class _Package:
    name: str
    version: str
    files: tuple[tuple[str, bytes], ...]
    requires: tuple[str, ...]
    requires_python: str


def build_tool_layer(
    interpreter: str,
    *,
    packages: Sequence[str] = PACKAGES,
    wheels: Path | None = None,
    cache: Path | None = None,
) -> ToolLayer:
    """The layer for ``interpreter``, a path that holds on this host and in the grader's sandbox alike. Takes seconds,
    unless ``cache`` (a directory) has it.

    Args:
        packages: what tests may import, beside pytest; what they require comes with them.
        wheels: a directory whose wheels come before installed packages.

    Raises:
        VerifyError: a package is not there, or not for this interpreter.
    """
    facts = _ask(interpreter)
    found = sorted(_closure([*PACKAGES, *packages], wheels, facts), key=lambda package: package.name)
    files = dict(_files(found, interpreter))
    names = tuple(f"{package.name} {package.version}" for package in found)
    key = _key(files, facts)
    if cache is not None and (archive := _cached(cache, key)) is not None:
        return ToolLayer(archive, digest_of(archive), names)
    with tempfile.TemporaryDirectory(prefix="t1-tools-") as scratch:
        archive = _laid_out(Path(scratch), files, interpreter)
    digest = digest_of(archive)
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        fresh = cache / f".{key}.{os.getpid()}"
        fresh.write_bytes(archive)
        fresh.replace(cache / f"{key}.{digest}.t1ar")
    return ToolLayer(archive, digest, names)


def _ask(interpreter: str) -> _Interpreter:
    return msgspec.json.decode(_python(interpreter, _ASK), type=_Interpreter)


def _python(interpreter: str, code: str, *arguments: str) -> bytes:
    command = [interpreter, "-I", "-S", "-c", code, *arguments]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", b"") or b"").decode(errors="replace")[-500:]
        raise VerifyError(f"{interpreter}: cannot make the tool layer: {error} {said}") from error
    return done.stdout


# --- packages ---------------------------------------------------------------------------------------------------------


def _closure(wanted: Sequence[str], wheels: Path | None, facts: _Interpreter) -> list[_Package]:
    version = facts.version.split("+")[0]
    environment = {
        "python_version": ".".join(version.split(".")[:2]),
        "python_full_version": version,
        "sys_platform": facts.platform,
        "platform_machine": facts.machine,
        "extra": "",
    }
    pending, found = list(wanted), dict[str, _Package]()
    while pending:
        text = pending.pop()
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise VerifyError(f"verify.tool_packages: {text!r} is no package's name: {error}") from error
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found or (requirement.marker is not None and not requirement.marker.evaluate(environment)):
            continue
        package = _from_wheel(name, wheels) or _installed(name)
        if package is None:
            raise VerifyError(f"{name} is not installed here, and graders' sandboxes need it: pip install {name}")
        if not SpecifierSet(package.requires_python).contains(version, prereleases=True):
            raise VerifyError(
                f"{name} {package.version} needs Python {package.requires_python}, and tests are graded with {version}: "
                f"install an older {name}, or put its wheel into the directory of wheels"
            )
        for path, _ in package.files:
            if path.endswith(".so") and not path.endswith((facts.suffix, ".abi3.so")):
                raise VerifyError(f"{name} {package.version}: {path} is compiled for another Python than {version}")
        found[name] = package
        pending += package.requires
    return list(found.values())


def _installed(name: str) -> _Package | None:
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    files = [
        (str(path), Path(str(distribution.locate_file(path))).read_bytes())
        for path in distribution.files or ()
        if _is_wanted(str(path))
    ]
    return _package(name, distribution.read_text("METADATA") or "", files)


def _from_wheel(name: str, wheels: Path | None) -> _Package | None:
    for path in sorted(wheels.glob("*.whl"), reverse=True) if wheels is not None else ():
        if re.sub(r"[-_.]+", "-", path.name.split("-")[0]).lower() != name:
            continue
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            metadata = next(member for member in members if member.endswith(".dist-info/METADATA"))
            files = [(member, archive.read(member)) for member in members if _is_wanted(member)]
            return _package(name, archive.read(metadata).decode(), files)
    return None


def _package(name: str, metadata: str, files: Sequence[tuple[str, bytes]]) -> _Package:
    header = metadata.partition("\n\n")[0]

    def values(key: str) -> tuple[str, ...]:
        return tuple(re.findall(rf"^{key}: (.*)$", header, re.MULTILINE))

    return _Package(
        name=name,
        version=values("Version")[0],
        files=tuple(files),
        requires=values("Requires-Dist"),
        requires_python=next(iter(values("Requires-Python")), ""),
    )


def _is_wanted(path: str) -> bool:
    parts = path.split("/")
    if ".." in parts or path.startswith("/") or "__pycache__" in parts or path.endswith((".pyc", ".pth", "/")):
        return False
    return not parts[0].endswith((".dist-info", ".data")) and not _UNUSED.match(path)


# --- the tree ---------------------------------------------------------------------------------------------------------


def _files(found: Sequence[_Package], interpreter: str) -> Iterator[tuple[str, bytes]]:
    """Path below the layer's root, and content; programs are told by their place."""
    for package in found:
        yield from ((f"lib/{path}", data) for path, data in package.files)
        about = f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n"
        yield f"lib/{package.name}-{package.version}.dist-info/METADATA", about.encode()
    for place in ("t1actors", "t1actors/verify"):
        yield f"lib/{place}/__init__.py", b""
    folder = resources.files("t1actors.verify.inside")
    for name in _INSIDE:
        yield f"lib/t1actors/verify/inside/{name}.py", folder.joinpath(f"{name}.py").read_bytes()
    for name, text in _programs(interpreter).items():
        yield f"bin/{name}", text.encode()


def _programs(interpreter: str) -> dict[str, str]:
    inside = f"{LIBRARY}/t1actors/verify/inside"
    python = f"""#!/bin/sh
# The grader's Python; what would use an installed pytest or pip uses ours.
if [ "$1" = -m ]; then
    case "$2" in
    pytest) shift 2; exec {PROGRAMS}/pytest "$@" ;;
    pip) shift 2; exec {PROGRAMS}/pip "$@" ;;
    venv) shift 2; exec {interpreter} -I {inside}/stand_in.py venv "$@" ;;
    esac
fi
export PYTHONNOUSERSITE=1
case "${{{NESTED}}}$1:$PWD" in
-c:*) export PYTHONSAFEPATH=1 ;;
-m:/tests*) ;;
-m:*) export PYTHONSAFEPATH=1 ;;
esac
exec {interpreter} "$@"
"""
    pytest = f'#!/bin/sh\nexec {interpreter} -I {inside}/launch.py "$@"\n'
    programs = {"python": python, "python3": python, "pytest": pytest, "py.test": pytest}
    for name, command in (("uv", "uv"), ("uvx", "uvx"), ("pip", "pip"), ("pip3", "pip"), ("curl", "curl"), ("wget", "wget"),
                          ("apt-get", "apt-get"), ("apt", "apt-get")):  # fmt: skip
        programs[name] = f'#!/bin/sh\nexec {interpreter} -I {inside}/stand_in.py {command} "$@"\n'
    return programs


def _laid_out(root: Path, files: dict[str, bytes], interpreter: str) -> bytes:
    for path, data in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    # With their code beside them, or every grading would compile a hundred modules.
    _python(interpreter, _COMPILE, str(root / "lib"))
    for folder, names, here in os.walk(root):
        for name in names:
            os.chmod(os.path.join(folder, name), 0o755)
        for name in here:
            os.chmod(os.path.join(folder, name), 0o755 if folder == str(root / "bin") else 0o644)
    os.chmod(root, 0o755)
    return archive_of_directory(root)


def _key(files: dict[str, bytes], facts: _Interpreter) -> str:
    hasher = blake3.blake3(msgspec.msgpack.encode(facts))
    for path, data in sorted(files.items()):
        hasher.update(blake3.blake3(path.encode()).digest() + blake3.blake3(data).digest())
    return hasher.hexdigest()


def _cached(cache: Path, key: str) -> bytes | None:
    for path in cache.glob(f"{key}.*.t1ar"):
        archive = path.read_bytes()
        if digest_of(archive) == path.name.split(".")[1]:
            return archive
        path.unlink()  # damaged: it is made again
    return None
