"""A wake-up that can be used again: ``anyio.Event`` is for one occasion only."""

from __future__ import annotations

import anyio


class Wake:
    """One task waits, any task of the same event loop sets. A ``set`` while nobody waits is kept for the next
    ``wait``."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        """Wake who waits, or the next one who will."""
        self._event.set()

    async def wait(self) -> None:
        """Return at the next ``set``, or at once after one that nobody saw."""
        await self._event.wait()
        self._event = anyio.Event()
