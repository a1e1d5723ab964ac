"""Ways to watch a run: ``live`` on a terminal, ``plain`` lines, ``json`` lines, or nothing.

A display is given the view and what was just folded. Guarantees: it never touches the run, not even by failing or by
waiting: when its stream is closed (``| head``, a lost terminal), it says so once on stderr and is quiet from then on; while
its stream takes nothing (Ctrl-S, a pipe that nobody reads) screens are left out, and lines beyond a backlog, but never the
last screen nor how the run ended. ``auto`` is live on a terminal that can move its cursor and plain elsewhere (a pipe, a log
file, CI, TERM=dumb); there, ``live`` is plain, too. Lines have no escape codes.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal, Protocol, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.text import Text

from t1actors.observe.happenings import Happening, silent, standing
from t1actors.observe.lines import script_of, written
from t1actors.observe.outbox import behind, beside, end
from t1actors.observe.progress import elapsed_s, silence
from t1actors.observe.screen import Tone, screen
from t1actors.observe.view import RunView

DisplayMode = Literal["auto", "live", "plain", "json", "quiet"]
QUIET_LINES_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""After how much silence the line displays say so, each once a silence."""
STANDING_S = 30.0
"""After how long without a line the line displays say how the run stands; rarer in long runs (``STANDING_SHARE``)."""
STANDING_SHARE = 0.02
STANDING_MAX_S = 600.0
ALIKE = 1
"""Failed trials of one cause that are shown in full between two steps; the step's line counts all of them."""
BACKLOG_BYTES = 4_000_000
"""Lines that nobody has read are kept up to this."""
ENDS = ("run_finished", "run_failed", "run_stopped")
"""Lines that are never left out."""
SUSPEND_WAIT_S = 0.5
"""How long the terminal may take to be left before a suspended process stops all the same."""
STYLES: dict[Tone, str] = {"plain": "", "dim": "dim", "good": "green", "bad": "red", "title": "bold"}


class Display(Protocol):
    """What shows a run while it goes on."""

    def show(self, happened: list[tuple[int, Happening]], view: RunView, now_ns: int) -> None:
        """Show what happened (wall time in ns, happening) and the state after it."""
        ...

    def suspend(self) -> None:
        """Leave the terminal to the shell for a while; the next ``show`` takes it again."""
        ...

    def close(self, view: RunView, now_ns: int) -> None:
        """Show the last state and leave the terminal as it was found. Waits for nobody, so part of it may be under way
        still."""
        ...

    def end(self) -> None:
        """After ``close``: wait until everything is written."""
        ...


def open_display(mode: DisplayMode, out: TextIO | None = None) -> Display:
    """The display of that mode, on ``out`` (standard output)."""
    stream = out or sys.stdout
    if mode in ("auto", "live"):
        mode = "live" if stream.isatty() and Console(file=stream).is_interactive else "plain"
    if mode == "quiet":
        return QuietDisplay()
    taken = beside(stream)
    match mode:
        case "live":
            return _Unfailing(LiveDisplay(Console(file=taken)), stream)
        case "plain":
            return _Unfailing(LineDisplay(taken, as_json=False), stream)
        case "json":
            return _Unfailing(LineDisplay(taken, as_json=True), stream)


class QuietDisplay:
    """Says nothing of the run; it answers who wants to stop it."""

    def __init__(self) -> None:
        self._out = beside(sys.stderr)

    def show(self, happened: list[tuple[int, Happening]], view: RunView, now_ns: int) -> None:
        for _, happening in happened:
            if happening.kind == "stop_requested":
                self.say(happening.text)

    def say(self, text: str) -> None:
        """One line, where anybody hears it."""
        with suppress(OSError):
            print(f"t1: {text}", file=self._out, flush=True)

    def suspend(self) -> None:
        pass

    def close(self, view: RunView, now_ns: int) -> None:
        pass

    def end(self) -> None:
        with suppress(OSError):
            end(self._out)


class _Unfailing:
    """A display whose stream may go away."""

    def __init__(self, display: Display, stream: TextIO) -> None:
        self._display: Display = display
        self._stream = stream

    def show(self, happened: list[tuple[int, Happening]], view: RunView, now_ns: int) -> None:
        try:
            self._display.show(happened, view, now_ns)
        except OSError as error:
            self._give_up(error, view, now_ns)

    def suspend(self) -> None:
        with suppress(OSError):  # the next `show` says it
            self._display.suspend()

    def close(self, view: RunView, now_ns: int) -> None:
        self._closed = view, now_ns
        try:
            self._display.close(view, now_ns)
        except OSError as error:
            self._give_up(error, view, now_ns)

    def end(self) -> None:
        try:
            self._display.end()
        except OSError as error:
            self._give_up(error, *self._closed)
            self._display.end()

    def _give_up(self, error: OSError, view: RunView, now_ns: int) -> None:
        with suppress(OSError):
            self._display.close(view, now_ns)  # it may hold the process's streams
        if self._stream is sys.stdout:  # what is written there later has no reader either, and is no failure
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        self._display = quiet = QuietDisplay()
        quiet.say(f"the display is closed ({error.strerror}); the run goes on")


