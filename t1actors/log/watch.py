"""Waiting on a descriptor that becomes readable when there is news, with a timeout as the slow poll.

Guarantees: news between two waits is not lost (the descriptor stays readable until ``wait`` drains it); works under
trio and asyncio; a cancelled wait loses nothing.
"""

from __future__ import annotations

import os

import anyio


class DescriptorWatch:
    """A ``Watch`` without the journals: waits on ``descriptor``, which it owns."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def wait(self, timeout_s: float) -> None:
        """As ``Watch.wait``."""
        with anyio.move_on_after(timeout_s):
            await anyio.wait_readable(self._descriptor)
        self._drain()

    def _drain(self) -> None:
        try:
            os.read(self._descriptor, 65_536)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close the descriptor. Call it once."""
        os.close(self._descriptor)
