"""The Docker daemon's HTTP interface over its Unix socket, as far as a shim needs it: one question, one answer.

Standard library only and small, since every shim carries it: a connection a question, closed by the daemon. Guarantees:
an answer is whole or ``DaemonFailed`` is raised; no answer grows beyond a bound.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from t1actors.sandbox.shim.linux import StepFailed

_VERSION = "v1.41"  # Docker 20.10, the oldest that has private control group namespaces
_PATIENCE_S = 60.0
_LARGEST_ANSWER_BYTES = 16 << 20
AWAY_S = 20.0
"""How long a daemon that is away is waited for where somebody counts on it: one that is restarted is back within seconds."""
_BUSY_S = 10.0
_LOOK_AGAIN_S = 0.2


class DaemonFailed(StepFailed):
    """The daemon could not be asked, or refused; ``status`` is 0 or HTTP's."""

    def __init__(self, step: str, reason: str, status: int = 0) -> None:
        super().__init__(step, 0)
        self.reason = reason
        self.status = status


class Daemon:
    """The one that listens at ``path``."""

    def __init__(self, path: str) -> None:
        self.path = path

    def ask(self, step: str, method: str, what: str, body: object = None, *, away_s: float = 0.0) -> Any:
        """The answer's JSON, None if it has none. ``step`` is what to call this in errors; a daemon that is away is waited
        for ``away_s``. Raises ``DaemonFailed``."""
        content = b"" if body is None else json.dumps(body).encode()
        try:
            answer = self._exchange(request(method, what, content), away_s)
        except OSError as error:
            raise DaemonFailed(step, f"the Docker daemon at {self.path}: {error.strerror or error}") from error
        text = answered(step, answer)
        try:
            return json.loads(text) if text else None
        except ValueError as error:
            raise DaemonFailed(step, f"not an answer: {text[:80]!r}") from error

    def remove(self, container: str) -> None:
        """Kill and delete the container and its anonymous volumes; fine if it is not there. A busy daemon refuses that at
        times (an exit that it has not heard of yet, a mount in use), so it is asked again for ``_BUSY_S``. Raises
        ``DaemonFailed``."""
        until_s = time.monotonic() + _BUSY_S
        while True:
            try:
                self.ask(f"removing container {container}", "DELETE", f"/containers/{container}?force=1&v=1")
            except DaemonFailed as error:
                if error.status == 404:
                    return
                if error.status == 0 or time.monotonic() >= until_s:
                    raise
                time.sleep(_LOOK_AGAIN_S)
            else:
                return

    def _exchange(self, question: bytes, away_s: float) -> bytes:
        with self._connected(away_s) as connection:
            connection.sendall(question)
            parts = bytearray()
            while data := connection.recv(1 << 16):
                parts += data
                if len(parts) > _LARGEST_ANSWER_BYTES:
                    raise OSError(0, f"an answer of more than {_LARGEST_ANSWER_BYTES:,} bytes")
            return bytes(parts)

    def _connected(self, away_s: float) -> socket.socket:
        until_s = time.monotonic() + away_s
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(_PATIENCE_S)
            try:
                connection.connect(self.path)
            except OSError:
                connection.close()
                if time.monotonic() >= until_s:
                    raise
                time.sleep(_LOOK_AGAIN_S)
            else:
                return connection


def request(method: str, what: str, content: bytes, content_type: str = "application/json") -> bytes:
    """One question, after whose answer the daemon closes the connection."""
    head = (
        f"{method} /{_VERSION}{what} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def answered(step: str, answer: bytes) -> bytes:
    """What a whole answer says. Raises ``DaemonFailed``: a refusal, or no answer."""
    status, text = _parsed(step, answer)
    if status < 400:
        return text
    try:
        message = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError) as error:
        raise DaemonFailed(step, f"not an answer: {text[:80]!r}", status) from error
    raise DaemonFailed(step, message, status)


def _parsed(step: str, answer: bytes) -> tuple[int, bytes]:
    head, found, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    words = lines[0].split()
    if not found or len(words) < 2 or not words[1].isdigit():
        raise DaemonFailed(step, f"not an answer: {answer[:80]!r}")
    if any(line.lower().replace(b" ", b"") == b"transfer-encoding:chunked" for line in lines[1:]):
        whole = bytearray()
        while body:
            size, _, body = body.partition(b"\r\n")
            length = int(size.partition(b";")[0], 16)
            if length == 0:
                break
            whole += body[:length]
            body = body[length + 2 :]
        body = bytes(whole)
    return int(words[1]), body


def container_name(prefix: str, name: str) -> str:
    """The container of the sandbox in directory ``name``. Docker knows no percent sign, so ``%`` is written ``_.`` and ``_``
    is doubled: different names stay different."""
    return prefix + name.replace("_", "__").replace("%", "_.")


def socket_path(address: str) -> str:
    """The path in ``unix:///path`` or ``/path``."""
    return os.path.abspath(address.removeprefix("unix://"))
