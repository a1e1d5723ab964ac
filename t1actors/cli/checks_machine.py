"""Checks of the machine as it is left to this process: processor, memory, clock, descriptors, processes, the system.

A container's share counts, not the host's: what a control group allows is looked up at every level above this process.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from t1actors.cli.checks import Check
from t1actors.observe.quantities import size

MEMORY_BYTES = 2 * 10**9
"""The demonstration runs, more slowly, in 1.5 GB."""
LEAST_MEMORY_BYTES = 10**9
"""Below this the actors that compute do not even start: three of them hold torch."""
DESCRIPTORS = 1024
LEAST_DESCRIPTORS = 256
"""A sandbox's shell alone uses descriptor 250."""
PROCESSES = 512
LEAST_PROCESSES = 128
OLDEST_TIME = datetime(2025, 1, 1, tzinfo=UTC)
ENDLESS = 1 << 62
"""Control groups of version 1 write a number about this large for "no limit"."""


def of_this_machine() -> list[Check]:
    """System, processor, memory, limits and clock."""
    return [_system(), _processor(), _memory(), _descriptors(), _processes(), _clock()]


def _system() -> Check:
    found = f"{platform.system()} {platform.release()}, user {os.geteuid()}"
    if sys.platform != "linux":
        return Check("system", "bad", found, "sandboxes need Linux (a virtual machine will do)")
    return Check("system", "good", found)


def _processor() -> Check:
    usable = len(os.sched_getaffinity(0))
    found = f"{usable} of {os.cpu_count()} cores usable, {platform.machine()}"
    share = _processor_share()
    if share is not None and share < usable:
        found += f", a control group allows {share:.1f} of them"
    if min(usable, share or usable) < 2:
        return Check("processor", "warning", found, "the demonstration is made for two cores; it will take longer")
    return Check("processor", "good", found)


def memory_left_bytes() -> int | None:
    """What processes may still take, of this machine and of what a control group allows; None where that is not known."""
    available, allowed = _meminfo("MemAvailable"), _memory_allowed()
    return min(available, allowed) if available is not None and allowed is not None else available


def _memory() -> Check:
    available = _meminfo("MemAvailable")
    if available is None:
        return Check("memory", "warning", "not known here")
    found = f"{size(available)} available"
    allowed = _memory_allowed()
    if allowed is not None and allowed < available:
        available, found = allowed, f"{size(allowed)} left of what a control group allows"
    if available < LEAST_MEMORY_BYTES:
        return Check("memory", "bad", found, f"a run needs about {size(MEMORY_BYTES)}: free some, or allow more")
    if available < MEMORY_BYTES:
        fix = f"the demonstration needs about {size(MEMORY_BYTES)}; processes may be killed"
        return Check("memory", "warning", found, fix)
    return Check("memory", "good", found)


def _descriptors() -> Check:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= DESCRIPTORS:
        return Check("open files", "good", "any number" if hard == resource.RLIM_INFINITY else f"up to {hard}")
    fix = f"raise it: `ulimit -n {DESCRIPTORS}` (or LimitNOFILE of the service)"
    return Check("open files", "bad" if hard < LEAST_DESCRIPTORS else "warning", f"up to {hard} a process", fix)


def _processes() -> Check:
    left = _processes_left()
    if left is None:
        return Check("processes", "good", "no limit but the kernel's")
    if left >= PROCESSES:
        return Check("processes", "good", f"{left} more may be started")
    fix = f"a run has a few hundred at times: allow {PROCESSES} (Docker: --pids-limit)"
    return Check("processes", "bad" if left < LEAST_PROCESSES else "warning", f"{left} more may be started", fix)


def _clock() -> Check:
    now = datetime.now(UTC)
    found = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < OLDEST_TIME:
        return Check("clock", "warning", found, "set it: names of runs and times in the log come from it")
    return Check("clock", "good", found)


def _meminfo(name: str) -> int | None:
    path = Path("/proc/meminfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


# --- control groups ---------------------------------------------------------------------------------------------------


def _memory_allowed() -> int | None:
    """What the tightest group leaves; memory that holds files only can be had back and counts as left."""
    left: list[int] = []
    for group in _groups("memory"):
        limit = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
        used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
        if limit is not None and limit < ENDLESS:
            left.append(limit - used + _file_pages(group / "memory.stat"))
    return max(0, min(left)) if left else None


def _processes_left() -> int | None:
    left: list[int] = []
    for group in _groups("pids"):
        limit = _number(group / "pids.max")
        if limit is not None:
            left.append(limit - (_number(group / "pids.current") or 0))
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:  # it does not bind root
        left.append(soft)
    return max(0, min(left)) if left else None


def _processor_share() -> float | None:
    shares: list[float] = []
    for group in _groups("cpu"):
        quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        words = _text(group / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            quota, period = int(words[0]), int(words[1])
        if quota is not None and period and quota > 0:
            shares.append(quota / period)
    return min(shares) if shares else None


def _groups(controller: str) -> Iterator[Path]:
    """This process's group and all above it, of version 1 and of version 2, as far as they can be seen."""
    top = Path("/sys/fs/cgroup")
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, names, own = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        for mount in (top / names,) if names else (top, top / "unified"):
            place = mount / own.strip("/")
            yield place
            while place != mount:
                place = place.parent
                yield place


def _file_pages(path: Path) -> int:
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
