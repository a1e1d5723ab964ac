"""An endpoint that listens: the application on hypercorn, under trio or asyncio, for as long as a block is open.

    async with engine.running(), serve(engine, renderer, FileJournal(place), geometry=..., settings=...) as endpoint:
        client = openai.AsyncOpenAI(base_url=endpoint.session_url("s0"), api_key="none")

Guarantees: inside the block connections are accepted at ``base_url`` and the sessions that the journal knows are there;
leaving it takes no new calls, gives those at work ``graceful_s`` and then abandons them; nothing is committed behind it.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import anyio
import hypercorn.asyncio
import hypercorn.trio
import sniffio
from anyio import to_thread
from hypercorn.config import Config
from starlette.types import ASGIApp

from t1actors.engine.interface import Engine
from t1actors.harness.endpoint.core import EndpointCore, Trajectory
from t1actors.harness.endpoint.http import application
from t1actors.harness.endpoint.journal import Journal
from t1actors.harness.endpoint.settings import Settings
from t1actors.nursery import task_group
from t1actors.tito.record import Geometry
from t1actors.tito.render.interface import Renderer

IDLE_CONNECTION_S = 300.0
"""How long a connection may lie idle: harnesses run tools between two calls, and a call that meets a closing one fails."""


@dataclass(frozen=True)
class Endpoint:
    """A listening endpoint. ``core`` is the same without HTTP, for who drives it from within."""

    base_url: str
    core: EndpointCore

    def session_url(self, name: str) -> str:
        """What a client takes for its base URL, so that all its calls are of session ``name``."""
        return f"{self.base_url}/sessions/{name}/v1"

    def trajectories(self, sessions: Iterable[str] | None = None) -> list[Trajectory]:
        """As ``EndpointCore.trajectories``."""
        return self.core.trajectories(sessions)

    async def forget(self, sessions: Iterable[str]) -> None:
        """As ``EndpointCore.forget``."""
        await self.core.forget(sessions)


@asynccontextmanager
async def serve(
    engine: Engine,
    renderer: Renderer,
    journal: Journal,
    *,
    geometry: Geometry,
    settings: Settings,
    model: str = "t1",
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    graceful_s: float = 5.0,
) -> AsyncGenerator[Endpoint]:
    """Serve calls for the block. ``engine`` must be running. ``port`` 0: any that is free.

    Raises:
        ValueError: a host that others can reach, and no token.
        LogError, BlobError: the journal cannot be read or is held by another process.
        OSError: the port is taken.
    """
    if token is None and not _is_loopback(host):
        raise ValueError(f"host {host} can be reached from elsewhere: give a token, or use 127.0.0.1")
    async with journal.running():
        core = EndpointCore(engine, renderer, journal, geometry=geometry, settings=settings)
        await to_thread.run_sync(core.restore)
        app = application(core, model=model, token=token)
        async with listening(app, host=host, port=port, graceful_s=graceful_s) as base_url:
            yield Endpoint(base_url, core)


@asynccontextmanager
async def listening(
    app: ASGIApp, *, host: str = "127.0.0.1", port: int = 0, graceful_s: float = 5.0
) -> AsyncGenerator[str]:
    """Serve ``app`` for the block, whose URL is yielded. Raises ``OSError``: the port is taken."""
    taken = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024)
    port = taken.getsockname()[1]
    config = Config()
    config.bind = [f"fd://{taken.detach()}"]  # hypercorn's from here on
    config.errorlog = logging.getLogger(__name__)
    config.keep_alive_timeout = IDLE_CONNECTION_S
    config.graceful_timeout = graceful_s
    config.include_server_header = False
    stop = anyio.Event()
    run = hypercorn.trio.serve if sniffio.current_async_library() == "trio" else hypercorn.asyncio.serve
    async with task_group() as tasks:

        async def listen() -> None:
            await run(cast("Any", app), config, shutdown_trigger=stop.wait)

        tasks.start_soon(listen)
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
        finally:
            stop.set()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