class LineDisplay:
    """One line a step and for what goes wrong (or a JSON object a happening); how the run stands when that takes long;
    one when silence grows."""

    def __init__(self, out: TextIO, *, as_json: bool) -> None:
        self._out = out
        self._as_json = as_json
        self._script = script_of(out)
        self._quiet_said = 0
        self._alike: Counter[str] = Counter()
        self._left_out = 0
        self._line_ns: int | None = None

    def show(self, happened: list[tuple[int, Happening]], view: RunView, now_ns: int) -> None:
        if self._line_ns is None:
            self._line_ns = now_ns
        if happened:
            self._quiet_said = 0
        for wall_ns, happening in happened:
            if self._as_json or self._worth_a_line(happening):
                self._write(wall_ns, now_ns, happening)
        quiet = silence(view, now_ns)
        if quiet is None or view.complete:
            return
        if self._quiet_said < len(QUIET_LINES_S) and quiet.seconds >= QUIET_LINES_S[self._quiet_said]:
            self._quiet_said = sum(quiet.seconds >= limit for limit in QUIET_LINES_S)
            self._write(now_ns, now_ns, silent(quiet))
        elif quiet.seconds < QUIET_LINES_S[0]:
            rest_s = min(STANDING_MAX_S, max(STANDING_S, STANDING_SHARE * elapsed_s(view, now_ns)))
            if now_ns - self._line_ns >= rest_s * 1e9:
                self._write(now_ns, now_ns, standing(view))

    def suspend(self) -> None:
        pass

    def close(self, view: RunView, now_ns: int) -> None:
        self._tell_left_out(now_ns)
        self._out.flush()

    def end(self) -> None:
        end(self._out)

    def _worth_a_line(self, happening: Happening) -> bool:
        if happening.kind == "step_done":
            self._alike.clear()
        if happening.kind != "trial_failed":
            return not happening.detail
        cause = str(happening.fields.get("cause"))
        self._alike[cause] += 1
        return self._alike[cause] <= ALIKE

    def _write(self, wall_ns: int, now_ns: int, happening: Happening) -> None:
        self._line_ns = now_ns
        if happening.kind not in ENDS and behind(self._out) > BACKLOG_BYTES:
            self._left_out += 1
            return
        self._tell_left_out(now_ns)
        self._print(wall_ns, happening)

    def _tell_left_out(self, now_ns: int) -> None:
        count, self._left_out = self._left_out, 0
        if count:
            text = f"{count:,} line{'s' if count > 1 else ''} left out: nobody read what was printed"
            self._print(now_ns, Happening("left_out", text, {"lines": count}))

    def _print(self, wall_ns: int, happening: Happening) -> None:
        at = datetime.fromtimestamp(wall_ns / 1e9, UTC)
        if self._as_json:
            fields = {
                k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in happening.fields.items()
            }
            line = json.dumps({"at": at.isoformat(), "kind": happening.kind, "text": happening.text, **fields})
        else:
            line = f"{at:%H:%M:%S} {written(happening.text, self._script)}"
        print(line, file=self._out, flush=True)


class LiveDisplay:
    """A screen redrawn in place, which leaves room for one line below it. At its end the last state stays on the terminal
    and the cursor is shown again. What the process prints meanwhile goes above the screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._out = console.file
        self._script = script_of(self._out)
        self._drawn: list[int] = []
        """Cells of the lines that are on the terminal."""
        self._drawn_width = 0
        self._live = self._started()

    def show(self, happened: list[tuple[int, Happening]], view: RunView, now_ns: int) -> None:
        if behind(self._out) == 0:  # else the screen before is not on the terminal yet
            self._draw(view, now_ns)

    def suspend(self) -> None:
        self._live.stop()
        self._drawn = []
        end(self._out, SUSPEND_WAIT_S)

    def close(self, view: RunView, now_ns: int) -> None:
        try:
            self._draw(view, now_ns)
        finally:
            self._live.stop()

    def end(self) -> None:
        end(self._out)

    def _started(self) -> Live:
        live = Live(console=self._console, auto_refresh=False, redirect_stderr=sys.stderr.isatty())
        live.start()
        return live

    def _draw(self, view: RunView, now_ns: int) -> None:
        if not self._live.is_started:
            self._live = self._started()
        size = self._console.size
        width = max(1, size.width)
        lines = screen(view, now_ns, width, max(1, size.height - 1), self._script)
        picture = Text("\n", no_wrap=True, overflow="crop").join(Text(x.text, style=STYLES[x.tone]) for x in lines)
        if width < self._drawn_width:
            self._erase_broken_lines(width)
        self._drawn, self._drawn_width = [cell_len(line.text) for line in lines], width
        self._live.update(picture, refresh=True)

    def _erase_broken_lines(self, width: int) -> None:
        """A terminal that was made narrower has broken the lines on it: erase from where the first one is now, and stand
        where the last one was thought to be."""
        rows = sum(max(1, -(-cells // width)) for cells in self._drawn)
        up = f"\x1b[{rows - 1}A" if rows > 1 else ""
        self._out.write(f"\r{up}\x1b[J" + "\n" * (len(self._drawn) - 1))
