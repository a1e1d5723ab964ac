"""What a task asks for of a network: the keys ``network_mode``, ``allowed_hosts`` and the older ``allow_internet``.

A phase's own key stands before the environment's. Where nothing is said a task has no network, unlike in Harbor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from t1actors.tasks.table import Table  # not at run time: a task holds these needs, and tables raise its errors

Asked = Literal["none", "internet", "hosts"]
MODES: dict[str, Asked] = {"no-network": "none", "public": "internet", "allowlist": "hosts"}
KEYS = ("network_mode", "allowed_hosts")


@dataclass(frozen=True)
class NetworkNeeds:
    """``agent``: in its sandbox; ``hosts`` is one that reaches named hosts only. ``verifier``: its own table asks for one."""

    agent: Asked = "none"
    verifier: bool = False


def read_network(environment: Table, agent: Table, verifier: Table) -> NetworkNeeds:
    """Raises ``TaskError``."""
    old = environment.boolean("allow_internet")
    of_environment, of_agent, of_verifier = map(_asked, (environment, agent, verifier))
    asked = of_agent or of_environment or ("internet" if old else "none")
    return NetworkNeeds(asked, of_verifier not in (None, "none"))


def _asked(table: Table) -> Asked | None:
    """None where nothing is said."""
    mode = table.string("network_mode")
    hosts = table.strings("allowed_hosts")
    if mode is not None and mode not in MODES:
        raise table.wrong("network_mode", mode, f"one of {', '.join(MODES)}")
    if hosts and mode != "allowlist":
        raise table.wrong("allowed_hosts", list(hosts), 'network_mode = "allowlist" beside it')
    return None if mode is None else MODES[mode]
