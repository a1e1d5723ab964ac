"""When a sandbox may be created: a rate, and a number alive at once.

Guarantees: in any window of w seconds at most ``burst + rate_per_s * w`` creations are admitted; never more than
``max_live`` keys are admitted at once (adopted ones count, and may exceed it after a restart with a smaller limit); both
waits are first come, first served; a cancelled wait takes nothing. Left to others: creating anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import anyio

_ROUNDING = 1e-9


class TokenBucket:
    """``burst`` tokens at first, ``rate_per_s`` more a second, never above ``burst``; each creation takes one."""

    def __init__(self, rate_per_s: float, burst: int, monotonic: Callable[[], float] = anyio.current_time) -> None:
        if rate_per_s <= 0 or burst < 1:
            raise ValueError(f"rate_per_s = {rate_per_s}, burst = {burst}: both must be positive")
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._monotonic = monotonic
        self._tokens = float(burst)
        self._counted_s: float | None = None
        self._turn = anyio.Lock()

    async def acquire(self) -> float:
        """Take a token, waiting in line for it. Returns the seconds waited."""
        asked_s = self._monotonic()
        async with self._turn:
            while (missing := 1.0 - self._count()) > _ROUNDING:  # noqa: ASYNC110 - time is what is waited for
                await anyio.sleep(missing / self._rate_per_s)
            self._tokens -= 1.0
        return self._monotonic() - asked_s

    def _count(self) -> float:
        now_s = self._monotonic()
        if self._counted_s is not None:
            self._tokens = min(self._burst, self._tokens + (now_s - self._counted_s) * self._rate_per_s)
        self._counted_s = now_s
        return self._tokens


@dataclass(frozen=True)
class Admitted:
    """How long a creation waited: for a slot first, then for a token, so that no token is spent on waiting."""

    token_wait_s: float
    slot_wait_s: float


class Admission:
    """Slots and tokens. A key holds its slot from ``admit`` or ``adopt`` until ``release``."""

    def __init__(self, bucket: TokenBucket, max_live: int, monotonic: Callable[[], float] = anyio.current_time) -> None:
        if max_live < 1:
            raise ValueError(f"max_live = {max_live}: must be at least 1")
        self._bucket = bucket
        self._max_live = max_live
        self._monotonic = monotonic
        self._live: set[str] = set()
        self._line: deque[tuple[str, anyio.Event]] = deque()

    @property
    def live(self) -> frozenset[str]:
        return frozenset(self._live)

    @property
    def waiting(self) -> int:
        return len(self._line)

    async def admit(self, key: str) -> Admitted:
        """Wait for a slot and a token. A key that holds a slot already is let through at once."""
        if key in self._live:
            return Admitted(0.0, 0.0)
        asked_s = self._monotonic()
        granted = anyio.Event()
        self._line.append((key, granted))
        self._grant()
        finished = False
        try:
            await granted.wait()
            slot_wait_s = self._monotonic() - asked_s
            token_wait_s = await self._bucket.acquire()
            finished = True
        finally:
            if not finished:
                self._line = deque(waiter for waiter in self._line if waiter[1] is not granted)
                if granted.is_set():
                    self.release(key)
        return Admitted(token_wait_s, slot_wait_s)

    def adopt(self, key: str) -> None:
        """A sandbox that lives already, found after a restart, takes a slot without waiting."""
        self._live.add(key)

    def release(self, key: str) -> None:
        """Idempotent."""
        self._live.discard(key)
        self._grant()

    def _grant(self) -> None:
        while self._line and len(self._live) < self._max_live:
            key, granted = self._line.popleft()
            self._live.add(key)
            granted.set()
