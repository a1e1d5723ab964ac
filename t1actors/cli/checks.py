"""What a machine must be able to do: looked at before a run starts, and by `t1 doctor`. No torch is imported.

The checks themselves are in ``checks_machine`` (processor, memory, limits), ``checks_python`` (packages, engines) and
``checks_place`` (where runs are kept); here is what they are made of, and those of the sandbox.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from t1actors.config import SandboxConfig
from t1actors.sandbox.choice import make_backend
from t1actors.sandbox.probe import probe
from t1actors.sandbox.remedies import fix_of_namespaces
from t1actors.sandbox.shim import abilities
from t1actors.sandbox.shim.users import is_root_of_the_host

Verdict = Literal["good", "warning", "bad", "absent"]
"""``bad``: no run can start. ``absent``: an optional part that is not here."""
ABILITIES_DEADLINE_S = 20.0


@dataclass(frozen=True)
class Check:
    """``fix`` is what a person can do about it; empty when all is well."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""
    group: str = ""

    @property
    def text(self) -> str:
        return f"{self.name}: {self.found}" + (f". {self.fix}" if self.fix else "")


def grouped(group: str, checks: list[Check]) -> list[Check]:
    """The same checks, shown under ``group``."""
    return [replace(check, group=group) for check in checks]


def machine_checks(directory: Path) -> list[Check]:
    """Python, processor, memory, limits, and the place where ``directory`` is or would be."""
    from t1actors.cli.checks_machine import of_this_machine
    from t1actors.cli.checks_place import of_the_place
    from t1actors.cli.checks_python import of_python

    return [
        *grouped("Python", of_python()),
        *grouped("machine", of_this_machine()),
        *grouped("where runs are kept", of_the_place(directory)),
    ]


async def sandbox_checks(
    directory: Path | None = None, *, thorough: bool = False, settings: SandboxConfig | None = None
) -> list[Check]:
    """Makes one whole sandbox with the backend of ``settings`` (None: namespaces), in a temporary directory (under
    ``directory``), and says what works. ``thorough``: also runs into each of its limits."""
    settings = settings or SandboxConfig()
    group = "sandbox" if settings.backend == "namespaces" else f"sandbox ({settings.backend})"
    try:
        report = await probe(directory, thorough=thorough, make=lambda root: make_backend(settings, root, name="probe"))
    except OSError as error:
        found = f"no directory for one: {error.strerror or error}"
        return grouped(group, [Check("sandbox", "bad", found, "set TMPDIR to a directory that can be written")])
    verdicts: dict[bool, Verdict] = {True: "warning", False: "bad"}
    found = [Check(c.name, "good" if c.ok else verdicts[report.works], c.detail, c.fix) for c in report.checks]
    return grouped(group, found)


def ability_checks() -> list[Check]:
    """What a sandbox is made of, part by part: says which one is missing where a whole sandbox fails."""
    command = [sys.executable, "-I", "-S", abilities.__file__]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ABILITIES_DEADLINE_S, check=False)
        parts: list[tuple[str, bool, str]] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return grouped("sandbox", [Check("parts", "warning", f"could not be looked at: {error}")])
    found: list[Check] = []
    for name, works, what in parts:
        verdict: Verdict = "good" if works else "warning" if name in _WEAKER else "bad"
        found.append(Check(name, verdict, what, "" if works else _fix(name, what)))
    return grouped("sandbox", found)


_WEAKER = {
    "hard limits": "have the memory and pids control groups writable (a user: delegated); without, limits are only watched",
    "separate users": "apt-get install uidmap, and more ids for the user in /etc/subuid and /etc/subgid; or run as root",
}
"""What sandboxes can do without, and what it takes."""


def _fix(name: str, found: str) -> str:
    if name in _WEAKER:
        return _WEAKER[name]
    if name == "bash":
        return "install bash under /usr/bin"
    if not is_root_of_the_host():
        return fix_of_namespaces(privileged=False)
    if "ENOSPC" in found:
        return "sysctl -w user.max_user_namespaces=15000 on the host (and max_mnt_namespaces, ... where they are 0)"
    if found.startswith("mount overlay"):
        return f"modprobe overlay on the host; else {root_fix()}"
    if found.startswith("unshare user namespace") and "EPERM" in found:
        return f"inside a chroot none can be made: enter it by systemd-nspawn or pivot_root; else {root_fix()}"
    return root_fix()


def root_fix() -> str:
    """What lets sandboxes be made, in the words of what this is running in."""
    if Path("/.dockerenv").exists():
        return "start the container with `docker run --privileged`"
    if Path("/run/.containerenv").exists():
        return "start the container as root with `podman run --privileged`"
    if Path("/var/run/secrets/kubernetes.io").exists():
        return "give the container securityContext.privileged: true"
    return "run as root of the host (sudo), or in a privileged container"


def bad(checks: list[Check]) -> list[Check]:
    """Those that keep a run from working."""
    return [check for check in checks if check.verdict == "bad"]
