"""Ways to watch a run: ``live`` on a terminal, ``plain`` lines, ``json`` lines, or nothing.

A display is given the view and what was just folded; it never touches the run. ``auto`` is live on a terminal and plain
elsewhere (a pipe, a log file, CI).
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Literal, Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from t1actors.observe.happenings import Happening
from t1actors.observe.progress import silence
from t1actors.observe.quantities import one_line
from t1actors.observe.screen import Tone, screen
from t1actors.observe.view import RunView

DisplayMode = Literal["auto", "live", "plain", "json", "quiet"]
QUIET_LINES_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""After how much silence the line displays say so, each once a silence."""
STYLES: dict[Tone, str] = {"plain": "", "dim": "dim", "good": "green", "bad": "red", "title": "bold"}


class Display(Protocol):
    def show(self, happened: list[tuple[int, Happening]], view: RunView, now_ns: int) -> None:
        """Show what happened (wall time in ns, happening) and the state after it."""
        ...

    def close(self, view: RunView, now_ns: int) -> None: ...


def open_display(mode: DisplayMode, out: TextIO | None = None) -> Display:
    """The display of that mode, on ``out`` (standard output)."""
    stream = out or sys.stdout
    if mode == "auto":
        mode = "live" if stream.isatty() else "plain"
    match mode:
        case "live":
            return LiveDisplay(Console(file=stream))
        case "plain":
            return LineDisplay(stream, as_json=False)
        case "json":
            return LineDisplay(stream, as_json=True)
        case "quiet":
            return QuietDisplay()


class QuietDisplay:
    def show(self, happened: list[tuple[int, Happening]], view: RunView, now_ns: int) -> None:
        pass

    def close(self, view: RunView, now_ns: int) -> None:
        pass


class LineDisplay:
    """One line (or JSON object) per happening, and one when silence grows long."""

    def __init__(self, out: TextIO, *, as_json: bool) -> None:
        self._out = out
        self._as_json = as_json
        self._said = 0

    def show(self, happened: list[tuple[int, Happening]], view: RunView, now_ns: int) -> None:
        if happened:
            self._said = 0
        for wall_ns, happening in happened:
            self._write(wall_ns, happening)
        quiet = silence(view, now_ns)
        if quiet is not None and self._said < len(QUIET_LINES_S) and quiet.seconds >= QUIET_LINES_S[self._said]:
            self._said = sum(quiet.seconds >= limit for limit in QUIET_LINES_S)
            text = f"no event for {quiet.seconds:.0f} s"
            key = ""
            if quiet.waiting_for is not None:
                key = quiet.waiting_for.key
                text += f", deadline {quiet.waiting_for.deadline_s or 0:.0f} s ({quiet.waiting_for.actor}: {key})"
            self._write(now_ns, Happening("silence", text, {"seconds": quiet.seconds, "waiting_for": key}))

    def close(self, view: RunView, now_ns: int) -> None:
        self._out.flush()

    def _write(self, wall_ns: int, happening: Happening) -> None:
        at = datetime.fromtimestamp(wall_ns / 1e9, UTC)
        if self._as_json:
            line = json.dumps(
                {"at": at.isoformat(), "kind": happening.kind, "text": happening.text, **happening.fields}
            )
        else:
            line = f"{at:%H:%M:%S} {one_line(happening.text)}"
        print(line, file=self._out, flush=True)


class LiveDisplay:
    """A screen redrawn in place. At its end the last state stays on the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, happened: list[tuple[int, Happening]], view: RunView, now_ns: int) -> None:
        width = max(20, self._console.width)
        picture = Text(no_wrap=True, overflow="ellipsis")
        for line in screen(view, now_ns, width)[: max(3, self._console.height - 1)]:
            picture.append(line.text + "\n", style=STYLES[line.tone])
        self._live.update(picture, refresh=True)

    def close(self, view: RunView, now_ns: int) -> None:
        self.show([], view, now_ns)
        self._live.stop()
