"""A trial's sandbox made again after it was lost with the machine, or with everything that was stopped at once.

What an agent did is known: its commands are events. So a lost sandbox is no lost trial: a fresh one is made and the commands
are run again, in order, under their keys, and the trial goes on as if nothing had happened.

Guarantees: what a command prints now is compared with what it printed then; where it differs, the trial cannot go on (its
tokens answer what it was shown), and ``Diverged`` says which turn. Commands that are functions of the task print the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from t1actors.events import AnyEvent, TurnExecuted, TurnSampled, UnknownEvent

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

    _commands: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    _shown: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    _died: dict[str, int] = field(default_factory=dict[str, int])
    """Trials whose sandbox ran out of memory, and in which turn."""

    def fold(self, event: AnyEvent | UnknownEvent) -> None:
        """Note a turn's command, or what came of it."""
        match event:
            case TurnSampled() if event.execute:
                self._commands.setdefault(event.trial, {})[event.turn] = event.command
            case TurnExecuted():
                self._shown.setdefault(event.trial, {})[event.turn] = event.observation
                if event.sandbox_died:
                    self._died[event.trial] = event.turn
            case _:
                pass

    def forget(self, trial: str) -> None:
        """The trial has no sandbox any more, and needs none."""
        self._commands.pop(trial, None)
        self._shown.pop(trial, None)
        self._died.pop(trial, None)

    def died_in(self, trial: str) -> int | None:
        """The turn in which the trial's sandbox ran out of memory, if it did."""
        return self._died.get(trial)

    def turns(self, trial: str) -> list[tuple[int, str, str]]:
        """(turn, command, what it showed) of every turn that was executed, in order."""
        commands = self._commands.get(trial, {})
        return [(turn, commands[turn], shown) for turn, shown in sorted(self._shown.get(trial, {}).items())]


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
