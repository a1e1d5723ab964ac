"""How far a command is, on stderr: one line redrawn in place on a terminal, a line now and then elsewhere.

Guarantees: stdout stays the command's result; there is no bar without a total, and none goes back; the time left is a
range from the last measurements, and absent before two; nothing is drawn for what takes no time. At the end, and while the
process is stopped (Ctrl-Z), the redrawn line is gone and the cursor is shown.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import Progress as Redrawn
from rich.progress import ProgressColumn, Task
from rich.text import Text

from t1actors.cli.suspension import cursor_shown_when_stopped
from t1actors.observe.lines import Part, row, script_of
from t1actors.observe.pace import Pace
from t1actors.observe.quantities import duration, duration_range

DRAWN_AFTER_S = 0.5
"""What is done earlier needs no line."""
REDRAWS_PER_S = 4
FIRST_LINE_S = 10.0
LINE_SHARE = 0.1
LINES_MAX_S = 60.0
"""Without a terminal: a line after this long, then after each tenth of the time it took so far, at least this often."""


class Progress:
    """``with Progress("demonstrations") as progress: ... progress(done, total, note)``, from one thread. The clock starts
    with the first call."""

    def __init__(
        self,
        what: str,
        stream: TextIO | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        *,
        count: Callable[[int], str] = "{:,}".format,
    ) -> None:
        """``count`` says how amounts are written."""
        self._what = what
        self._count = count
        self.stream = stream or sys.stderr
        self._clock_s = clock_s
        self._console = Console(file=self.stream)
        self._script = script_of(self.stream)
        self._started_s = clock_s()
        self._first_s: float | None = None
        self._next_line_s = FIRST_LINE_S
        self._lines = 0
        self._pace = Pace(0)
        self._done = 0
        self._total = 0
        self._note = ""
        self._redrawn: Redrawn | None = None
        self._stoppable = ExitStack()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
        if self._lines and error is None:
            self._print()

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """``done`` of ``total`` are done. A total that grew, as of a run that goes on, counts from its first value."""
        now_s = self._clock_s()
        if self._first_s is None:
            self._first_s, self._total, self._pace = now_s, total, Pace(total)
        self._done = max(self._done, min(done, self._total))
        self._note = note
        self._pace.note(self._done, now_s)
        taken_s = now_s - self._first_s
        if self._console.is_interactive:
            if self._redrawn is None and taken_s >= DRAWN_AFTER_S and self._done < self._total:
                self._stoppable.enter_context(cursor_shown_when_stopped(self.stream))
                self._redrawn = _redrawn(self)
                self._redrawn.start()
        elif taken_s >= self._next_line_s and self._done < self._total:
            self._next_line_s = taken_s + min(LINES_MAX_S, max(FIRST_LINE_S, LINE_SHARE * taken_s))
            self._lines += 1
            self._print()

    @property
    def elapsed(self) -> str:
        """Since this was made, in words."""
        return duration(self._clock_s() - self._started_s)

    def clear(self) -> None:
        """Take the line away, so that something else can be printed; the next call draws it again."""
        if self._redrawn is not None:
            self._redrawn.stop()
            self._redrawn = None
            self._stoppable.close()

    def line(self, width: int) -> str:
        """The line as it is now."""
        parts = [Part(self._amount(), 0), Part(self._time(), 1)]
        parts += [Part(self._note, 2)] if self._note else []
        return row(self._what, parts, width, self._script, meter=(self._done, self._total))

    def _amount(self) -> str:
        return f"{self._count(self._done)}/{self._count(self._total)}"

    def _time(self) -> str:
        now_s = self._clock_s()
        left = self._pace.left(now_s)
        if left is not None:
            return f"{duration_range(left.low_s, left.high_s)} left"
        return duration(now_s - (self._first_s if self._first_s is not None else now_s))

    def _print(self) -> None:
        note = f", {self._note}" if self._note else ""
        print(f"{self._what}: {self._amount()}, {self._time()}{note}", file=self.stream, flush=True)


class _Line(ProgressColumn):
    def __init__(self, progress: Progress, console: Console) -> None:
        super().__init__()
        self._progress = progress
        self._console = console

    def render(self, task: Task) -> Text:
        return Text(self._progress.line(self._console.width), no_wrap=True, overflow="crop")


def _redrawn(progress: Progress) -> Redrawn:
    """The line, redrawn by itself: time goes on while nothing is done."""
    console = Console(file=progress.stream)
    redrawn = Redrawn(
        _Line(progress, console),
        console=console,
        transient=True,
        refresh_per_second=REDRAWS_PER_S,
        # The result is stdout's alone; what is said on stderr goes above the line.
        redirect_stdout=False,
        redirect_stderr=progress.stream is sys.stderr,
    )
    redrawn.add_task("")
    return redrawn
