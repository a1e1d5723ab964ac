"""Whether this host can make sandboxes, found out by making one: the whole way, from create to nothing left.

Looking at single settings misleads (a kernel may allow each namespace and refuse the mount of /proc), so the report comes
from a real sandbox. Used by ``t1 doctor`` and, before a run starts, to refuse with a reason instead of failing later.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio

from t1actors.events import Isolation
from t1actors.sandbox.archive import archive_of_files, find_file
from t1actors.sandbox.backend import NamespaceBackend, ShimBackend
from t1actors.sandbox.errors import SandboxError, SandboxUnavailable
from t1actors.sandbox.interface import Layer, Limits, RunRequest, SandboxSpec

_KEY = "probe"
_LIMITS_KEY = "limits"
_NETWORK_KEY = "network"
_LIMIT_S = 20.0


@dataclass(frozen=True)
class ProbeCheck:
    """``fix`` is what a person can do when it is not ``ok``."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class ProbeReport:
    """``works``: sandboxes can be made; a check that is not ok may still stand beside it, as a weaker guarantee."""

    works: bool
    seconds: float
    isolation: Isolation | None
    checks: tuple[ProbeCheck, ...]


async def probe(
    directory: Path | None = None,
    *,
    thorough: bool = False,
    make: Callable[[Path], ShimBackend] = lambda root: NamespaceBackend(root, name="probe"),
) -> ProbeReport:
    """Create, use, seal and kill one sandbox in a temporary directory (under ``directory`` if given).

    Args:
        directory: where to make the temporary directory.
        thorough: run into each limit of a second sandbox, and give a third one a network, too.
        make: the backend, given the directory of its sandboxes.

    Raises:
        OSError: there is no directory for it.
    """
    started_s = anyio.current_time()
    checks: list[ProbeCheck] = []
    isolation: Isolation | None = None
    with tempfile.TemporaryDirectory(prefix="t1-probe-", dir=directory) as root:
        backend = make(Path(root) / "sandboxes")
        try:
            async with backend.running():
                isolation = await _whole_life(backend, checks)
                if thorough and checks[-1].ok:
                    await _run_into_limits(backend, checks)
                    await _try_a_network(backend, checks)
            left = os.listdir(backend.root)
            checks.append(ProbeCheck("kill", not left, "nothing left" if not left else f"left: {', '.join(left)}"))
        except SandboxUnavailable as error:
            checks.append(ProbeCheck(error.step, False, error.reason, error.fix))
        except SandboxError as error:
            checks.append(ProbeCheck("sandbox", False, str(error), "look at the message; it names the step"))
    needed = {"create", "shell", "seal", "kill"}
    works = needed <= {check.name for check in checks if check.ok}
    return ProbeReport(works, anyio.current_time() - started_s, isolation, tuple(checks))


async def _whole_life(backend: ShimBackend, checks: list[ProbeCheck]) -> Isolation:
    spec = SandboxSpec(
        key=_KEY,
        limits=Limits(memory_mb=256, disk_mb=16, processes=32),
        lease_s=60.0,
        layers=(Layer(archive=archive_of_files({"given": b"given"}), at="/app"),),
    )
    created = await backend.create(spec)
    isolation = created.isolation
    phases = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in created.phases.items())
    checks.append(ProbeCheck("create", True, f"{phases}; user ids {isolation.uid_map}"))
    for limit in isolation.limits:
        weak = limit.endswith((" watchdog", " rlimit"))
        fix = _WEAK.get(limit.partition("=")[0], _GROUPS) if weak else ""
        checks.append(ProbeCheck(f"limit {limit.partition('=')[0]}", not weak, limit, fix))
    command = "cat given && echo written >made && id -u"
    result = await backend.run(_KEY, RunRequest(key="1", command=command, limit_s=_LIMIT_S))
    checks.append(ProbeCheck("shell", result.text == "given0\n", f"answered {result.text!r}"))
    result = await backend.run(_KEY, RunRequest(key="2", command="python3 -I -S -VV", limit_s=_LIMIT_S))
    found = result.exit_code == 0
    fix = (
        "" if found else "install python3 under /usr: tasks are graded with it (one in a home directory can't be seen)"
    )
    checks.append(ProbeCheck("python3 in the sandbox", found, result.text.strip(), fix))
    archive = await backend.seal(_KEY)
    checks.append(ProbeCheck("seal", find_file(archive, "/app/made") == b"written\n", f"{len(archive):,} bytes"))
    await backend.kill(_KEY)
    return isolation


async def _run_into_limits(backend: ShimBackend, checks: list[ProbeCheck]) -> None:
    """What is written down as a limit must also bite."""
    limits = Limits(memory_mb=32, disk_mb=2, processes=8, output_bytes=1000)
    await backend.create(SandboxSpec(key=_LIMITS_KEY, limits=limits, lease_s=60.0))
    not_held: list[str] = []
    for number, (name, command, limit_s) in enumerate(_TOO_MUCH):
        request = RunRequest(key=str(number), command=command, limit_s=limit_s)
        result = await backend.run(_LIMITS_KEY, request)
        if name not in result.limit_hit.split(",") and _REFUSALS.get(name, "never said") not in result.text:
            not_held.append(name)
    await backend.kill(_LIMITS_KEY)
    found = (
        f"not held: {', '.join(not_held)}" if not_held else f"{', '.join(name for name, _, _ in _TOO_MUCH)}: all held"
    )
    fix = "a trial could take more than its share; report this with the lines above" if not_held else ""
    checks.append(ProbeCheck("limits tried", not not_held, found, fix))


async def _try_a_network(backend: ShimBackend, checks: list[ProbeCheck]) -> None:
    """Only its making: nothing is sent anywhere."""
    try:
        made = await backend.create(SandboxSpec(key=_NETWORK_KEY, network="internet", lease_s=60.0))
        result = await backend.run(_NETWORK_KEY, RunRequest(key="1", command="cat /proc/net/route", limit_s=_LIMIT_S))
        await backend.kill(_NETWORK_KEY)
    except SandboxUnavailable as error:
        fix = f"{error.fix}. Only tasks and builds that ask for a network need it"
        checks.append(ProbeCheck("network", False, f"{error.step}: {error.reason}", fix))
    else:
        works = "tap0\t00000000" in result.text
        fix = "" if works else "slirp4netns gave no default route: report this with its version"
        checks.append(ProbeCheck("network", works, made.isolation.network, fix))


_GROUPS = "have the memory and pids control groups writable (an ordinary user: delegated) for hard limits"
_WEAK = {"disk": "Docker has no disk limit here: what is beyond it ends the processes, a quarter of a second late"}
_REFUSALS = {"disk": "No space left", "processes": "temporarily unavailable"}
"""What a program says whom a limit stops that counts nothing, or is no longer hit when the command is over."""
_TOO_MUCH = (
    ("output", "head -c 5000 /dev/zero | tr '\\0' x", _LIMIT_S),
    # What tail holds of a pipe is memory; it waits for more, so that a watchdog that looks only now and then sees it.
    ("memory", "tail -c 200M < <(head -c 200M /dev/zero; sleep 3) >/dev/null", 2.0),
    # bash tries again for seconds when it may not start a process; the time limit ends that.
    ("processes", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 9 & done", 0.3),
    # Last, for a disk that is only watched stays full.
    ("disk", "head -c 8M /dev/zero >/app/big || exit; sleep 5", _LIMIT_S),
)
"""Name of the limit, what goes beyond it, and for how long that may try."""
