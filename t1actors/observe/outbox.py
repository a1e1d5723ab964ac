"""A stream that never waits for its reader: a thread hands over what was written to it.

A terminal that was stopped (Ctrl-S) or a pipe that nobody empties makes whoever writes to it wait. Guarantees of an
outbox: ``write`` only takes the text; the order is kept; what the descriptor refuses is raised by the next call; nothing
is dropped here: who writes much looks at ``behind`` and leaves something out. Until ``end`` has returned nobody else
should write to the descriptor.
"""

from __future__ import annotations

import os
import select
import threading
from typing import TextIO, cast


def beside(stream: TextIO) -> TextIO:
    """An outbox over the stream's descriptor; the stream itself where it has none and so can make nobody wait."""
    try:
        return cast("TextIO", Outbox(stream, stream.fileno()))
    except (OSError, AttributeError):
        return stream


def behind(stream: object) -> int:
    """Bytes that were written to the stream and not taken from it; 0 for one that is no outbox."""
    return stream.behind if isinstance(stream, Outbox) else 0


def end(stream: object, timeout_s: float | None = None) -> None:
    """``Outbox.end`` where it is one."""
    if isinstance(stream, Outbox):
        stream.end(timeout_s)


class Outbox:
    """What a display needs of a stream. One thread writes here; the outbox's own hands over and ends with ``end``."""

    def __init__(self, stream: TextIO, descriptor: int) -> None:
        """Raises ``OSError`` when what the stream itself holds back cannot be written."""
        stream.flush()
        self._stream = stream
        self._descriptor = descriptor
        self.encoding = stream.encoding
        self.errors = stream.errors
        self._changed = threading.Condition()
        self._waiting = bytearray()
        self._under_way = 0
        self._thread: threading.Thread | None = None
        self._ending = False
        self._failed: OSError | None = None

    def isatty(self) -> bool:
        """Whether a person may be at the other end."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    @property
    def behind(self) -> int:
        """Bytes that were written and not handed over."""
        with self._changed:
            return len(self._waiting) + self._under_way

    def write(self, text: str) -> int:
        """Take ``text``. Raises the ``OSError`` of what was handed over before."""
        data = text.encode(self.encoding or "utf-8", self.errors or "strict")
        with self._changed:
            self._check()
            self._waiting += data
            if self._thread is None:
                self._ending = False
                # A daemon: a process that wants to end does not wait for a reader either, unless it calls `end`.
                self._thread = threading.Thread(target=self._hand_over, name="outbox", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Nothing: everything is handed over as soon as it is taken. Raises as ``write`` does."""
        with self._changed:
            self._check()

    def end(self, timeout_s: float | None = None) -> None:
        """Wait until all is handed over, at most so long. The next ``write`` begins again. Raises as ``write`` does."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._thread is None, timeout_s)
            self._check()

    def _check(self) -> None:
        if self._failed is not None:
            raise OSError(self._failed.errno, self._failed.strerror)

    def _hand_over(self) -> None:
        while True:
            with self._changed:
                self._under_way = 0
                self._changed.wait_for(lambda: self._waiting or self._ending)
                data, self._waiting = bytes(self._waiting), bytearray()
                self._under_way = len(data)
                if not data:
                    self._thread = None
                    self._changed.notify_all()
                    return
            try:
                self._write(data)
            except OSError as error:
                with self._changed:
                    self._failed, self._thread, self._under_way = error, None, 0
                    self._waiting.clear()
                    self._changed.notify_all()
                return

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # somebody who shares the terminal made it so
                ready = select.poll()
                ready.register(self._descriptor, select.POLLOUT)
                ready.poll()
