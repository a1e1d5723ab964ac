"""Runs a program for who holds the other end of stdin, and ends it with all that it started when that end closes.

    python -I -S keeper.py LOG LIMIT_BYTES PROGRAM ARGUMENT...

A process of its own, the leader of its session, so that a sampler that is killed takes the program along: whatever is in
the keeper's process group dies with it. What the program prints goes to LOG, up to LIMIT_BYTES. Its end is one line on
stdout: ``exit 0``, ``signal 9``, or ``lacking`` and why it could not be started; then the keeper waits to be killed.

Nothing of this package is imported: it starts in some milliseconds.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from typing import IO

MARK = b"\n[what the program printed beyond this was dropped]\n"


class Capped:
    """A log that takes so many bytes and drops the rest."""

    def __init__(self, path: str, limit_bytes: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._left = limit_bytes - os.fstat(self._file).st_size

    def write(self, data: bytes) -> None:
        """As much of it as there is room for."""
        if self._left > 0:
            os.write(self._file, data[: self._left])
            self._left -= len(data)
            if self._left <= 0:
                os.write(self._file, MARK)


def _drain(output: IO[bytes], log: Capped) -> bool:
    """Whether there may be more."""
    try:
        data = os.read(output.fileno(), 65_536)
    except BlockingIOError:
        return False
    log.write(data)
    return bool(data)


def main(log_path: str, limit_bytes: str, argv: list[str]) -> None:
    """See the module; does not return before it is killed."""
    log = Capped(log_path, int(limit_bytes))
    try:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        _say(f"lacking {error}")
    else:
        _keep(child, log)
        _say(f"signal {-child.returncode}" if child.returncode < 0 else f"exit {child.returncode}")
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


def _keep(child: subprocess.Popen[bytes], log: Capped) -> None:
    """Until it ended."""
    output = child.stdout
    assert output is not None
    os.set_blocking(output.fileno(), False)
    ended = os.pidfd_open(child.pid)
    with selectors.DefaultSelector() as ready:
        for source in (0, ended, output.fileno()):
            ready.register(source, selectors.EVENT_READ)
        while True:
            found = {key.fd for key, _ in ready.select()}
            if 0 in found and not os.read(0, 4096):
                os.killpg(0, signal.SIGKILL)
            if output.fileno() in found and not _drain(output, log):
                ready.unregister(output.fileno())
            if ended in found:
                break
    while _drain(output, log):  # not what its own children print later
        pass
    child.wait()


def _say(line: str) -> None:
    os.write(1, (line + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
