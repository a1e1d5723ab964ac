"""Ctrl-Z: a process that has hidden the cursor shows it before it stops.

Whoever draws by itself (``t1 run``) takes the signal, leaves the terminal, and calls ``stop_here``; a line redrawn by rich's
thread is wrapped in ``cursor_shown_when_stopped``. Both leave alone a signal that somebody else takes or ignores.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TextIO

CLEAR_LINE_AND_SHOW = b"\r\x1b[2K\x1b[?25h"
HIDE = b"\x1b[?25l"


def stops_with_ctrl_z() -> bool:
    """Whether this is the thread that gets signals and Ctrl-Z would stop the process."""
    here = threading.current_thread() is threading.main_thread()
    return here and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL


def stop_here() -> None:
    """Stop the process as Ctrl-Z does, and return when it goes on (at once where nobody could continue it)."""
    taken = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    # To this thread: sent to the process, it might stop only after this one went on for a while.
    signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, taken)


@contextmanager
def cursor_shown_when_stopped(stream: TextIO) -> Generator[None]:
    """While a line of the terminal that ``stream`` writes to is redrawn with the cursor hidden."""
    if not stops_with_ctrl_z():
        yield
        return

    def put(codes: bytes) -> None:
        with suppress(OSError):  # past the stream, which the interrupted code may be in the middle of
            os.write(stream.fileno(), codes)

    def stop(number: int, frame: FrameType | None) -> None:
        put(CLEAR_LINE_AND_SHOW)
        stop_here()
        put(HIDE)

    signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
