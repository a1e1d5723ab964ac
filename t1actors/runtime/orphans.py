"""Processes that fell to the supervisor when their parents died: sandbox shims of a killed pool, for one.

Guarantees: only children in another session than ours, and none that were there before, count as adopted; what the
embedding program started itself is left alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio

_PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def adopting() -> Generator[None]:
    """Within, orphaned descendants fall to this process, not to init. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class Orphans:
    """Tells this process's own children from those it adopted."""

    def __init__(self) -> None:
        self._ours = set(_children())

    def adopted(self, actors: set[int]) -> list[int]:
        """The adopted processes; ``actors`` are the pids of running actors. Dead ones are reaped here."""
        session = os.getsid(0)
        found: list[int] = []
        for pid in _children():
            if pid in self._ours or pid in actors:
                continue
            try:
                foreign = os.getsid(pid) != session
                if foreign and os.waitpid(pid, os.WNOHANG)[0] == 0:
                    found.append(pid)
            except (ProcessLookupError, ChildProcessError):
                continue
        return found

    async def end(self, *, grace_s: float = 2.0) -> None:
        """Ends all adopted processes and whoever becomes an orphan by that: SIGTERM, then SIGKILL."""
        with anyio.move_on_after(grace_s) as grace:
            await self._signal_until_gone(signal.SIGTERM)
        if grace.cancelled_caught:
            with anyio.move_on_after(grace_s):
                await self._signal_until_gone(signal.SIGKILL)

    async def _signal_until_gone(self, number: signal.Signals) -> None:
        told: set[int] = set()
        while pids := self.adopted(set()):
            for pid in pids:
                if pid not in told:
                    told.add(pid)
                    os.kill(pid, number)
            await anyio.sleep(0.01)


def _children() -> list[int]:
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            found.extend(map(int, path.read_text().split()))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
