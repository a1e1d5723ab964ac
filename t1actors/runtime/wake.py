"""A wake-up that can be used again: ``anyio.Event`` is for one occasion only."""

from __future__ import annotations

import anyio


class Wake:
    """One task waits, any task of the same event loop sets. A ``set`` while nobody waits is kept for the next
    ``wait``."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = anyio.Event()
