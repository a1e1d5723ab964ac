"""What a machine must be able to do: looked at before a run starts, and by `t1 doctor`. No torch is imported."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from t1actors.config import Config
from t1actors.models.folder import check_folder, model_folder
from t1actors.observe.quantities import size
from t1actors.sandbox.probe import probe
from t1actors.tasks.pools import pool_names

Verdict = Literal["good", "warning", "bad"]
RUN_BYTES = 2 * 10**9
"""A demonstration run writes less than half of this."""
MEMORY_BYTES = 4 * 10**9


@dataclass(frozen=True)
class Check:
    """``fix`` is what a person can do about it; empty when all is well."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""

    @property
    def text(self) -> str:
        return f"{self.name}: {self.found}" + (f". {self.fix}" if self.fix else "")


def machine_checks(directory: Path) -> list[Check]:
    """Python, packages, processor, memory and disk of this machine; the disk is that of ``directory``."""
    return [_python(), _packages(), _processor(), _memory(), _disk(directory), _kernel()]


async def sandbox_checks(directory: Path | None = None) -> list[Check]:
    """Makes one whole sandbox, in a temporary directory (under ``directory``), and says what works."""
    report = await probe(directory)
    verdicts: dict[bool, Verdict] = {True: "warning", False: "bad"}
    return [Check(c.name, "good" if c.ok else verdicts[report.works], c.detail, c.fix) for c in report.checks]


def config_checks(config: Config) -> None:
    """Model and tasks that the configuration names. Raises ``ModelFolderError`` and ``TaskError``."""
    check_folder(model_folder(config.model.policy))
    if config.model.critic != "policy":
        model_folder(config.model.critic)
    for kind in ("train", "heldout") if config.schedule.evaluate else ("train",):
        pool_names(config.tasks, kind)


def _python() -> Check:
    return Check("python", "good", f"{platform.python_version()} at {sys.executable}")


def _packages() -> Check:
    found: list[str] = []
    for name in ("torch", "transformers", "tokenizers", "trio"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            return Check("packages", "bad", f"{name} is not installed", "run `just setup`, or pip install t1actors")
    return Check("packages", "good", ", ".join(found))


def _processor() -> Check:
    usable = len(os.sched_getaffinity(0))
    found = f"{usable} of {os.cpu_count()} cores usable, {platform.machine()}"
    if usable < 2:
        return Check("processor", "warning", found, "the demonstration is made for two cores; it will take longer")
    return Check("processor", "good", found)


def _memory() -> Check:
    available = _meminfo("MemAvailable")
    if available is None:
        return Check("memory", "warning", "not known here")
    if available < MEMORY_BYTES:
        fix = f"a run of the demonstration needs about {size(MEMORY_BYTES)}; processes may be killed"
        return Check("memory", "warning", f"{size(available)} available", fix)
    return Check("memory", "good", f"{size(available)} available")


def _meminfo(name: str) -> int | None:
    path = Path("/proc/meminfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _disk(directory: Path) -> Check:
    place = next(p for p in (directory, *directory.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK):
        return Check("disk", "bad", f"{place} cannot be written", "choose another place with --dir")
    if free < RUN_BYTES:
        fix = f"a run needs {size(RUN_BYTES)}: free some, or choose another place with --dir"
        return Check("disk", "bad", f"{size(free)} free in {place}", fix)
    return Check("disk", "good", f"{size(free)} free in {place}")


def _kernel() -> Check:
    if sys.platform != "linux":
        return Check("system", "bad", platform.system(), "sandboxes need Linux (a virtual machine will do)")
    return Check("system", "good", f"Linux {platform.release()}, user {os.geteuid()}")


def bad(checks: list[Check]) -> list[Check]:
    return [check for check in checks if check.verdict == "bad"]
