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

    def fold(self, event: AnyEvent | UnknownEvent) -> None:
        """Note a turn's command, or what came of it."""
        match event:
            case TurnSampled() if event.execute:
                self.commands.setdefault(event.trial, {})[event.turn] = event.command
            case TurnExecuted():
                self.shown.setdefault(event.trial, {})[event.turn] = event.observation
            case _:
                pass

    def forget(self, trial: str) -> None:
        """The trial has no sandbox any more, and needs none."""
        self.commands.pop(trial, None)
        self.shown.pop(trial, None)

    def turns(self, trial: str) -> list[tuple[int, str, str]]:
        """(turn, command, what it showed) of every turn that was executed, in order."""
        commands = self.commands.get(trial, {})
        return [(turn, commands[turn], shown) for turn, shown in sorted(self.shown.get(trial, {}).items())]


async def restore(trial: str, history: History, run: Callable[[int, str], Awaitable[str]]) -> int:
    """Run the trial's commands again in its new sandbox; ``run`` runs a turn's command and returns what it shows. Returns how
    many there were. Raises ``Diverged``, and what ``run`` raises."""
    turns = history.turns(trial)
    for turn, command, shown in turns:
        now = await run(turn, command)
        if now != shown:
            raise Diverged(turn, shown, now)
    return len(turns)
