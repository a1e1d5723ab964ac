"""The machine that a supervisor runs on: its clock, its processes, its disk, its signals. A simulation has another.

Guarantees: whatever a supervisor does to the world but for its journal, it does through this.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio

from t1actors.runtime.appending import Appending, in_thread
from t1actors.runtime.child import Child
from t1actors.runtime.clock import Clock, system_clock
from t1actors.runtime.orphans import Orphans
from t1actors.runtime.plan import ActorPlan, RunPlan


class ChildProcess(Protocol):
    """An actor's process as ``child.Child`` holds it: see there."""

    @property
    def name(self) -> str:
        """The actor's."""
        ...

    @property
    def pid(self) -> int:
        """Of its process."""
        ...

    @property
    def log_path(self) -> Path:
        """Where its stdout and stderr go."""
        ...

    def lines(self) -> AsyncIterator[str]:
        """What it tells of itself, until it ends."""
        ...

    def told(self) -> list[str]:
        """Lines that have come in and were not given out yet."""
        ...

    async def exited(self) -> None:
        """Waits until it is dead."""
        ...

    def terminate(self) -> None:
        """Asks it to stop."""
        ...

    def kill(self) -> None:
        """Kills it, with all that belongs to it."""
        ...

    async def end(self) -> int:
        """After ``exited``: its exit code, once nothing of it is left."""
        ...


@dataclass(frozen=True)
class Machine:
    """``start`` starts an actor's process, which is to say every so many seconds that it lives; ``chance`` draws from [0, 1);
    ``reap`` is told which processes are the supervisor's own; ``end`` ends what is left of others; ``calling`` makes
    calls that block; ``signals`` are SIGINT and
    SIGTERM, or None where nobody can have them."""

    clock: Clock
    chance: Callable[[], float]
    start: Callable[[ActorPlan, float], ChildProcess]
    signals: Callable[[], AbstractContextManager[AsyncIterator[signal.Signals] | None]]
    free_bytes: Callable[[], int]
    cpu_seconds: Callable[[], float]
    rss_bytes: Callable[[int], int]
    reap: Callable[[set[int]], object]
    end: Callable[[], Awaitable[object]]
    calling: Appending


def this_machine(plan: RunPlan) -> Machine:
    """The one that this process runs on."""
    orphans = Orphans()

    def start(actor: ActorPlan, beat_s: float) -> Child:
        return Child(plan.run_dir, actor.name, actor.factory, program=plan.program, beat_s=beat_s, env=plan.env)

    return Machine(
        clock=system_clock(),
        chance=random.Random().random,
        start=start,
        signals=_signals,
        free_bytes=lambda: shutil.disk_usage(plan.run_dir).free,
        cpu_seconds=_cpu_seconds,
        rss_bytes=_rss_bytes,
        reap=orphans.adopted,
        end=orphans.end,
        calling=in_thread(),
    )


@contextmanager
def _signals() -> Generator[AsyncIterator[signal.Signals] | None]:
    """SIGINT and SIGTERM; None outside of the main thread, where nobody can have them."""
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        yield signals


def _cpu_seconds() -> float:
    """Of this process and of every one that it waited for, user and system time."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0
