"""A token bucket that all pools of a machine share, through restarts and crashes.

The record is the *level*: creations that the rate has not made up for yet, as of the last one. It falls by
``rate_per_s``, and a creation needs room below ``burst`` and adds one. It is written before the creation, so whoever dies
in between has spent a token for nothing.

Guarantees: in any window of w seconds all pools together admit at most ``burst + rate_per_s * w`` creations, whoever is
killed and started again (pools that give different numbers: those of the most generous one). Time that is not known to
have passed counts for nothing: a record that is missing or damaged is written anew, with nothing left in the bucket; one
from before a reboot, or of a clock that is not ours or is ahead of ours, counts as spent, and refills from when this
process first saw it. Hence every wait ends: a record changes only with a creation, and while it stays the same every
process that waits sees its own time pass.

Waiting is first come, first served within a process, and in no order between processes.
"""

from __future__ import annotations

import math
from pathlib import Path

import anyio
import msgspec

from t1actors.sandbox.shared_file import NodeClock, SharedFile, boot_clock

_ROUNDING = 1e-9
_SHORTEST_SLEEP_S = 1e-3


class Mark(msgspec.Struct, frozen=True):
    """``level`` at the time ``at_s`` of ``clock``."""

    level: float
    at_s: float
    clock: str


class SharedTokenBucket:
    """See the module."""

    def __init__(self, path: Path, *, rate_per_s: float, burst: int, clock: NodeClock | None = None) -> None:
        """``path``: the same for all who share it, in a directory that only the pools' user can write to."""
        if not (math.isfinite(rate_per_s) and rate_per_s > 0) or burst < 1:
            raise ValueError(f"rate_per_s = {rate_per_s}, burst = {burst}: both must be positive")
        self._file: SharedFile[Mark] = SharedFile(path, Mark)
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._clock = clock or boot_clock()
        self._seen: tuple[Mark, float] | None = None
        """A mark whose age is not known, and when it was first seen."""
        self._turn = anyio.Lock()

    async def acquire(self) -> float:
        """Take a token, waiting in line for it. Cancelled, it took none. Returns the seconds waited."""
        asked_s = self._clock.now_s()
        async with self._turn:
            while (wait_s := await self._take()) > 0:  # noqa: ASYNC110 - time is what is waited for
                await anyio.sleep(max(wait_s, _SHORTEST_SLEEP_S))
        return self._clock.now_s() - asked_s

    async def _take(self) -> float:
        """0 when a token was there, else the seconds until there can be one."""
        wait_s = 0.0

        def take(mark: Mark | None) -> Mark | None:
            nonlocal wait_s
            now_s = self._clock.now_s()
            if mark is None:
                wait_s = 1 / self._rate_per_s
                return Mark(float(self._burst), now_s, self._clock.name)
            level = self._level(mark, now_s)
            missing = level + 1 - self._burst
            wait_s = missing / self._rate_per_s if missing > _ROUNDING else 0.0
            return Mark(level + 1, now_s, self._clock.name) if wait_s == 0 else None

        await self._file.change(take)
        return wait_s

    def _level(self, mark: Mark, now_s: float) -> float:
        level, since_s = mark.level, mark.at_s
        if mark.clock != self._clock.name or mark.at_s > now_s:
            if self._seen is None or self._seen[0] != mark:
                self._seen = (mark, now_s)
            level, since_s = max(mark.level, float(self._burst)), self._seen[1]
        return max(0.0, level - (now_s - since_s) * self._rate_per_s)
