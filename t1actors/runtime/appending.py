"""How a blocking append to a journal is called from an event loop.

In a worker thread, where an append waits for a disk; inline, where it never does, or where time is virtual. A simulation
has its own: waits before and after that cost virtual time, and deaths in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
import anyio.to_thread

Appending: TypeAlias = Callable[[Callable[[], int]], Awaitable[int]]
"""Calls what it is given, once, and returns its result when that has returned. One call at a time."""


def in_thread() -> Appending:
    """In a worker thread that nobody else can keep busy: the default limiter may be full of effects that block, and a commit
    must not wait for them."""
    limiter: anyio.CapacityLimiter | None = None

    async def appending(append: Callable[[], int]) -> int:
        nonlocal limiter
        limiter = limiter or anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(append, limiter=limiter)

    return appending


async def inline(append: Callable[[], int]) -> int:
    """At once."""
    return append()
