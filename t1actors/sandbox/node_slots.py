"""How many sandboxes may live at once on a machine, over all pools that share a directory.

Every pool has a file there: a record of how many slots it holds, and a lock that it holds as long as its process lives. A
slot is taken under a lock that all share, after counting everybody's; it is given back without, for that can only make
others see too many.

Guarantees: never more than ``max_live`` slots are taken, by whomever (slots of sandboxes that live already, found after a
restart, may exceed it); the slots of a pool that died count until its sandboxes' leases are over, seen from here, unless
a pool of the same name takes them up again. After a reboot nobody's do. A pool must give its own sandboxes no longer
lease than it says here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import anyio
import msgspec

from t1actors.sandbox.errors import SandboxUnavailable
from t1actors.sandbox.shared_file import NodeClock, SharedFile, boot_clock

LEASE_MARGIN_S = 15.0
"""How long after its lease a sandbox may take to be gone."""
_LOOK_S = 0.1
_TAKEOVER_S = 10.0


class Held(msgspec.Struct, frozen=True):
    """What one pool holds. ``boot`` is the machine's start that this belongs to."""

    slots: int
    lease_s: float
    boot: str


class _Turn(msgspec.Struct, frozen=True):
    """What the shared lock file says: nothing."""


class NodeSlots:
    """One pool's view of the machine's slots. For one event loop."""

    def __init__(
        self, directory: Path, *, owner: str, max_live: int, lease_s: float, clock: NodeClock | None = None
    ) -> None:
        """
        Args:
            directory: the same for all pools that share the slots.
            owner: names this pool; the same after a restart.
            lease_s: the longest lease of this pool's sandboxes.
        """
        if max_live < 1 or lease_s <= 0:
            raise ValueError(f"max_live = {max_live}, lease_s = {lease_s}: must be at least 1, and positive")
        self._directory = directory
        self._owner = owner
        self._max_live = max_live
        self._lease_s = lease_s
        self._clock = clock or boot_clock()
        self._turn = anyio.Lock()
        self._shared: SharedFile[_Turn] = SharedFile(directory / "slots", _Turn)
        self._own = _pool_file(directory / f"pool-{sha256(owner.encode()).hexdigest()[:16]}")
        self._fd = -1
        self._mine = 0
        self._residue = 0
        self._residue_until_s = 0.0
        """Of a pool of this name that died: its sandboxes, until it is known which of them live, and at the longest."""
        self._dead_since: dict[str, float] = {}

    async def open(self) -> None:
        """Take up what a pool of this name left. Raises ``SandboxUnavailable``: another one lives."""
        if self._fd >= 0:
            return
        with anyio.move_on_after(_TAKEOVER_S):
            while (fd := self._own.take()) is None:  # noqa: ASYNC110 - other processes tell nobody
                await anyio.sleep(_LOOK_S)
            self._fd = fd
            left = self._own.read(fd)
            if left is not None and left.boot == self._clock.boot:
                self._residue = left.slots
                self._residue_until_s = self._clock.now_s() + left.lease_s + LEASE_MARGIN_S
            self._write()
        if self._fd < 0:
            raise SandboxUnavailable(
                "taking part in the machine's slots", f"another pool named {self._owner} lives", "End that one first"
            )

    def close(self) -> None:
        """Hold nothing any more; fine if not open. To be called when nothing of the pool lives: else just let it be."""
        if self._fd >= 0:
            os.unlink(self._own.path)
            os.close(self._fd)
            self._fd = -1

    async def take(self) -> None:
        """Wait in line for a slot. Cancelled, it took none. Raises ``SandboxUnavailable``."""
        async with self._turn:
            while not await self._try():  # noqa: ASYNC110 - other processes tell nobody
                await anyio.sleep(_LOOK_S)

    def adopt(self) -> None:
        """A sandbox that lives already has a slot without waiting."""
        self._mine += 1
        self._residue = max(0, self._residue - 1)
        self._write()

    def settle(self) -> None:
        """All that live were adopted: nothing else of an earlier pool of this name is left."""
        self._residue = 0
        self._write()

    def give_back(self) -> None:
        """One slot is free again."""
        self._mine -= 1
        self._write()

    async def _try(self) -> bool:
        await self.open()
        taken = False

        def count(_: _Turn | None) -> _Turn:
            nonlocal taken
            if self._clock.now_s() >= self._residue_until_s:
                self._residue = 0
            if self._others() + self._mine + self._residue < self._max_live:
                self._mine += 1
                self._write()
                taken = True
            return _Turn()

        await self._shared.change(count)
        return taken

    def _others(self) -> int:
        total = 0
        for name in sorted(os.listdir(self._directory)):
            path = self._directory / name
            if name.startswith("pool-") and path != self._own.path:
                total += self._of(path)
        return total

    def _of(self, path: Path) -> int:
        """The slots that another pool's file stands for. One that cannot be read may stand for any number."""
        file = _pool_file(path)
        held_fd = file.take(make=False)  # to be had only when its pool is dead
        try:
            held = _read(path, file.read) if held_fd is None else file.read(held_fd)
            lease_s = held.lease_s if held is not None else self._lease_s
            slots = held.slots if held is not None else self._max_live
            if held_fd is None:
                self._dead_since.pop(path.name, None)
                return slots
            now_s = self._clock.now_s()
            since_s = self._dead_since.setdefault(path.name, now_s)
            over = held is not None and (held.slots == 0 or held.boot != self._clock.boot)
            if over or now_s - since_s > lease_s + LEASE_MARGIN_S:
                os.unlink(path)
                del self._dead_since[path.name]
                return 0
            return slots
        finally:
            if held_fd is not None:
                os.close(held_fd)

    def _write(self) -> None:
        if self._fd >= 0:
            self._own.write(self._fd, Held(self._mine + self._residue, self._lease_s, self._clock.boot))


def _pool_file(path: Path) -> SharedFile[Held]:
    return SharedFile(path, Held)


def _read(path: Path, read: Callable[[int], Held | None]) -> Held | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return Held(0, 0.0, "")
    try:
        return read(fd)
    finally:
        os.close(fd)
