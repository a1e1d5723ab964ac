"""A run on a terminal that is stopped (Ctrl-S), left (Ctrl-Z), or a pipe that nobody reads: the run goes on."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

from t1actors.events import ActorReady, RunStopped
from tests.cli.test_resume import told
from tests.cli.toy import ROOT
from tests.terminal import Terminal

TOY = [sys.executable, "-m", "tests.cli.toy", "run", "--preset", "smoke"]
COLUMNS, ROWS = 100, 24
PATIENCE_S = 60.0


def wait_until(condition):
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def has(run_dir, kind):
    return (run_dir / "log" / "supervisor").is_dir() and bool(told(run_dir, kind))


@pytest.fixture
def terminal():
    """Both sides of one, and what starts a command on it as a shell does: in a process group of its own."""
    main, side = pty.openpty()
    termios.tcsetwinsize(side, (ROWS, COLUMNS))
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1"}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        environment.pop(name, None)
    processes = []

    def start(command, **options):
        streams = {"stdin": side, "stdout": side, "stderr": side, **options}
        processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, process_group=0, **streams))
        return processes[-1]

    yield main, side, start
    for process in processes:
        process.kill()
        process.wait()
    for descriptor in (main, side):
        os.close(descriptor)


def read_until(main, condition, written=b""):
    """What was written, until that holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition(written):
        assert time.monotonic() < deadline_s, written
        if select.select([main], [], [], 0.1)[0]:
            written += os.read(main, 65_536)
    return written


def seen(written):
    screen = Terminal(COLUMNS, ROWS)
    screen.write(written.decode())
    return screen


def test_a_run_goes_on_to_its_end_while_its_terminal_is_stopped_and_then_shows_how_it_ended(terminal, tmp_path):
    main, side, start = terminal
    termios.tcflow(side, termios.TCOOFF)
    process = start([*TOY, "--dir", str(tmp_path / "r")])
    wait_until(lambda: has(tmp_path / "r", RunStopped))
    assert process.poll() is None  # it has more to say
    termios.tcflow(side, termios.TCOON)
    written = read_until(main, lambda written: process.poll() is not None)
    screen = seen(read_until(main, lambda w: not select.select([main], [], [], 0.1)[0], written))
    assert process.returncode == 0
    assert "ended     finished" in screen.text()
    assert any(line.startswith("finished: 0 training steps") for line in screen.text())
    assert any(line.startswith(f"report   {tmp_path}") for line in screen.text())
    assert sum(line.startswith("t1actors  r") for line in screen.text()) == 1
    assert screen.cursor_shown


def test_a_run_whose_pipe_nobody_reads_goes_on_to_its_end_and_all_lines_come_when_somebody_does(terminal, tmp_path):
    read, write = os.pipe()
    os.set_blocking(write, False)
    full = 0
    while select.select([], [write], [], 0)[1]:
        full += os.write(write, b"." * 4096)
    os.set_blocking(write, True)
    _, _, start = terminal
    process = start([*TOY, "--dir", str(tmp_path / "r"), "--display", "plain"], stdout=write)
    os.close(write)
    wait_until(lambda: has(tmp_path / "r", RunStopped))
    assert process.poll() is None
    with open(read, "rb") as file:
        lines = file.read()[full:].decode().splitlines()
    assert process.wait(PATIENCE_S) == 0
    assert "run r started" in lines[0]
    assert any(line.endswith("run stopped: finished") for line in lines)
    assert any(line.startswith("report   ") for line in lines)


def test_ctrl_z_leaves_the_terminal_to_the_shell_and_fg_draws_the_screen_below(terminal, tmp_path):
    main, _, start = terminal
    process = start([*TOY, "--dir", str(tmp_path / "r"), "--set", "run.seed=7"])
    written = read_until(main, lambda written: b"publisher" in written)
    wait_until(lambda: has(tmp_path / "r", ActorReady))
    for turn in (1, 2):
        os.killpg(process.pid, signal.SIGTSTP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        written = read_until(main, lambda w: not select.select([main], [], [], 0.1)[0], written)
        screen = seen(written)
        assert screen.cursor_shown
        assert screen.lines[screen.row] == ""  # the prompt gets a line of its own
        assert sum(line.startswith("t1actors  r") for line in screen.text()) == turn
        written += b"$ fg\r\n"
        os.killpg(process.pid, signal.SIGCONT)
        written = read_until(main, lambda w: b"t1actors" in w[w.rindex(b"$ fg") :], written)
        assert not seen(written).cursor_shown
    os.killpg(process.pid, signal.SIGTERM)
    written = read_until(main, lambda written: process.poll() is not None, written)
    screen = seen(read_until(main, lambda w: not select.select([main], [], [], 0.1)[0], written))
    assert process.returncode == 130
    assert screen.text().count("$ fg") == 2
    assert sum(line.startswith("t1actors  r") for line in screen.text()) == 3
    assert screen.cursor_shown


LINE = """
import time
from t1actors.cli.progress import Progress
with Progress("tasks") as progress:
    for done in range(10_000):
        progress(done, 10_000)
        time.sleep(0.01)
"""


def test_ctrl_z_takes_a_progress_line_away_and_it_comes_back(terminal):
    main, _, start = terminal
    process = start([sys.executable, "-c", LINE])
    written = read_until(main, lambda written: b"/10,000" in written)
    assert not seen(written).cursor_shown
    os.killpg(process.pid, signal.SIGTSTP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    written = read_until(main, lambda w: not select.select([main], [], [], 0.1)[0], written)
    assert seen(written).text() == []
    assert seen(written).cursor_shown
    written += b"$ fg\r\n"
    os.killpg(process.pid, signal.SIGCONT)
    written = read_until(main, lambda w: b"/10,000" in w[w.rindex(b"$ fg") :], written)
    assert not seen(written).cursor_shown
    os.killpg(process.pid, signal.SIGINT)
    written = read_until(main, lambda written: process.poll() is not None, written)
    assert seen(written).cursor_shown
