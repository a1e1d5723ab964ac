"""The machine that a figure is from: what decides speed, nothing that names a person or a host."""

from __future__ import annotations

import os
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("torch", "transformers", "msgspec", "trio")


def describe() -> dict[str, str]:
    """As of now: the load average belongs to the moment before a benchmark."""
    load = os.getloadavg()[0]
    return {
        "processor": _from_file("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{int(_from_file('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.0f} GiB",
        "kernel": platform.release(),
        "temporary files": file_system_of(Path(tempfile.gettempdir())),
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
        "load": f"{load:.1f} before the benchmark" + (" (busy: don't trust wall time)" if load > 0.5 else ""),
    }


def file_system_of(path: Path) -> str:
    """The type of the file system that holds ``path``: what a flush costs depends on it."""
    found, longest = "unknown", -1
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if path.resolve().is_relative_to(mount) and len(mount) > longest:
            found, longest = kind, len(mount)
    return found


def _from_file(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""
