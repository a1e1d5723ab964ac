"""Reading a run's log: a live one as it grows, a finished one in one go.

Guarantees: frames come in causal order; journals are learnt from ActorStarted, never from listing a directory; a
follower sees only durable frames and holds nothing back from the writers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

from t1actors.events import ActorStarted, RunStopped, decode
from t1actors.log.causal import CausalReader
from t1actors.log.filelog import FileLog
from t1actors.log.frame import Frame
from t1actors.log.interface import Log, Watch
from t1actors.observe.fold import fold
from t1actors.observe.view import RunView

SUPERVISOR = "supervisor"


class NoRun(Exception):
    """There is no run in that directory. Says which, and how to find one."""


def open_run(run_dir: Path) -> FileLog:
    """The log of the run in ``run_dir``, for reading. Raises ``NoRun``."""
    if not (run_dir / "log").is_dir():
        raise NoRun(f"{run_dir}: no run here (it has no log/ folder); `t1 runs` lists the runs there are")
    return FileLog(run_dir / "log")


class _Known:
    """A causal reader that starts with the supervisor's journal and adds every journal it names."""

    def __init__(self, log: Log, watch: Watch | None = None) -> None:
        self._reader = CausalReader(log, positions={})
        self._watch = watch
        self._journals: set[str] = set()
        self.stopped = False
        self._add(SUPERVISOR)

    def _add(self, journal: str) -> None:
        if journal not in self._journals:
            self._journals.add(journal)
            if self._watch is not None:
                self._watch.add(journal)
            self._reader.add(journal)

    def poll(self) -> list[Frame]:
        frames = self._reader.poll()
        for frame in frames:
            if frame.journal == SUPERVISOR:
                self._learn(frame)
        return frames

    def _learn(self, frame: Frame) -> None:
        for event in map(decode, frame.events):
            if isinstance(event, ActorStarted):
                self._add(event.journal)
            self.stopped = isinstance(event, RunStopped)


def read_run(run_dir: Path) -> RunView:
    """The run in ``run_dir`` as far as its log goes. Raises ``NoRun`` and the log's errors."""
    known = _Known(open_run(run_dir))
    view = RunView()
    while frames := known.poll():
        fold(view, frames)
    return view


async def follow(log: Log, *, ended: Callable[[], bool], tick_s: float = 1.0) -> AsyncIterator[list[Frame]]:
    """Batches of new frames until the run has stopped, or ``ended`` says so, and all is read. An empty batch comes
    after ``tick_s`` without news, so that silence can be shown as silence."""
    async with log.watch() as watch:
        known = _Known(log, watch)
        while True:
            over = known.stopped or ended()
            frames = known.poll()
            if frames:
                yield frames
            elif over:
                return
            else:
                await watch.wait(tick_s)
                yield []
