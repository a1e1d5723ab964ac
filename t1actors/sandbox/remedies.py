"""What a person can do where this host makes no sandboxes of namespaces: one sentence, by what the kernel forbids.

Nothing here is tried; ``probe`` and ``shim.abilities`` say which step fails.
"""

from __future__ import annotations

from pathlib import Path

AS_ROOT = (
    "Run as root of the host or in a privileged container (Docker: --privileged), on a kernel that allows namespaces; "
    "`t1 doctor` tries it again"
)
_SWITCHES = (
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("user/max_user_namespaces", "0", "15000"),
)
"""What keeps ordinary users from user namespaces: the setting, its value that does, and one that does not."""


def fix_of_namespaces(*, privileged: bool, settings: Path = Path("/proc/sys")) -> str:
    """For root of the host (``privileged``), or for an ordinary user."""
    if privileged:
        return AS_ROOT
    for name, forbids, allows in _SWITCHES:
        try:
            value = (settings / name).read_text().strip()
        except OSError:  # a kernel without that setting does not forbid it
            continue
        if value == forbids:
            setting = name.replace("/", ".")
            return f"An ordinary user needs user namespaces: `sysctl -w {setting}={allows}` (as root of the host). {AS_ROOT}"
    return f"An ordinary user needs user namespaces and Linux 6.6, outside of other containers. {AS_ROOT}"
