"""The machine that a figure is from: what decides speed, nothing that names a person or a host."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("torch", "transformers", "msgspec", "trio")


def describe() -> dict[str, str]:
    """As of now, which should be before a benchmark."""
    busy = busy_share(0.5)
    return {
        "processor": _from_file("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{int(_from_file('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.0f} GiB",
        "kernel": platform.release(),
        "temporary files": file_system_of(Path(tempfile.gettempdir())),
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
        "busy": f"{100 * busy:.0f} % of its cores before the benchmark"
        + (" (don't trust wall time)" if busy > 0.05 else ""),
    }


def busy_share(seconds: float) -> float:
    """Of the machine's cores, during the next ``seconds``, by others. Not the load average: that remembers the benchmark
    before."""
    before = _processor_ticks()
    time.sleep(seconds)
    used, idle = (b - a for a, b in zip(before, _processor_ticks(), strict=True))
    return used / max(used + idle, 1)


def _processor_ticks() -> tuple[int, int]:
    """(used, idle) of all cores."""
    user, nice, system, idle, waiting, *others = map(int, Path("/proc/stat").read_text().split(None, 11)[1:10])
    return user + nice + system + sum(others), idle + waiting


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
