"""Progress of commands: true on a terminal, as lines elsewhere, and never in the way of the result."""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from t1actors.cli.progress import Progress
from tests.terminal import Terminal

ROOT = Path(__file__).parents[2]
T1 = [sys.executable, "-c", "from t1actors.cli.main import main; raise SystemExit(main())"]


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def said(steps, *, seconds_each, total=None):
    """What a command without a terminal says while it does ``steps`` units."""
    out, clock = io.StringIO(), Clock()
    with Progress("tasks written", out, clock) as progress:
        progress(0, total or steps)
        for done in range(1, steps + 1):
            clock.now_s += seconds_each
            progress(done, total or steps, f"loss {1 / done:.2f}")
    return out.getvalue().splitlines()


def test_without_a_terminal_what_is_quick_says_nothing():
    assert said(90, seconds_each=0.1) == []


def test_without_a_terminal_a_long_command_says_a_line_now_and_then():
    lines = said(1000, seconds_each=1.0)
    assert lines[0] == "tasks written: 10/1,000, 16 min left, loss 0.10"
    assert lines[-1].startswith("tasks written: 1,000/1,000, 16 min 40 s")
    assert len(lines) < 40
    assert not any(sign in "".join(lines) for sign in "\x1b\r█")


def test_the_time_left_is_absent_until_two_units_are_measured():
    lines = said(4, seconds_each=20.0)
    assert lines[0] == "tasks written: 1/4, 20 s, loss 1.00"
    assert lines[1] == "tasks written: 2/4, 40 s left, loss 0.50"


def test_done_never_goes_back_and_never_passes_the_total():
    out, clock = io.StringIO(), Clock()
    with Progress("events read", out, clock) as progress:
        for done in (0, 5, 3, 12):
            clock.now_s += 20.0
            progress(done, 10)
    assert re.findall(r"(\d+)/10", out.getvalue()) == ["5", "5", "10"]


@pytest.mark.parametrize("columns", [80, 40, 20])
def test_a_line_fits_its_terminal_and_keeps_the_count(columns):
    clock = Clock()
    progress = Progress("training steps", io.StringIO(), clock)
    for done in range(0, 700, 100):
        clock.now_s += 30.0
        progress(done, 1200, "loss 0.123")
    assert len(progress.line(columns)) <= columns
    assert "600/1,200" in progress.line(columns)


# --- on a terminal ----------------------------------------------------------------------------------------------------


def on_terminal(command, columns=60, rows=20, *, stop_at=None, stops=1, term="xterm-256color", **environment):
    """What a command leaves on a terminal, its exit status, and all it wrote; Ctrl-C once ``stop_at`` was
    written ``stops`` times."""
    main, side = pty.openpty()
    subprocess.run(["stty", "cols", str(columns), "rows", str(rows)], stdin=side, check=True)
    env = {**os.environ, "TERM": term, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **environment}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        env.pop(name, None)
    process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=env, start_new_session=True, cwd=ROOT)
    os.close(side)
    written = b""
    while select.select([main], [], [], 60.0)[0]:
        try:
            data = os.read(main, 65_536)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        written += data
        if stop_at is not None and written.count(stop_at) >= stops:
            os.killpg(process.pid, signal.SIGINT)
            stop_at = None
    os.close(main)
    text = written.decode()
    terminal = Terminal(columns, rows)
    terminal.write(text)
    return terminal, process.wait(30), text


SLOW = """
import sys, time
from t1actors.cli.progress import Progress
with Progress("tasks written") as progress:
    for done in range(9):
        progress(done, 8)
        if done == 6:
            print("a warning", file=sys.stderr)
        if done == 7:
            progress.clear()
            print("a result")
        time.sleep(SECONDS)
print("done")
"""


def test_the_line_is_gone_at_the_end_and_the_cursor_is_shown():
    terminal, status, text = on_terminal([sys.executable, "-c", SLOW.replace("SECONDS", "0.15")])
    assert status == 0
    assert "█" in text
    assert terminal.text() == ["a warning", "a result", "done"]
    assert terminal.cursor_shown


def test_a_dumb_terminal_gets_no_escape_code():
    _, status, text = on_terminal([sys.executable, "-c", SLOW.replace("SECONDS", "0.1")], term="dumb")
    assert status == 0
    assert "\x1b" not in text


LIVE = """
import sys, time
from t1actors.log.memory import MemoryLog
from t1actors.observe.display import open_display
from t1actors.observe.fold import fold
from t1actors.observe.follow import RunReader
from t1actors.observe.view import RunView
from tests.observe.recorded import Recorder, half_a_run
log = MemoryLog()
half_a_run(Recorder(log))
reader, view = RunReader(log), RunView()
while frames := reader.poll():
    fold(view, frames)
display = open_display("auto")
try:
    for n in range(4):
        display.show([], view, view.last_ns + n)
        print("a warning", n, file=sys.stderr)
        time.sleep(SECONDS)
finally:
    display.close(view, view.last_ns)
    display.end()
"""


def test_the_live_screen_is_not_torn_by_what_the_process_logs():
    columns, rows = 40, 10
    terminal, status, _ = on_terminal([sys.executable, "-c", LIVE.replace("SECONDS", "0")], columns, rows)
    assert status == 0
    assert terminal.text()[:4] == [f"a warning {n}" for n in range(4)]
    assert sum(line.startswith("t1actors  demo-run") for line in terminal.text()) == 1
    assert len(terminal.text()) <= 4 + rows - 1
    assert terminal.cursor_shown


def test_ctrl_c_in_a_live_screen_shows_the_cursor_again():
    command = [sys.executable, "-c", LIVE.replace("SECONDS", "5")]
    terminal, status, _ = on_terminal(command, stop_at=b"a warning 0")
    assert status != 0
    assert terminal.cursor_shown


def test_an_interrupted_command_gives_the_terminal_back_and_says_so(tmp_path):
    command = [*T1, "task", "make", str(tmp_path / "tasks"), "--count", "20000"]
    terminal, status, _ = on_terminal(command, stop_at="░ ".encode(), stops=4)
    assert status == 130
    assert terminal.text() == ["t1: interrupted"]
    assert terminal.cursor_shown


def test_a_run_whose_reader_has_enough_goes_on_and_keeps_its_exit_status():
    code = (
        LIVE.replace("SECONDS", "0")
        .replace("display.show([], ", "display.show(said, ")
        .replace(
            'display = open_display("auto")',
            "from t1actors.observe.happenings import Happening\n"
            'said = [(0, Happening("x", "y"))]\n'
            'display = open_display("auto")',
        )
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", code + "\nprint('the end')"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=env, check=False)
    os.close(write)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("t1: the display is closed (Broken pipe); the run goes on\n") == 1
    assert "Exception" not in done.stderr
