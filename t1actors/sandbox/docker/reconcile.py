"""What the Docker daemon has, and the end of what nobody owns: asked through aiodocker, under trio and asyncio alike.

aiodocker is asyncio's, so its calls run on one event loop in a thread of its own, which lives while ``DaemonClient.running``
is open. Guarantees: a container that is removed here belonged to this root by its label; a cancelled caller cancels its call;
a daemon that is away when containers are listed or removed is waited for, for a time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
from anyio import to_thread

from t1actors.sandbox.docker.daemon import AWAY_S, container_name, socket_path
from t1actors.sandbox.docker.recipe import LABEL_NAME, LABEL_ROOT
from t1actors.sandbox.errors import SandboxUnavailable
from t1actors.sandbox.interface import Leftover
from t1actors.sandbox.reaper import answers

T = TypeVar("T")
_PATIENCE_S = 60.0
_LOOK_AGAIN_S = 0.2
_NO_CONNECTION = 900
"""What aiodocker gives as HTTP's status when there was no answer."""
FIX_DOCKER = (
    "Install and start Docker (on Debian: apt-get install docker.io) or set sandbox.docker.socket; `t1 doctor` tries it"
)
_FIX_PACKAGE = "Install it: pip install -e '.[docker]' in the clone"


class DaemonClient:
    """The daemon at ``socket``, for the containers whose names and labels begin with ``prefix``. ``away_s``: how long it is
    waited for."""

    def __init__(self, socket: str, prefix: str, *, away_s: float = AWAY_S) -> None:
        self._away_s = away_s
        self._socket = f"unix://{socket_path(socket)}"
        self._prefix = prefix
        self._loop: asyncio.AbstractEventLoop | None = None
        self._docker: Any = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """The thread and the connection. Raises ``SandboxUnavailable`` without aiodocker or a daemon that answers."""
        try:
            import aiodocker
        except ImportError as error:
            raise SandboxUnavailable("loading aiodocker", str(error), _FIX_PACKAGE) from error
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="docker", daemon=True)
        thread.start()
        try:
            self._docker = await self._call("opening", lambda: _opened(aiodocker.Docker, self._socket))
            yield
        finally:
            with anyio.CancelScope(shield=True):
                if self._docker is not None:
                    await self._call("closing", self._docker.close)
                self._loop.call_soon_threadsafe(self._loop.stop)
                await anyio.to_thread.run_sync(thread.join)
                self._loop.close()
                self._loop = self._docker = None

    async def version(self) -> str:
        """The daemon's own. Raises ``SandboxUnavailable``."""
        return str((await self._call("asking the daemon's version", lambda: self._docker.version()))["Version"])

    async def image_id(self, image: str) -> str:
        """Raises ``SandboxUnavailable`` if the daemon has no such image."""
        step = f"finding the image {image} in the daemon"
        return str((await self._call(step, lambda: self._docker.images.inspect(image)))["Id"])

    async def names(self) -> list[str]:
        """The directories of the sandboxes that this root has containers of, running or not."""
        found = await self._containers()
        return sorted(str(container["Labels"][LABEL_NAME]) for container in found)

    async def remove(self, name: str) -> None:
        """Kill and delete the container of the sandbox in directory ``name``; fine if there is none."""
        container = self._docker.containers.container(container_name(self._prefix, name))
        step = f"removing container {container_name(self._prefix, name)}"
        await self._call(step, lambda: _removed(container), away_s=self._away_s)

    async def reap(self, root: Path, *, dry_run: bool) -> list[Leftover]:
        """The containers whose sandbox in ``root`` does not answer, with what became of them. Raises ``SandboxUnavailable``
        where the daemon cannot be asked at all."""
        found: list[Leftover] = []
        for name in await self.names():
            # Asked after the daemon: a shim listens before it makes its container.
            if await to_thread.run_sync(answers, root / name):
                continue
            trouble = ""
            if not dry_run:
                try:
                    await self.remove(name)
                except SandboxUnavailable as error:
                    trouble = str(error)
            found.append(Leftover(kind="container", name=container_name(self._prefix, name), trouble=trouble))
        return found

    # --- parts ---

    async def _containers(self) -> list[Any]:
        filters = {"label": [f"{LABEL_ROOT}={self._prefix}"]}
        return await self._call(
            "listing containers", lambda: self._docker.containers.list(all=True, filters=filters), away_s=self._away_s
        )

    async def _call(self, step: str, call: Callable[[], Coroutine[Any, Any, T]], *, away_s: float = 0.0) -> T:
        """Run it on the loop's thread; whoever waits is cancelled as its own library does it."""
        import aiodocker
        import aiohttp

        assert self._loop is not None

        async def timed() -> T:
            until_s = time.monotonic() + away_s
            while True:
                try:
                    return await asyncio.wait_for(call(), _PATIENCE_S)
                except (aiodocker.DockerError, aiohttp.ClientConnectionError) as error:
                    answered = isinstance(error, aiodocker.DockerError) and error.status != _NO_CONNECTION
                    if answered or time.monotonic() >= until_s:
                        raise
                await asyncio.sleep(_LOOK_AGAIN_S)

        future = asyncio.run_coroutine_threadsafe(timed(), self._loop)
        try:
            return await anyio.to_thread.run_sync(future.result, abandon_on_cancel=True)
        except (aiodocker.DockerError, aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise SandboxUnavailable(step, f"the Docker daemon at {self._socket}: {error}", FIX_DOCKER) from error
        except concurrent.futures.CancelledError as error:
            raise SandboxUnavailable(step, "the call was given up", FIX_DOCKER) from error
        finally:
            future.cancel()


async def _opened(make: Callable[..., T], url: str) -> T:
    """Made on the loop's own thread, as aiohttp wants it."""
    return make(url=url)


async def _removed(container: Any) -> None:
    import aiodocker

    try:
        await container.delete(force=True, v=True)
    except aiodocker.DockerError as error:
        if error.status not in (404, 409):  # gone, or another's removal is under way
            raise
