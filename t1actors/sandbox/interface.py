"""What a sandbox is to the rest of the system: values that go in and out, and the protocol a backend keeps.

A sandbox is one trial's machine: a root file system of its own, one persistent shell, limits, and a lease. Every call
is idempotent by key, so a caller that died and came back asks again and gets the same answer. Backends are written on
anyio and run under trio and asyncio alike.

Left to others: when sandboxes may be created (``admission``), what a command's output means (``harness``), and grading
(``verify``, which uses this same protocol).
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from t1actors.config import REFUSED_ADDRESSES
from t1actors.events import Isolation, OutputChunk
from t1actors.sandbox.wire import HOST, NO_NETWORK

NetworkName = Literal["none", "internet"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """``output_bytes`` is what one command may return; ``command_s`` caps every command's own ``limit_s``."""

    memory_mb: int = 256
    disk_mb: int = 64
    processes: int = 64
    output_bytes: int = 65_536
    command_s: float = 3600.0


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A canonical archive (``t1actors.sandbox.archive``) laid out at the absolute directory ``at``.

    A writable layer becomes part of what the sandbox writes: it is owned by the sandbox's root and is in the sealed
    archive. A read-only layer is a mount that nothing inside can change (nosuid, nodev) and is in no sealed archive; with
    ``over_base`` it shows what the base has there too, as far as the archive does not replace or delete it (an archive of
    no bytes changes nothing). Layers apply in order, later over earlier.
    """

    archive: bytes
    at: str
    read_only: bool = False
    over_base: bool = False


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to create. ``base`` names the root file system: ``host`` is the allow-list from the host's /usr, anything else the
    digest of an image that the backend's ``BaseImages`` know; its variables come before ``env``.

    ``network``: ``none`` is its own loopback device; ``internet`` also a way out, over IPv4, to what this host can reach, but
    for the ``refused_addresses``: blocks such as ``10.0.0.0/8``, and ``host`` for the host's own. Nothing reaches in."""

    key: str
    workdir: str = "/app"
    env: tuple[tuple[str, str], ...] = ()
    limits: Limits = Limits()
    lease_s: float = 120.0
    layers: tuple[Layer, ...] = ()
    base: str = HOST
    network: NetworkName = NO_NETWORK
    refused_addresses: tuple[str, ...] = REFUSED_ADDRESSES


class Created(msgspec.Struct, frozen=True, kw_only=True):
    """``phases`` are seconds of each part of the creation; ``existed`` is true when the key was alive already."""

    isolation: Isolation
    phases: dict[str, float]
    existed: bool


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One command for the persistent shell. ``key`` makes it idempotent: the same key never runs twice."""

    key: str
    command: str
    limit_s: float


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one command did.

    ``output`` holds the raw timed pieces; ``text`` is their whole with the shell's own "file: line N: " prefixes taken
    off, so that an observation is a function of the commands. ``truncated_bytes`` were written beyond the cap and
    dropped. ``exit_code`` is 124 after the time limit, 128 + n for a shell killed by signal n. ``shell_restarted``: the
    shell's state (variables, functions, directory) was lost, by this command or before it. ``limit_hit`` names the
    limits that bit, comma-separated: ``time``, ``memory``, ``processes``, ``disk``, ``output``.
    """

    output: tuple[OutputChunk, ...]
    text: str
    exit_code: int
    seconds: float
    truncated_bytes: int = 0
    timed_out: bool = False
    shell_restarted: bool = False
    limit_hit: str = ""


LeftoverKind = Literal["process", "mount", "control group", "container", "directory"]


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """Something of a sandbox that nobody owns: no call can reach it, and no lease ends it. ``trouble``: why it could not be
    removed."""

    kind: LeftoverKind
    name: str
    trouble: str = ""


class BaseImage(msgspec.Struct, frozen=True, kw_only=True):
    """A root file system by digest, ready to be mounted. ``layers`` are directories, the uppermost first; with ``on_host``
    they lie on the host's allow-list instead of on nothing. ``holds`` are paths to share a lock on while it is used."""

    digest: str
    layers: tuple[str, ...]
    on_host: bool = False
    env: tuple[tuple[str, str], ...] = ()
    holds: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What ``Isolation`` must say of it."""


class BaseImages(Protocol):
    """Where a backend finds the images that specs name (``images.store``)."""

    def base_image(self, digest: str) -> BaseImage:
        """Raises ``SandboxRefused`` for one that is not there."""
        ...


class SandboxBackend(Protocol):
    """Makes and drives sandboxes. ``sandbox`` is always the ``key`` of the spec that created it.

    Every call but ``create`` and ``list`` raises ``SandboxGone`` when nothing lives under that key (``kill`` returns).
    """

    async def create(self, spec: SandboxSpec) -> Created:
        """Idempotent by ``spec.key``. Cancelled, it leaves nothing behind. Raises ``SandboxUnavailable``."""
        ...

    async def run(self, sandbox: str, request: RunRequest) -> RunResult:
        """Idempotent by ``request.key``: an unknown key starts the command, a running one is waited for, a finished one
        is answered from store. Cancelled, the command goes on within its limit. Raises ``SandboxDied``."""
        ...

    async def read_file(self, sandbox: str, path: str, *, max_bytes: int) -> bytes | None:
        """A regular file's bytes, read from outside without following any link; None when there is no such file, a link
        is on the way, it is not a regular file, or it is larger than ``max_bytes``."""
        ...

    async def seal(self, sandbox: str, *, paths: tuple[str, ...] = ("/",)) -> bytes:
        """Kill every process inside, then return the canonical archive, rooted at /, of what was written under
        ``paths``. Idempotent: the tree is frozen from then on."""
        ...

    async def kill(self, sandbox: str) -> None:
        """Idempotent. Nothing is left: no process, mount, control group or directory."""
        ...

    async def list(self) -> list[str]:
        """The keys of what lives, sorted: how a restarted caller finds its sandboxes again."""
        ...

    async def reap(self, *, dry_run: bool = False) -> list[Leftover]:
        """Find by name what is left of sandboxes of this backend (and of no other) that nobody owns any more, and remove it.
        Touches none that lives: those are found by ``list``, or end with their leases. ``dry_run``: only find."""
        ...

    async def renew(self, sandbox: str) -> None:
        """Start the lease anew. Every other call does so too, and an open call holds it."""
        ...
