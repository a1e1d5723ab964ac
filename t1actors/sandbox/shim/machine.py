"""What a shim drives: one sandbox's processes and files, whatever holds them (namespaces of our own, a Docker container).

A ``Machine`` makes and ends one sandbox; a ``Kind`` is what a fork server knows of all of them. Both say the same of every
backend, so that the shim, the shell protocol, leases and results are written once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from t1actors.sandbox.archive import OPAQUE_ATTRIBUTE
from t1actors.sandbox.shim.shell import Shell
from t1actors.sandbox.wire import Create, Made

REPORT_BYTES = 4096
"""The most that is read at once of what the process at ``reports_fd`` says."""


class Built(NamedTuple):
    """A sandbox that is ready, with the pipes to the process that starts and kills shells (``shim.init`` has the lines).

    ``first_uid`` is what the sandbox's root is outside. ``exceeded`` names the limit that only looking finds to be exceeded
    (memory, disk), or is empty; None where none has to be looked at. ``network_fd`` is readable when the network has ended;
    None where there is none. ``opaque_attribute`` marks opaque directories in what was written.
    """

    made: Made
    first_uid: int
    shell: Shell
    orders_fd: int
    reports_fd: int
    init_pid: int
    exceeded: Callable[[], str] | None
    network_fd: int | None
    opaque_attribute: str = OPAQUE_ATTRIBUTE


class Machine(Protocol):
    """One sandbox, from nothing to nothing. ``merged`` and ``upper`` are where its whole tree, and what was written of it,
    can be read by this process."""

    @property
    def merged(self) -> str:
        """Holds from the end of ``build`` to ``remove``."""
        ...

    @property
    def upper(self) -> str:
        """Holds from the end of ``build`` to ``remove``; at rest after ``kill_inside``."""
        ...

    def build(self, order: Create, data: bytes) -> Built:
        """Raises ``StepFailed``, ``OSError`` (what the host refused), ``ArchiveError`` (a layer), ``SandboxRefused``."""
        ...

    def kill_inside(self) -> None:
        """Every process inside is dead when this returns."""
        ...

    def remove(self) -> None:
        """Leave nothing behind, however far ``build`` came, and nothing of another sandbox's touched: that has the directory
        now if this one's was deleted (``own_directory``)."""
        ...


class Kind(Protocol):
    """One way of making sandboxes, prepared once by the fork server."""

    root_directory: str

    def machine(self, name: str) -> Machine:
        """The one in the directory ``name``; nothing is made yet."""
        ...

    def clear(self, name: str) -> None:
        """Remove what a dead shim left outside its directory."""
        ...
