"""How a blocking call to a journal's writer is made from an event loop: an append, or the keeping of a snapshot.

In a worker thread, where it waits for a disk; inline, where it never does, or where time is virtual. A simulation has its
own: waits before and after that cost virtual time, and deaths in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


class Appending(Protocol):
    """Calls what it is given, once, and returns its result when that has returned. One append and one snapshot at a time."""

    async def __call__(self, call: Callable[[], T], /) -> T: ...


def in_thread() -> Appending:
    """In a worker thread that nobody else can keep busy: the default limiter may be full of effects that block, and a commit
    must not wait for them."""
    limiter: anyio.CapacityLimiter | None = None

    async def appending(call: Callable[[], T], /) -> T:
        nonlocal limiter
        limiter = limiter or anyio.CapacityLimiter(2)
        return await anyio.to_thread.run_sync(call, limiter=limiter)

    return appending


async def inline(call: Callable[[], T], /) -> T:
    """At once."""
    return call()
