"""What a run was made with: the code's version and the environment, without importing any of it.

Guarantees: reads metadata and files only (no torch import), the same on every call in an unchanged installation.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

import blake3

NUMERIC_PACKAGES = ("torch", "transformers", "numpy", "safetensors", "tokenizers")
"""Packages whose version may change a tensor's bytes."""


def code_version() -> str:
    """The package's version and a digest of its sources: two trees that differ in a byte differ here."""
    hasher = blake3.blake3()
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        hasher.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{metadata.version('t1actors')}+{hasher.hexdigest()[:16]}"


def environment() -> dict[str, str]:
    """Versions, machine and processor, by name."""
    found = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": str(os.cpu_count() or 0),
    }
    for package in NUMERIC_PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
