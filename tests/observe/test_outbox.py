"""Nobody waits for whoever reads a display."""

import errno
import io
import json
import os
import pty
import select
import termios

import pytest
from rich.console import Console

from t1actors.observe.display import ENDS, LineDisplay, LiveDisplay, open_display
from t1actors.observe.happenings import Happening
from t1actors.observe.outbox import Outbox, behind, beside
from t1actors.observe.screen import screen
from tests.observe.recorded import half_a_run
from tests.observe.test_displays import last_view, recorded
from tests.terminal import Terminal


@pytest.fixture
def full_pipe():
    """A pipe in which there is no room: its reading descriptor, how much is in it, and a stream into it."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    count = 0
    while select.select([], [write], [], 0)[1]:
        count += os.write(write, b"." * 4096)
    os.set_blocking(write, True)
    with open(write, "w") as stream:
        yield read, count, stream
    os.close(read)


def all_of(read, stream):
    """What was written, to the end."""
    stream.close()
    with open(read, "rb", closefd=False) as file:
        return file.read()


def test_who_writes_to_a_full_pipe_goes_on_and_everything_comes_in_order(full_pipe):
    read, count, stream = full_pipe
    outbox = Outbox(stream, stream.fileno())
    for n in range(1000):
        assert outbox.write(f"line {n}\n") == len(f"line {n}\n")
    assert outbox.behind == sum(len(f"line {n}\n") for n in range(1000))
    outbox.end(0.0)  # waits for nobody
    assert outbox.behind
    os.read(read, count)
    outbox.end()
    assert outbox.behind == 0
    outbox.write("more\n")  # an outbox that was ended begins again
    outbox.end()
    assert all_of(read, stream).decode() == "".join(f"line {n}\n" for n in range(1000)) + "more\n"


def test_a_descriptor_that_somebody_made_non_blocking_is_waited_for(full_pipe):
    read, count, stream = full_pipe
    os.set_blocking(stream.fileno(), False)
    outbox = Outbox(stream, stream.fileno())
    outbox.write("late\n")
    os.read(read, count)
    outbox.end()
    assert all_of(read, stream) == b"late\n"


def test_what_the_descriptor_refuses_is_raised_by_the_next_call_each_time():
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stream:
        outbox = Outbox(stream, stream.fileno())
        outbox.write("nobody reads this")
        for call in (outbox.end, outbox.flush, lambda: outbox.write("nor this")):
            with pytest.raises(BrokenPipeError) as raised:
                call()
            assert raised.value.errno == errno.EPIPE
        assert outbox.behind == 0


def test_a_stream_without_a_descriptor_is_written_to_directly():
    stream = io.StringIO()
    assert beside(stream) is stream
    assert behind(stream) == 0


def test_lines_that_nobody_reads_are_kept_to_a_limit_then_counted_and_the_end_is_always_told(full_pipe, monkeypatch):
    monkeypatch.setattr("t1actors.observe.display.BACKLOG_BYTES", 1000)
    read, count, stream = full_pipe
    view = last_view(recorded(half_a_run)[0])
    display = open_display("json", stream)
    for n in range(100):
        display.show([(0, Happening("step_done", "x" * 100, {"step": n}))], view, view.last_ns)
    for kind in ENDS:
        display.show([(0, Happening(kind, ""))], view, view.last_ns)
    display.close(view, view.last_ns)
    os.read(read, count)
    display.end()
    lines = [json.loads(line) for line in all_of(read, stream).splitlines()]
    steps = [line for line in lines if line["kind"] == "step_done"]
    (left_out,) = [line for line in lines if line["kind"] == "left_out"]
    assert [line["step"] for line in steps] == list(range(len(steps)))
    assert left_out["lines"] == 100 - len(steps) > 0
    assert left_out["text"] == f"{left_out['lines']} lines left out: nobody read what was printed"
    assert [line["kind"] for line in lines[-3:]] == list(ENDS)


def test_a_stopped_terminal_gets_one_screen_when_it_goes_on_and_the_last_one(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    view = last_view(recorded(half_a_run)[0])
    main, side = pty.openpty()
    termios.tcsetwinsize(side, (30, 60))
    with open(side, "w", encoding="utf-8") as stream:
        console = Console(file=beside(stream), width=60, height=30, force_terminal=True)
        termios.tcflow(side, termios.TCOOFF)  # Ctrl-S
        display = LiveDisplay(console)
        for n in range(50):
            display.show([], view, view.last_ns + n)
        waiting = behind(console.file)
        assert 0 < waiting < 4000  # not fifty screens
        display.close(view, view.last_ns + 50)
        termios.tcflow(side, termios.TCOON)  # Ctrl-Q
        written = b""
        while select.select([main], [], [], 0.2)[0] or behind(console.file):
            written += os.read(main, 65_536)
        display.end()
    os.close(main)
    terminal = Terminal(60, 30)
    terminal.write(written.decode())
    assert terminal.text() == [line.text for line in screen(view, view.last_ns + 50, 60, 29)]
    assert terminal.cursor_shown


def test_a_display_whose_stream_is_lost_at_the_very_end_says_so(capsys):
    read, write = os.pipe()
    view = last_view(recorded(half_a_run)[0])
    with open(write, "w") as stream:
        display = open_display("plain", stream)
        os.close(read)
        display.show([(0, Happening("run_stopped", "over"))], view, view.last_ns)
        display.close(view, view.last_ns)
        display.end()
    assert capsys.readouterr().err == "t1: the display is closed (Broken pipe); the run goes on\n"


def test_nobody_is_told_of_lines_left_out_when_there_were_none():
    out = io.StringIO()
    view = last_view(recorded(half_a_run)[0])
    LineDisplay(out, as_json=False).close(view, view.last_ns)
    assert out.getvalue() == ""
