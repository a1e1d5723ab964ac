"""The commands of one trial's program, one at a time, each with its number.

Guarantees: a command is durable before the pool can see it, and answered when the pool's answer is durable. A program that is
started again, and asks for the same commands in the same order, is answered from the log, and nothing is run again.
One that asks for something else stands before a sandbox that it has not worked in: ``diverged`` says so, and the trial cannot
go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

from t1actors.harness.endpoint.desk import closed
from t1actors.harness.endpoint.errors import CallRefused


class Commands:
    """See the module. ``requested`` and ``shown`` are what the log says, by number, and grow with it; ``ask`` makes a command
    with its number durable, or says that its trial is over; ``over`` is called where ``diverged`` was set."""

    def __init__(
        self,
        trial: str,
        requested: Sequence[str],
        shown: Mapping[int, str],
        ask: Callable[[int, str], Awaitable[bool]],
        over: Callable[[], None],
    ) -> None:
        self._trial = trial
        self._requested = requested
        self._shown = shown
        self._ask = ask
        self._over = over
        self._next = 0
        self._turn = anyio.Lock()
        self._news = anyio.Event()
        self._closed = False
        self.diverged = ""

    def look(self) -> None:
        """There may be a new answer."""
        self._news.set()
        self._news = anyio.Event()

    def close(self) -> None:
        """Whoever waits is refused, and nothing more is asked for."""
        self._closed = True
        self.look()

    async def run(self, command: str) -> str:
        """The answer to ``command``. Raises ``CallRefused``: the trial is over."""
        async with self._turn:
            answer = ""
            # A command that is asked for has its number, whether or not anybody waits for the answer.
            with anyio.CancelScope(shield=True):
                answer = await self._run(command)
            return answer

    async def _run(self, command: str) -> str:
        number = self._next
        if number < len(self._requested):
            if self._requested[number] != command:
                self.diverged = (
                    f"command {number} is {command[:200]!r}, and was {self._requested[number][:200]!r} before the program "
                    "was started again"
                )
                self._over()
                raise CallRefused(409, f"{self._trial}: {self.diverged}", code="agent_diverged")
        elif self._closed or not await self._ask(number, command):
            raise closed(self._trial)
        self._next += 1
        while number not in self._shown:
            if self._closed:
                raise closed(self._trial)
            await self._news.wait()
        return self._shown[number]
