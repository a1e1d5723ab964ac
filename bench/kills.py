"""A run of processes in which every actor is killed once, with -9, and how long each takes to be back."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import trio

from t1actors.cli.run import ACTORS, run_plan
from t1actors.config import Config
from t1actors.events import ActorReady, ActorStarted, ActorStopped, RunFinished, StepOpened, decode
from t1actors.log.filelog import FileLog
from t1actors.observe.follow import follow
from t1actors.runtime.supervisor import RunResult, supervise


@dataclass
class Recovery:
    """Wall clock, nanoseconds: the signal by ours, the rest by the frames that say so."""

    killed_ns: int
    stopped_ns: int = 0
    ready_ns: int = 0

    @property
    def noticed_s(self) -> float:
        return (self.stopped_ns - self.killed_ns) / 1e9

    @property
    def ready_s(self) -> float:
        """From ActorStopped to ActorReady."""
        return (self.ready_ns - self.stopped_ns) / 1e9


class Killer:
    """As a step opens, and while nobody is down, it kills the next of ``victims``. Feed it the log."""

    def __init__(self, victims: tuple[str, ...], *, first_step: int) -> None:
        self._waiting = list(victims)
        self._first_step = first_step
        self._pids: dict[str, int] = {}
        self._down: str | None = None
        self.found: dict[str, Recovery] = {}

    def see(self, wall_ns: int, event: object) -> int | None:
        """The process to kill now, if any."""
        match event:
            case ActorStarted():
                self._pids[event.actor] = event.pid
            case ActorStopped() if event.actor == self._down:
                self.found[event.actor].stopped_ns = wall_ns
            case ActorReady() if event.actor == self._down and self.found[event.actor].stopped_ns:
                self.found[event.actor].ready_ns = wall_ns
                self._down = None
            case StepOpened() if event.step >= self._first_step and self._waiting and self._down is None:
                self._down = self._waiting.pop(0)
                self.found[self._down] = Recovery(time.time_ns())
                return self._pids[self._down]
            case RunFinished():
                self._waiting.clear()
            case _:
                pass
        return None


def run_with_kills(run_dir: Path, config: Config, *, first_step: int) -> tuple[RunResult, dict[str, Recovery]]:
    """A run to its end. An actor that the run's steps did not suffice for is not in the answer."""
    killer = Killer(tuple(ACTORS), first_step=first_step)

    async def kill(ended: trio.Event) -> None:
        async for frames in follow(FileLog(run_dir / "log"), ended=ended.is_set):
            for frame in frames:
                for raw in frame.events:
                    pid = killer.see(frame.head.wall_ns, decode(raw))
                    if pid is not None:
                        os.kill(pid, signal.SIGKILL)

    async def main() -> RunResult:
        ended = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill, ended)
            result = await supervise(run_plan(run_dir, config))
            ended.set()
        return result

    run_dir.mkdir(parents=True)
    result = trio.run(main)
    return result, {name: found for name, found in killer.found.items() if found.ready_ns}
