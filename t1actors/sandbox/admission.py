"""When a sandbox may be created: a rate, and a number alive at once.

Guarantees: in any window of w seconds at most ``burst + rate_per_s * w`` creations are admitted; never more than
``max_live`` keys are admitted at once (adopted ones count, and may exceed it after a restart with a smaller limit); both
waits are first come, first served; a cancelled wait takes nothing. ``TokenBucket`` and ``max_live`` are of one process; what
holds for all pools of a machine, and through restarts, are ``shared_bucket`` and ``node_slots``. Left to others: creating
anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio

from t1actors.sandbox.node_slots import NodeSlots

_ROUNDING = 1e-9


class Bucket(Protocol):
    """Where tokens come from: a ``TokenBucket``, or a ``SharedTokenBucket``."""

    async def acquire(self) -> float:
        """Take a token, waiting in line for it. Cancelled, it took none. Returns the seconds waited."""
        ...


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

    def __init__(
        self,
        bucket: Bucket,
        max_live: int,
        monotonic: Callable[[], float] = anyio.current_time,
        node: NodeSlots | None = None,
    ) -> None:
        """``node``: the slots of the machine, where they are shared with other pools."""
        if max_live < 1:
            raise ValueError(f"max_live = {max_live}: must be at least 1")
        self._bucket = bucket
        self._max_live = max_live
        self._monotonic = monotonic
        self._node = node
        self._live: set[str] = set()
        self._on_node: set[str] = set()
        """Keys that hold one of the machine's slots."""
        self._line: deque[tuple[str, anyio.Event]] = deque()
        self.granted = 0
        """How many have a slot of this pool and wait for what else it takes."""

    @property
    def live(self) -> frozenset[str]:
        return frozenset(self._live)

    @property
    def waiting(self) -> int:
        """How many wait for a slot or a token."""
        return len(self._line) + self.granted

    async def token(self) -> float:
        """A token alone, to create once more what holds a slot. Returns the seconds waited."""
        return await self._bucket.acquire()

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
            if self._node is not None:
                await self._node.take()
                self._on_node.add(key)
            slot_wait_s = self._monotonic() - asked_s
            token_wait_s = await self._bucket.acquire()
            finished = True
        finally:
            if granted.is_set():
                self.granted -= 1
            if not finished:
                self._line = deque(waiter for waiter in self._line if waiter[1] is not granted)
                if granted.is_set():
                    self.release(key)
        return Admitted(token_wait_s, slot_wait_s)

    async def adopt_all(self, keys: Sequence[str]) -> None:
        """Sandboxes that live already, found after a restart, take slots without waiting; there are no others."""
        if self._node is not None:
            await self._node.open()
        for key in keys:
            self.adopt(key)
        if self._node is not None:
            self._node.settle()

    def adopt(self, key: str) -> None:
        """One that lives already."""
        if self._node is not None and key not in self._on_node:
            self._node.adopt()
            self._on_node.add(key)
        self._live.add(key)

    def release(self, key: str) -> None:
        """Idempotent."""
        self._live.discard(key)
        if self._node is not None and key in self._on_node:
            self._on_node.discard(key)
            self._node.give_back()
        self._grant()

    def _grant(self) -> None:
        while self._line and len(self._live) < self._max_live:
            key, granted = self._line.popleft()
            self._live.add(key)
            self.granted += 1
            granted.set()
