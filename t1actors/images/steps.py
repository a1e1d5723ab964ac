"""RUN: one instruction of a build in a sandbox of its own, and what it wrote as a layer's tar.

Guarantees: the command sees the stage, its variables and nothing else (a network only where the build allows one); it has
the task's memory, disk and what is left of its time; its sandbox is gone afterwards, however it ended. A command that fails,
or hits a limit, raises ``BuildFailed`` with the end of its output.
"""

from __future__ import annotations

import re
import shlex
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import anyio

from t1actors.config import REFUSED_ADDRESSES
from t1actors.images.errors import BuildFailed
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.errors import ArchiveError, SandboxDied, SandboxRefused
from t1actors.sandbox.interface import BaseImage, Limits, RunRequest, RunResult, SandboxSpec

_PROCESSES = 1024
_OUTPUT_BYTES = 4 << 20
SHOWN_CHARS = 2000
_LEASE_S = 60.0
_KILL_S = 30.0
_STAGE = "stage"
_NO_NETWORK = re.compile(
    r"could not resolve|couldn't resolve|temporary failure|name or service not known|network is unreachable|"
    r"unable to resolve|failed to resolve|bad address|no route to host|getaddrinfo|failed to establish a new connection",
    re.IGNORECASE,
)


_WITHOUT = (
    "it seems to want a network, and this build has none: allow one (sandbox.build_network, or `t1 image build --network`), "
    "or take an image that has what it downloads"
)
_REFUSED = "it seems not to have reached something: private addresses and this host's own are refused (docs/images.md)"


@dataclass(frozen=True)
class BuildLimits:
    """What all RUN instructions together may take in time, and each of them in memory and disk."""

    deadline_s: float = 600.0
    memory_mb: int = 2048
    disk_mb: int = 4096


@dataclass(frozen=True)
class BuildNetwork:
    """Whether commands have a network, and what that one refuses. ``variables`` name proxies: commands see them, and nothing
    depends on them (Docker's predefined arguments)."""

    on: bool = False
    refused_addresses: tuple[str, ...] = REFUSED_ADDRESSES
    variables: tuple[tuple[str, str], ...] = ()


NO_NETWORK = BuildNetwork()


@dataclass(frozen=True)
class Base:
    """What a command runs on: directories of layers, the uppermost first, and where it starts."""

    layers: tuple[str, ...]
    on_host: bool
    workdir: str


class Steps:
    """Runs instructions of one build, whose time starts now. ``place`` is for its sandboxes and tars; ``stack`` ends what is
    opened."""

    def __init__(self, place: Path, limits: BuildLimits, network: BuildNetwork, stack: AsyncExitStack) -> None:
        self._place = place
        self._limits = limits
        self._network = network
        self._stack = stack
        self._deadline_s = anyio.current_time() + limits.deadline_s
        self._stage = _StageAsImage()
        self._backend: NamespaceBackend | None = None

    async def run(self, argv: list[str], base: Base, env: dict[str, str], *, place: str, step: str) -> Path:
        """The tar of what ``argv`` wrote. ``place`` and ``step`` name the instruction in errors.

        Raises:
            BuildFailed: the command failed, or hit a limit.
            SandboxError: no fault of the command.
        """
        backend = await self._running_backend()
        self._stage.now = BaseImage(digest="", layers=base.layers, on_host=base.on_host, holds=base.layers)
        left_s = max(1.0, self._deadline_s - anyio.current_time())
        limits = Limits(
            memory_mb=self._limits.memory_mb + self._limits.disk_mb,  # what a sandbox writes lies in memory
            disk_mb=self._limits.disk_mb,
            processes=_PROCESSES,
            output_bytes=_OUTPUT_BYTES,
            command_s=left_s,
        )
        key = f"step-{uuid.uuid4().hex}"
        spec = SandboxSpec(
            key=key,
            workdir=base.workdir,
            env=(*self._network.variables, *env.items()),
            limits=limits,
            lease_s=_LEASE_S,
            base=_STAGE,
            network="internet" if self._network.on else "none",
            refused_addresses=self._network.refused_addresses,
        )
        file = self._place / f"{key}.tar"
        try:
            await backend.create(spec)
            result = await backend.run(key, RunRequest(key="run", command=shlex.join(argv), limit_s=left_s))
            self._check(result, place, step)
            await backend.commit(key, file, max_bytes=self._limits.disk_mb << 20)
        except (SandboxRefused, ArchiveError) as error:
            raise BuildFailed(f"{place}: {error}", step=step) from error
        except SandboxDied as error:
            if error.cause != "memory":
                raise
            text = f"{place}: ran out of its {self._limits.memory_mb} MB of memory; raise environment.memory_mb in task.toml"
            raise BuildFailed(text, step=step) from error
        finally:
            with anyio.move_on_after(_KILL_S, shield=True):
                await backend.kill(key)
        return file

    async def _running_backend(self) -> NamespaceBackend:
        if self._backend is None:
            backend = NamespaceBackend(self._place / "sandboxes", name="build", images=self._stage)
            await self._stack.enter_async_context(backend.running())
            self._backend = backend
        return self._backend

    def _check(self, result: RunResult, place: str, step: str) -> None:
        hit = set(result.limit_hit.split(",")) - {"", "output"}
        if result.exit_code == 0 and not hit:
            return
        reasons = [f"exit status {result.exit_code}"]
        if result.timed_out:
            reasons = [f"not done within the {self._limits.deadline_s:g} s that environment.build_timeout_sec allows"]
        if "memory" in hit:
            reasons.append(f"hit its limit of {self._limits.memory_mb} MB (environment.memory_mb)")
        if "disk" in hit:
            reasons.append(f"filled its {self._limits.disk_mb} MB (environment.storage_mb)")
        if "processes" in hit:
            reasons.append(f"hit its limit of {_PROCESSES} processes")
        reasons += wants_a_network(result.text, on=self._network.on)
        said = result.text[-SHOWN_CHARS:].rstrip()
        text = f"{place}: {'; '.join(reasons)}"
        raise BuildFailed(f"{text}\n{said}" if said else text, step=step, output=said)


def wants_a_network(output: str, *, on: bool) -> list[str]:
    """A guess at why a command failed that had a network (``on``) or none, as a reason; none where nothing speaks for it."""
    if not _NO_NETWORK.search(output):
        return []
    return [_REFUSED if on else _WITHOUT]


class _StageAsImage:
    """The stage being built, as what a backend asks for its images."""

    def __init__(self) -> None:
        self.now = BaseImage(digest="", layers=())

    def base_image(self, digest: str) -> BaseImage:
        """Raises ``SandboxRefused``."""
        if digest != _STAGE:
            raise SandboxRefused(f"base {digest!r} is not known to a build")
        return self.now
