"""The Docker backend: the shims' protocol, over containers of a daemon on this host.

Calls, results, leases and the shell are those of ``ShimBackend``; here is what the daemon adds. The container's name is the
sandbox's key, so whatever is found there after a crash is told apart: a container whose shim lives is a sandbox, and any
other of this root is removed when the backend reaps, lists, or is asked to kill it.

Needed: root, and a daemon on this host that stores layers by overlay2, for the shims read and write the layers themselves.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from t1actors.sandbox.backend import ShimBackend
from t1actors.sandbox.docker.daemon import socket_path
from t1actors.sandbox.docker.reconcile import FIX_DOCKER, DaemonClient
from t1actors.sandbox.errors import SandboxUnavailable
from t1actors.sandbox.fork_server import ShimKind
from t1actors.sandbox.interface import Leftover
from t1actors.sandbox.wire import name_of

FORK_SERVER = "t1actors.sandbox.docker.forkserver"


class DockerBackend(ShimBackend):
    """See the module. Use inside ``async with backend.running():``."""

    def __init__(self, root: Path, *, name: str, socket: str, image: str, needs_image: bool = True) -> None:
        """
        Args:
            root, name: as in ``ShimBackend``.
            socket: the daemon's, as a path or ``unix:///path``.
            image: what the base ``host`` means here: an image that the daemon has, with bash and, to grade, python3.
            needs_image: False where sandboxes have bases of their own, so that it need not be there.
        """
        kind = ShimKind("docker", FORK_SERVER, (socket_path(socket), image), FIX_DOCKER)
        super().__init__(root, name=name, kind=kind)
        self._image = image if needs_image else ""
        self._daemon = DaemonClient(socket, self.prefix)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[DockerBackend]:
        """Raises ``SandboxUnavailable`` where no sandbox can be made for a reason that is known beforehand."""
        if os.geteuid() != 0:
            reason = f"user {os.geteuid()} is not root"
            raise SandboxUnavailable("starting the fork server", reason, "Run as root of the host")
        async with self._daemon.running():
            await (self._daemon.image_id(self._image) if self._image else self._daemon.version())
            async with super().running():
                yield self

    async def list(self) -> list[str]:
        """The sandboxes that live; every other container of this root is removed."""
        keys = await super().list()
        alive = {name_of(key) for key in keys}
        for name in await self._daemon.names():
            # Asked after the shims: one that made its container meanwhile is not taken for dead.
            if name not in alive and not self._exists(name):
                await self._daemon.remove(name)
        return keys

    async def reap(self, *, dry_run: bool = False) -> list[Leftover]:
        """As ``SandboxBackend``; containers are found by their names, and belong to somebody as long as a shim answers."""
        found = await super().reap(dry_run=dry_run)
        return [*found, *await self._daemon.reap(self.root, dry_run=dry_run)]

    async def kill(self, sandbox: str) -> None:
        """Idempotent. A container whose shim died is removed too."""
        await super().kill(sandbox)
        await self._daemon.remove(self._name_of(sandbox))
