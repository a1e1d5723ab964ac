"""The clock that the runtime is given, so that tests and simulations own time.

Guarantees: the runtime reads no other clock. Sleeps and deadlines use the event loop's clock, which ``run_virtual``
replaces by one that jumps to the next deadline whenever every task waits; ``virtual_clock`` reads that same clock.

Left to others: threads and sockets do not advance a virtual clock, so a virtual run uses in-memory logs and flushes
inline.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio

T = TypeVar("T")


@dataclass(frozen=True)
class Clock:
    """``monotonic`` in seconds; ``wall_ns`` since the epoch; ``boot_id`` says which boot the monotonic clock belongs
    to."""

    monotonic: Callable[[], float]
    wall_ns: Callable[[], int]
    boot_id: str

    def mono_ns(self) -> int:
        """The monotonic clock in nanoseconds."""
        return int(self.monotonic() * 1e9)


def system_clock() -> Clock:
    """The machine's clocks."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return Clock(time.monotonic, time.time_ns, boot.read_text().strip() if boot.exists() else "")


def virtual_clock(*, start_wall_ns: int = 1_700_000_000_000_000_000) -> Clock:
    """Reads the running event loop's clock, as if the world had begun at ``start_wall_ns``."""
    return Clock(anyio.current_time, lambda: start_wall_ns + int(anyio.current_time() * 1e9), "virtual")


def run_virtual(main: Callable[[], Awaitable[T]]) -> T:
    """Runs ``main`` on trio where waiting costs nothing: the clock jumps when all tasks wait."""
    from trio.testing import MockClock

    return anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
