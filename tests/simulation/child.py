"""A simulated process that hosts an actor, as its supervisor holds it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import trio

from t1actors.log.errors import JournalFenced
from t1actors.runtime.errors import EXIT_UNRECOVERABLE, EffectStalled, leaves
from t1actors.runtime.host import host_actor
from t1actors.runtime.moments import Moments
from t1actors.runtime.process import UNRECOVERABLE
from t1actors.runtime.wake import Wake
from tests.simulation.effects import SimBlobs, factory
from tests.simulation.incarnation import Dead, Incarnation
from tests.simulation.log import SimLog, appending

if TYPE_CHECKING:
    from tests.simulation.universe import Universe


class Deadly(Moments):
    """Any moment may be the last."""

    def __init__(self, universe: Universe, incarnation: Incarnation) -> None:
        self._universe = universe
        self._incarnation = incarnation

    def opened(self) -> None:
        self._universe.at_moment(self._incarnation, "opened")

    def recovered(self) -> None:
        self._universe.at_moment(self._incarnation, "recovered")

    def before_act(self, kind: str, key: str) -> None:
        self._incarnation.gate()
        self._universe.oracle.acts(self._incarnation.name, key)
        self._universe.at_moment(self._incarnation, f"before {kind} {key}")

    def after_act(self, kind: str, key: str) -> None:
        self._universe.at_moment(self._incarnation, f"after {kind} {key}")


class SimChild:
    """``ChildProcess``, in a task."""

    def __init__(self, universe: Universe, name: str, parent: Incarnation, beat_s: float) -> None:
        self.name = name
        self.incarnation = universe.born(name)
        self.pid = 1000 + self.incarnation.number
        self.log_path = Path("logs") / f"{name}.log"
        self.reason = ""
        self._universe = universe
        self._parent = parent
        self._beat_s = beat_s
        self._scope = anyio.CancelScope()
        self._told: deque[str] = deque()
        self._news = Wake()
        self._exited = anyio.Event()
        self._code = 0
        self.incarnation.on_death(self._scope.cancel)

    async def live(self) -> None:
        """The process, from its start to its end."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._beat)
                    await self._host()
        except BaseException as error:
            if isinstance(error, trio.Cancelled | KeyboardInterrupt):
                raise
            if isinstance(error, BaseExceptionGroup) and (ends := error.subgroup((trio.Cancelled, KeyboardInterrupt))):
                raise ends from None
            self._failed(error)
        finally:
            if self.incarnation.dead:
                self._code = -9
            self.incarnation.die()
            self._exited.set()
            self._news.set()

    async def _host(self) -> None:
        universe, incarnation = self._universe, self.incarnation
        await incarnation.spend(universe.delays.start())
        if self.name == universe.cursed:
            raise OSError("no room")

        async def opened(epoch: int) -> None:
            self._tell(f"opened {epoch}")

        async def ready() -> None:
            self._tell("ready")

        async def stalled(reason: str) -> None:
            self._tell(f"stalled {reason}")

        await host_actor(
            factory(self.name, universe, incarnation),
            name=self.name,
            log=SimLog(universe, incarnation),
            blobs=SimBlobs(universe, incarnation),
            config=universe.config,
            run_dir=universe.run_dir,
            clock=universe.clock(),
            code="simulated",
            appending=appending(universe, incarnation),
            opened=opened,
            ready=ready,
            stalled=stalled,
            moments=Deadly(universe, incarnation),
        )

    async def _beat(self) -> None:
        while True:
            await self.incarnation.spend(self._beat_s)
            self._tell("alive")

    def _failed(self, error: BaseException) -> None:
        found: Sequence[BaseException] = leaves(error)
        if self.incarnation.dead:
            return  # whatever a dead process's clean-up ran into
        first = next((leaf for leaf in found if isinstance(leaf, UNRECOVERABLE)), None)
        shown = first or next(leaf for leaf in found if not isinstance(leaf, Dead))
        if not isinstance(shown, Exception):
            raise error
        said = f"{self.incarnation}: {type(shown).__name__}: {shown}"
        self._universe.failed.append(said)
        expected = isinstance(shown, JournalFenced | EffectStalled) or self.name == self._universe.cursed
        if not expected:  # a predecessor lingers, work hangs, it is cursed
            self._universe.oracle.fault(said)
        self._code = EXIT_UNRECOVERABLE if first is not None else 1
        self._tell(f"failed {type(shown).__name__}: {shown}")

    async def end_with_supervisor(self, linger_s: float) -> None:
        """The lifeline."""
        await anyio.sleep(linger_s)
        self.incarnation.die()

    def _tell(self, line: str) -> None:
        self._told.append(line)
        self._news.set()

    # --- as the supervisor sees it ----------------------------------------------------------------------------------------

    async def lines(self) -> AsyncIterator[str]:
        while not self._exited.is_set() or self._told:
            while self._told:
                yield self._told.popleft()
            if not self._exited.is_set():
                await self._news.wait()

    def told(self) -> list[str]:
        found = [*self._told]
        self._told.clear()
        return found

    async def exited(self) -> None:
        await self._parent.or_die(self._exited.wait)

    def terminate(self) -> None:
        if not self.incarnation.frozen and not self._parent.dead:
            self._scope.cancel()

    def kill(self) -> None:
        if not self._parent.dead:
            self.incarnation.die()

    async def end(self) -> int:
        self._parent.gate()
        return self._code
