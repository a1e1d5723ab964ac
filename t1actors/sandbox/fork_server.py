"""The fork server's process, as a backend sees it: one-line questions and answers (``shim.forkserver``).

Guarantees: a question that was sent is answered or the server counts as gone, also when whoever asked is cancelled; leaving
the context ends the server, and no sandbox.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import anyio
import anyio.abc

from t1actors.nursery import apart
from t1actors.sandbox import errors
from t1actors.sandbox.errors import SandboxUnavailable

_FORK_PATIENCE_S = 30.0
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); import runpy; runpy.run_module('{}', run_name='__main__')"
_PACKAGE_PARENT = str(Path(errors.__file__).resolve().parents[2])


def _python(module: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _BOOT.format(module), _PACKAGE_PARENT]


class ShimKind(NamedTuple):
    """What makes a backend's sandboxes: ``backend`` as in ``Isolation``, its fork server with arguments, and what to do when
    that can't make any."""

    backend: str
    fork_server: str
    arguments: tuple[str, ...]
    fix: str
    entry: str = ""
    """What becomes the fork server, where it is not started at once."""


class ForkServer:
    """See the module. Use inside ``async with``."""

    def __init__(self, root: Path, prefix: str, kind: ShimKind) -> None:
        self._root = root
        self._prefix = prefix
        self._kind = kind
        self._process: anyio.abc.Process | None = None
        self._lock = anyio.Lock()
        self._buffer = b""

    async def __aenter__(self) -> ForkServer:
        # -I -S: neither the environment nor site packages decide what runs as root here, and it starts fast.
        command = [*_python(self._kind.fork_server), str(self._root), self._prefix, *self._kind.arguments]
        if self._kind.entry:
            command = [*_python(self._kind.entry), *command]
        self._process = await anyio.open_process(command, stderr=None)
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        with anyio.CancelScope(shield=True):
            await process.stdin.aclose()
            with anyio.move_on_after(_FORK_PATIENCE_S):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
            await process.aclose()

    async def fork(self, name: str) -> bool:
        """True for a new shim, False if one was there already."""
        answer = await self._ask(f"fork {name}")
        if answer in ("new", "exists"):
            return answer == "new"
        raise SandboxUnavailable("starting a shim", answer.removeprefix("error "), self._kind.fix)

    async def clear(self, name: str) -> bool:
        """True if nothing is left, False if a shim lives there."""
        return await self._ask(f"clear {name}") == "done"

    async def _ask(self, line: str) -> str:
        answer = ""
        async with self._lock:
            with anyio.CancelScope(shield=True):  # so that whoever asked learns the answer
                answer = await apart(lambda: self._exchange(line))
        if not answer:
            raise SandboxUnavailable(
                "asking the fork server", "it ended or hangs; its errors are on stderr", self._kind.fix
            )
        if answer.startswith("refused "):
            _, step, reason = answer.split("\t")
            raise SandboxUnavailable(step, reason, self._kind.fix)
        return answer

    async def _exchange(self, line: str) -> str:
        """Empty when the fork server has ended, or hangs. Shielded here too, or a torn exchange would leave its answer for
        the next one to read; it takes a millisecond or two."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with anyio.move_on_after(_FORK_PATIENCE_S, shield=True):
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # there may be a last word
                await self._process.stdin.send(f"{line}\n".encode())
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while b"\n" not in self._buffer:
                    self._buffer += await self._process.stdout.receive()
                answer, _, self._buffer = self._buffer.partition(b"\n")
                return answer.decode()
        return ""
