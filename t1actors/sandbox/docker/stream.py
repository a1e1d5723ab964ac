"""Answers of the Docker daemon that take their time: a record a line, each told of as it comes.

On anyio, under trio and asyncio alike. Guarantees: the connection is closed however the call ends, which is how a daemon
hears that nobody waits for a build or a pull any more; no line grows beyond a bound.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import anyio

from t1actors.sandbox.docker.daemon import DaemonFailed, answered, socket_path

Record = dict[str, Any]
_LONGEST_LINE_BYTES = 4 << 20


async def hear(socket: str, step: str, question: bytes, heard: Callable[[Record], None]) -> None:
    """Ask, and tell ``heard`` of every record. Raises ``DaemonFailed``; what went wrong later is in the records."""
    answer = _Answer(step)
    try:
        async with await anyio.connect_unix(socket_path(socket)) as connection:
            # A daemon that has made up its mind hangs up without having read all of the question.
            with suppress(anyio.BrokenResourceError):
                await connection.send(question)
            with suppress(anyio.BrokenResourceError):
                async for data in connection:
                    for record in answer.take(data):
                        heard(record)
    except OSError as error:
        raise DaemonFailed(step, f"the Docker daemon at {socket}: {error}") from error
    answer.finish()


class _Answer:
    def __init__(self, step: str) -> None:
        self._step = step
        self._head = b""
        self._raw = b""
        self._line = b""
        self._chunked = False
        self._whole = False

    def take(self, data: bytes) -> Iterator[Record]:
        """The records that ``data`` completes."""
        self._raw += data
        if not self._head:
            head, found, body = self._raw.partition(b"\r\n\r\n")
            if not found:
                return
            self._head, self._raw = head + found, body
            self._chunked = b"transfer-encoding:chunked" in head.lower().replace(b" ", b"")
        if self._refused:
            return
        self._line += self._unwrapped()
        *lines, self._line = self._line.split(b"\n")
        if len(self._line) > _LONGEST_LINE_BYTES:
            raise DaemonFailed(self._step, f"a line of more than {_LONGEST_LINE_BYTES:,} bytes")
        for line in lines:
            if line.strip():
                yield self._record(line)

    def finish(self) -> None:
        """Raises ``DaemonFailed`` where the answer was a refusal, or broke off."""
        if not self._head or self._refused:
            answered(self._step, self._head + self._raw)
        if not self._whole and self._chunked:
            raise DaemonFailed(self._step, "the Docker daemon broke off")

    @property
    def _refused(self) -> bool:
        words = self._head.split(b" ", 2)
        return len(words) < 2 or not words[1].startswith(b"2")

    def _unwrapped(self) -> bytes:
        if not self._chunked:
            found, self._raw = self._raw, b""
            return found
        found = b""
        while b"\r\n" in self._raw:
            size, _, rest = self._raw.partition(b"\r\n")
            length = int(size.partition(b";")[0], 16)
            if len(rest) < length + 2:
                break
            self._whole = self._whole or length == 0
            found, self._raw = found + rest[:length], rest[length + 2 :]
        return found

    def _record(self, line: bytes) -> Record:
        try:
            return dict(json.loads(line))
        except ValueError as error:
            raise DaemonFailed(self._step, f"not a record: {line[:80]!r}") from error
