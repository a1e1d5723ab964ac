"""One actor's process as its supervisor holds it.

Guarantees: the child leads its own session and process group; its stdout and stderr are a log file, so no pipe can
fill up and block it; it hears of the supervisor's death by the end of its stdin; ``end`` returns when no process of
its group is left, so a successor cannot meet its predecessor.

Reading order matters: the group is killed while its leader is a zombie (seen by its pidfd, not yet reaped), because
from then on the kernel may give the number to somebody else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import anyio

GROUP_DEADLINE_S = 5.0
"""Killed processes that are still there after this hang in the kernel; the journal's lock still protects the run."""


class Child:
    """One actor's process, its status line and its end."""

    def __init__(
        self, run_dir: Path, name: str, factory: str, *, program: str, beat_s: float, env: Mapping[str, str]
    ) -> None:
        """Starts ``program``, a module that does what ``runtime.process`` does, and is to say every ``beat_s`` seconds that
        it lives. Raises ``OSError``."""
        self.name = name
        self.log_path = run_dir / "logs" / f"{name}.log"
        self._status, status = os.pipe()
        os.set_blocking(self._status, False)
        log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        options = ["--lifeline", "--status-fd", str(status), "--beat-s", f"{beat_s:g}"]
        try:
            self._process = subprocess.Popen(
                # -P: what lies in the user's working directory must not stand in for a library.
                [sys.executable, "-P", "-m", program, str(run_dir), name, factory, *options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(status,),
                start_new_session=True,
                env={**os.environ, **env},
            )
        except OSError:
            os.close(self._status)
            raise
        finally:
            os.close(status)
            os.close(log)
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._partial = b""

    async def lines(self) -> AsyncIterator[str]:
        """What the child tells of itself, until it ends or closes the descriptor."""
        while True:
            await anyio.wait_readable(self._status)
            for line in self.told():
                yield line
            if self._status < 0:
                return

    def told(self) -> list[str]:
        """The lines that have come in and were not given out yet."""
        if self._status < 0:
            return []
        try:
            data = os.read(self._status, 65_536)
        except BlockingIOError:
            return []
        if not data:
            os.close(self._status)
            self._status = -1
        *whole, self._partial = (self._partial + data).split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    async def exited(self) -> None:
        """Waits until the process is dead. It is not reaped: ``end`` does that."""
        await anyio.wait_readable(self._pidfd)

    def terminate(self) -> None:
        """Asks the actor to stop. Its helpers are its own to stop: they would die under its hands otherwise."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the whole group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    async def end(self) -> int:
        """After ``exited``: kills what is left of the group, waits for it, and returns the exit code (-N for signal
        N)."""
        self.kill()
        code = self._process.wait()
        with anyio.CancelScope(shield=True), anyio.move_on_after(GROUP_DEADLINE_S):
            # The kernel has no event for the end of a group, and it is there within milliseconds.
            while self._group_lives():  # noqa: ASYNC110
                await anyio.sleep(0.005)
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.close(self._pidfd)
        if self._status >= 0:
            os.close(self._status)
            self._status = -1
        return code

    def _group_lives(self) -> bool:
        # Members whose parents died are ours to reap (the supervisor is a subreaper): as zombies they would count as
        # alive.
        try:
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True
