"""The Docker daemon's HTTP interface over its Unix socket, as far as a shim needs it: one question, one answer.

Standard library only and small, since every shim carries it: a connection a question, closed by the daemon. Guarantees:
an answer is whole or ``DaemonFailed`` is raised; no answer grows beyond a bound.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from t1actors.sandbox.shim.linux import StepFailed

_VERSION = "v1.41"  # Docker 20.10, the oldest that has private control group namespaces
_PATIENCE_S = 60.0
_LARGEST_ANSWER_BYTES = 16 << 20


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

    def ask(self, step: str, method: str, what: str, body: object = None) -> Any:
        """The answer's JSON, None if it has none. ``step`` is what to call this in errors. Raises ``DaemonFailed``."""
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} /{_VERSION}{what} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        try:
            answer = self._exchange(head.encode() + content)
        except OSError as error:
            raise DaemonFailed(step, f"the Docker daemon at {self.path}: {error.strerror or error}") from error
        status, text = _parsed(step, answer)
        try:
            found: Any = json.loads(text) if text else None
            if status >= 400:
                raise DaemonFailed(step, str(found["message"]), status)
        except (ValueError, KeyError, TypeError) as error:
            raise DaemonFailed(step, f"not an answer: {text[:80]!r}", status) from error
        return found

    def remove(self, container: str) -> None:
        """Kill and delete the container and its anonymous volumes; fine if it is not there. Raises ``DaemonFailed``."""
        try:
            self.ask(f"removing container {container}", "DELETE", f"/containers/{container}?force=1&v=1")
        except DaemonFailed as error:
            if error.status != 404:
                raise

    def _exchange(self, request: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE_S)
            connection.connect(self.path)
            connection.sendall(request)
            parts = bytearray()
            while data := connection.recv(1 << 16):
                parts += data
                if len(parts) > _LARGEST_ANSWER_BYTES:
                    raise OSError(0, f"an answer of more than {_LARGEST_ANSWER_BYTES:,} bytes")
            return bytes(parts)


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
