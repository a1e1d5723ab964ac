"""What many live sandboxes take of the machine's memory: proportional set sizes of every process that is there for them.

Counted: the fork server, the shims and attendants, and all that runs inside, found by name as the reaper does and by their
parents; of containers also the runtime's process beside each. Not counted: this process, the daemon, the kernel's own, and
what was written to a sandbox's file system, which a limit of its own bounds.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path

import trio

from t1actors.sandbox.backend import ShimBackend
from t1actors.sandbox.interface import RunRequest, SandboxSpec

KINDS = {
    "t1-forkserver": "fork server",
    "t1-shim": "shims",
    "t1-init": "first processes",
    "t1-attendant": "attendants",
    "bash": "shells",
}
KIB = 1024
MB = 1_000_000


def live_memory(backend: ShimBackend, count: int) -> Counter[str]:
    """Bytes by kind of process, of ``count`` sandboxes that live at once and have each run a command."""

    async def main() -> Counter[str]:
        async with backend.running():
            try:
                for number in range(count):
                    await backend.create(SandboxSpec(key=f"m{number}"))
                    await backend.run(f"m{number}", RunRequest(key="1", command=": > here", limit_s=60))
                return memory_of(backend.root)
            finally:
                for number in range(count):
                    await backend.kill(f"m{number}")

    return trio.run(main)


def memory_of(root: Path) -> Counter[str]:
    """Bytes by kind of process, of all sandboxes of the directory ``root``."""
    found: Counter[str] = Counter()
    for pid in processes_of(root):
        with suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            found[KINDS.get(name, name)] += pss_bytes(pid)
    return found


def processes_of(root: Path) -> set[int]:
    """Those of a directory of sandboxes, with the fork server that is at work there."""
    directory = os.path.realpath(root)
    children: defaultdict[int, list[int]] = defaultdict(list)
    spaces: dict[int, str] = {}
    found: list[int] = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError):
            name, rest = Path(f"/proc/{pid}/stat").read_text().split(" (", 1)[1].rsplit(") ", 1)
            children[int(rest.split()[1])].append(pid)
            spaces[pid] = os.readlink(f"/proc/{pid}/ns/pid")
            is_shim = name == "t1-shim" and os.readlink(f"/proc/{pid}/fd/1").startswith(f"{directory}/")
            if is_shim or (name == "t1-forkserver" and os.readlink(f"/proc/{pid}/cwd") == directory):
                found.append(pid)
    family: set[int] = set()
    while found:
        pid = found.pop()
        if pid not in family:
            family.add(pid)
            found += children[pid]
    # A container's first process has another parent, which is there for it alone.
    inside = {spaces[pid] for pid in family if pid in spaces} - {os.readlink("/proc/self/ns/pid")}
    for parent, pids in list(children.items()):
        first = [pid for pid in pids if spaces.get(pid) in inside and pid not in family]
        family.update(first)
        if first and spaces.get(parent) not in inside:
            family.add(parent)
    return family


def pss_bytes(pid: int) -> int:
    """Its share of the pages that it has in memory; swapped ones too. Raises ``OSError`` for one that has ended."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Pss:", "SwapPss:")):
            total += int(line.split()[1]) * KIB
    return total
