"""One life of one simulated process: what it holds goes dead with it.

A kill -9 is not a cancellation: ``finally`` blocks of the dead may still run here, since they are tasks of this process, but
nothing that they do reaches the world any more. Everything the world offers asks ``gate`` or ``spend`` first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio


class Dead(BaseException):
    """Raised in a dead process's code. Not an ``Exception``: nobody may handle it."""


class Incarnation:
    """A process. ``frozen``: stopped (SIGSTOP); ``stuck``: its work hangs in a thread, and it beats on. It stays so
    until it is killed."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.frozen = False
        self.stuck = False
        self._died = anyio.Event()
        self._burials: list[Callable[[], None]] = []

    def __str__(self) -> str:
        return f"{self.name}#{self.number}"

    @property
    def dead(self) -> bool:
        return self._died.is_set()

    def on_death(self, burial: Callable[[], None]) -> None:
        """What the kernel does for it when it is dead."""
        self._burials.append(burial)

    def die(self) -> None:
        """Now. Idempotent."""
        if not self.dead:
            self._died.set()
            for burial in self._burials:
                burial()

    def gate(self) -> None:
        """Before anything that touches the world. Raises ``Dead``."""
        if self.dead:
            raise Dead(str(self))

    async def spend(self, seconds: float) -> None:
        """Let time pass, and as much more as it is frozen. Raises ``Dead``."""
        self.gate()
        with anyio.move_on_after(max(seconds, 1e-6)):
            await self._died.wait()
        while self.frozen and not self.dead:
            await self._died.wait()
        self.gate()

    async def work(self, seconds: float) -> None:
        """As ``spend``, in a thread that may hang. Raises ``Dead``."""
        await self.spend(seconds)
        while self.stuck and not self.dead:
            await self._died.wait()
        self.gate()

    async def or_die(self, wait: Callable[[], Awaitable[object]]) -> None:
        """``wait()``, unless it dies first, however shielded. Raises ``Dead``."""
        async with anyio.create_task_group() as tasks:

            async def until_death() -> None:
                await self._died.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_death)
            await wait()
            tasks.cancel_scope.cancel()
        self.gate()
