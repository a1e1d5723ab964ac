"""Checks of Python, the packages that are required, torch's build, and the engines and services that are optional."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from t1actors.cli.checks import Check

INSTALL_FIX = "run `just setup`, or `pip install -e .` in the clone"


def of_python() -> list[Check]:
    """The interpreter, the packages and torch."""
    return [_python(), _packages(), _torch()]


def of_optional_parts() -> list[Check]:
    """What a run does without so far."""
    return [
        _optional(
            "nats",
            "nats",
            shutil.which("nats-server"),
            "pip install -e '.[nats]' in the clone, and nats-server on PATH",
        ),
        _optional("sglang", "sglang", "part of it", "pip install -e '.[sglang]' in the clone on a machine with a GPU"),
    ]


def _python() -> Check:
    return Check("python", "good", f"{platform.python_version()} at {sys.executable}")


def _packages() -> Check:
    """Each requirement of this package against what is installed."""
    try:
        required = [Requirement(text) for text in metadata.requires("t1actors") or []]
    except metadata.PackageNotFoundError:
        return Check("packages", "bad", "t1actors itself is not installed", INSTALL_FIX)
    needed = [r for r in required if r.marker is None or r.marker.evaluate({"extra": ""})]
    for requirement in needed:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            return Check("packages", "bad", f"{requirement.name} is not installed", INSTALL_FIX)
        if not requirement.specifier.contains(version, prereleases=True):
            found = f"{requirement.name} is {version}, {requirement.specifier} is needed"
            return Check("packages", "bad", found, INSTALL_FIX)
    shown = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "tokenizers", "trio"))
    return Check("packages", "good", f"all {len(needed)} as required; {shown}")


def _torch() -> Check:
    """Its build, read from its files: importing it takes longer than all the other checks together."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return Check("torch", "bad", "not installed", INSTALL_FIX)
    path = Path(spec.origin).with_name("version.py")
    text = path.read_text() if path.exists() else ""
    cuda = re.search(r"^cuda\b[^=]*=\s*'([^']+)'", text, re.MULTILINE)
    build = f"a CUDA {cuda[1]} build, used on the processor" if cuda else "a build for the processor"
    asked = os.environ.get("OMP_NUM_THREADS")
    note = f" (OMP_NUM_THREADS={asked} does not change that)" if asked and asked != "1" else ""
    return Check("torch", "good", f"{build}; every actor computes with one thread{note}")


def _optional(name: str, module: str, program: str | None, how: str) -> Check:
    has_module = importlib.util.find_spec(module) is not None
    if has_module and program:
        return Check(name, "good", "found; no run uses it yet")
    lacks = [
        what for what, there in ((f"the Python package {module}", has_module), ("the program", program)) if not there
    ]
    return Check(name, "absent", f"no run needs it; lacks {' and '.join(lacks)}", how)
