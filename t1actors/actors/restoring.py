"""A trial's sandbox made again after it was lost with the machine, or with everything that was stopped at once.

What an agent did is known: its commands are events. So a lost sandbox is no lost trial: a fresh one is made and the commands
are run again, in order, under their keys, and the trial goes on as if nothing had happened.

Guarantees:
- What a command prints now is compared with what it printed then; where it differs, the trial cannot go on (its tokens answer
  what it was shown), and ``Diverged`` says which turn. Commands that are functions of the task print the same.
- A restoring that was cut short, by a crash or a cancellation, is gone on with before anything else happens in the sandbox.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import anyio

from t1actors.events import AnyEvent, CommandRequested, TurnExecuted, TurnSampled, UnknownEvent
from t1actors.sandbox.errors import SandboxGone, SandboxSealed

T = TypeVar("T")
OUT_OF_MEMORY = "(the sandbox ran out of memory)"


class Diverged(Exception):
    """A command printed something else than the first time."""

    def __init__(self, turn: int, recorded: str, observed: str) -> None:
        super().__init__(f"turn {turn}, run again in a new sandbox, shows the agent something else than the first time")
        self.turn = turn
        self.recorded = recorded
        self.observed = observed


@dataclass
class History:
    """What the agents of live trials have had run, and what they were shown: a fold of the log."""

    commands: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    shown: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    died: dict[str, int] = field(default_factory=dict[str, int])
    """Trials whose sandbox ran out of memory, and in which turn."""

    def fold(self, event: AnyEvent | UnknownEvent) -> None:
        """Note a turn's command, or what came of it."""
        match event:
            case TurnSampled() if event.execute:
                self.commands.setdefault(event.trial, {})[event.turn] = event.command
            case CommandRequested():
                self.commands.setdefault(event.trial, {})[event.number] = event.command
            case TurnExecuted():
                self.shown.setdefault(event.trial, {})[event.turn] = event.observation
                if event.sandbox_died:
                    self.died[event.trial] = event.turn
            case _:
                pass

    def forget(self, trial: str) -> None:
        """The trial has no sandbox any more, and needs none."""
        self.commands.pop(trial, None)
        self.shown.pop(trial, None)
        self.died.pop(trial, None)

    def died_in(self, trial: str) -> int | None:
        """The turn in which the trial's sandbox ran out of memory, if it did."""
        return self.died.get(trial)

    def turns(self, trial: str) -> list[tuple[int, str, str]]:
        """(turn, command, what it showed) of every turn that was executed, in order."""
        commands = self.commands.get(trial, {})
        return [(turn, commands[turn], shown) for turn, shown in sorted(self.shown.get(trial, {}).items())]


async def restore(trial: str, history: History, run: Callable[[int, str], Awaitable[str | None]]) -> int:
    """Run the trial's commands again in its new sandbox; ``run`` runs a turn's command and returns what it shows, or None
    when the sandbox runs out of memory: where it did so the first time, what it wrote until then is there again. Returns how
    many there were. Raises ``Diverged``, and what ``run`` raises."""
    turns = history.turns(trial)
    for turn, command, shown in turns:
        now = await run(turn, command)
        died = history.died_in(trial) == turn
        if died != (now is None) or (now is not None and now != shown):
            raise Diverged(turn, OUT_OF_MEMORY if died else shown, OUT_OF_MEMORY if now is None else now)
    return len(turns)


class Restored(NamedTuple):
    """A sandbox was made again, and so many turns' commands were run in it."""

    turns: int
    seconds: float


class Restoring:
    """Has things happen in sandboxes that hold all that was run in them, whatever became of these in between.

    Args:
        history: what is known now.
        exists: raises ``SandboxGone`` when the trial has no sandbox.
        run: as for ``restore``, with the trial in front; a key that was run already is answered from the sandbox's store.
        make_again: makes a fresh sandbox for the trial.
    """

    def __init__(
        self,
        history: Callable[[], History],
        exists: Callable[[str], Awaitable[None]],
        run: Callable[[str, int, str], Awaitable[str | None]],
        make_again: Callable[[str], Awaitable[None]],
    ) -> None:
        self._history = history
        self._exists = exists
        self._run = run
        self._make_again = make_again
        self._whole: set[str] = set()
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    def whole(self, trial: str) -> None:
        """The trial's sandbox is known to hold all that was run in it."""
        self._whole.add(trial)

    def forget(self, trial: str) -> None:
        """The trial has no sandbox any more."""
        self._whole.discard(trial)
        self._locks.pop(trial, None)

    async def inside(self, trial: str, call: Callable[[], Awaitable[T]]) -> tuple[Restored | None, T]:
        """What ``call`` does in the trial's sandbox, and how that one was made again, if it was. Raises ``Diverged``, and
        what the functions and ``call`` raise."""
        restored = await self._have_whole(trial)
        try:
            return restored, await call()
        except SandboxGone:
            self._whole.discard(trial)
            restored = await self._have_whole(trial) or restored
            return restored, await call()

    async def _have_whole(self, trial: str) -> Restored | None:
        async with self._locks[trial]:
            if trial in self._whole:
                return None
            restored = None
            try:
                await self._exists(trial)
                # Answered from the sandbox's store, but for what a restoring that was cut short had not come to.
                await restore(trial, self._history(), partial(self._run, trial))
            except SandboxSealed:  # as only a whole one ever is
                pass
            except SandboxGone:
                started_s = anyio.current_time()
                await self._make_again(trial)
                turns = await restore(trial, self._history(), partial(self._run, trial))
                restored = Restored(turns, anyio.current_time() - started_s)
            self._whole.add(trial)
            return restored
