"""Reading a run's log: a live one as it grows, a finished one in one go.

Guarantees: frames come in causal order; journals are learnt from ActorStarted, never from listing a directory; a
follower sees only durable frames and holds nothing back from the writers. Journals that were trimmed are read from what is
kept of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from t1actors.events import ActorStarted, RunStarted, RunStopped, decode
from t1actors.log.causal import CausalReader
from t1actors.log.errors import Truncated
from t1actors.log.filelog import FileLog
from t1actors.log.frame import Frame
from t1actors.log.interface import Log, Watch
from t1actors.observe.fold import fold
from t1actors.observe.view import RunView

SUPERVISOR = "supervisor"
ENDPOINT = "endpoint"


class NoRun(Exception):
    """There is no run in that directory. Says which, and how to find one."""


def open_run(run_dir: Path) -> FileLog:
    """The log of the run in ``run_dir``, for reading. Raises ``NoRun``."""
    if not (run_dir / "log").is_dir():
        raise NoRun(f"{run_dir}: no run here (it has no log/ folder); `t1 runs` lists the runs there are")
    log = FileLog(run_dir / "log")
    if ENDPOINT in log.journals():
        raise NoRun(f"{run_dir}: an endpoint's sessions, and no run; `t1 log cat {run_dir}` shows what was recorded")
    if SUPERVISOR not in log.journals():
        raise NoRun(
            f"{run_dir}: no run here: its log/ has no journal of the supervisor, with which every run begins; if it was "
            "lost, restore it from a copy"
        )
    return log


def open_log(directory: Path) -> FileLog:
    """As ``open_run``, or the log of an endpoint, which is one journal."""
    log = FileLog(directory / "log")
    return log if ENDPOINT in log.journals() else open_run(directory)


class RunReader:
    """Reads a run's journals in causal order, beginning with the supervisor's, which names the others; or an endpoint's."""

    def __init__(self, log: Log, watch: Watch | None = None) -> None:
        self._log = log
        self._watch = watch
        first = ENDPOINT if ENDPOINT in log.journals() else SUPERVISOR
        self._positions = {first: 0}
        if watch is not None:
            watch.add(first)
        self._reader = CausalReader(log, positions=self._positions)
        self.sessions = 0
        self.stopped = False
        """Whether the last thing the supervisor said is that the run stopped."""

    def poll(self) -> list[Frame]:
        """The next frames; empty when there are none now.

        A batch ends at the frame that names a new journal: what comes behind it may rest on that journal, so it is read
        again with the journal among the sources. Of a run that trims its journals as it goes on, what was deleted before it
        was read is left out."""
        frames = self._poll()
        for n, frame in enumerate(frames):
            self._positions[frame.journal] = frame.next_sequence
            if frame.journal == SUPERVISOR and self._learn(frame):
                self._reader.close()
                self._reader = CausalReader(self._log, positions=self._positions)
                return frames[: n + 1]
        return frames

    def _poll(self) -> list[Frame]:
        while True:
            try:
                return self._reader.poll()
            except Truncated as overtaken:
                self._reader.close()
                self._positions[overtaken.journal] = overtaken.kept_from
                self._reader = CausalReader(self._log, positions=self._positions)

    def _learn(self, frame: Frame) -> bool:
        """Whether the frame named a journal that was not reader."""
        known = len(self._positions)
        for event in map(decode, frame.events):
            self.stopped = isinstance(event, RunStopped)
            self.sessions += isinstance(event, RunStarted)
            if isinstance(event, ActorStarted) and event.journal not in self._positions:
                self._positions[event.journal] = self._log.kept_from(event.journal)
                if self._watch is not None:
                    self._watch.add(event.journal)
        return len(self._positions) > known

    def close(self) -> None:
        """Close the readers."""
        self._reader.close()


def read_run(run_dir: Path, progress: Callable[[int, int], None] | None = None) -> RunView:
    """The run in ``run_dir`` as far as its log goes; ``progress`` hears of events: read, total when it began. Raises
    ``NoRun`` and the log's errors."""
    log = open_run(run_dir)
    total = log.events() if progress is not None else 0
    reader = RunReader(log)
    view = RunView()
    done = 0
    if progress is not None:
        progress(0, total)
    while frames := reader.poll():
        fold(view, frames)
        done += sum(len(frame.events) for frame in frames)
        if progress is not None:
            progress(done, total)
    reader.close()
    return view


async def follow(
    log: Log, *, ended: Callable[[], bool], tick_s: float = 1.0, sessions: int = 0
) -> AsyncGenerator[list[Frame]]:
    """Batches of new frames until the run has stopped, or ``ended`` says so, and all is read. An empty batch comes
    after ``tick_s`` without news, so that silence can be shown as silence. Of a run that is being resumed, ``sessions``
    says how many there were: their ends are not this one's."""
    async with log.watch() as watch:
        reader = RunReader(log, watch)
        while True:
            over = (reader.stopped and reader.sessions > sessions) or ended()
            frames = reader.poll()
            if frames:
                yield frames
            elif over:
                return
            else:
                await watch.wait(tick_s)
                yield []
