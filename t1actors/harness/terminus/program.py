"""What a turn of the Terminus protocol comes to: what is typed, what is remarked, and where the episode stands after it.

A ``Program`` is a turn's ``command`` in the log, as JSON. It holds all that the pool needs to perform the turn and to say
what the model is shown, and all that the next turn needs to know of this one.

Guarantees: a program is a function of the answer, of the program before it, and of the limits. No wait in it is longer than
the limits allow, and all of them together are not either.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from t1actors.harness.terminus.answer import Answer, Command

SUBMITS = 2
"""So many answers, one after the other, must say that the task is complete."""


class Keys(msgspec.Struct, frozen=True):
    """``text`` is typed, then ``wait_s`` pass."""

    text: str
    wait_s: float


class Program(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``complaint``: the answer could not be read, and nothing is typed. ``unread``: so many answers up to this one, without
    a break, could not be read. ``complete``: so many said that the task is complete; those that could not be read aside."""

    keys: tuple[Keys, ...] = ()
    warnings: tuple[str, ...] = ()
    complaint: str = ""
    unread: int = 0
    complete: int = 0

    @property
    def submits(self) -> bool:
        """Whether the episode ends once this was performed."""
        return self.complete >= SUBMITS

    def text(self) -> str:
        """As it stands in the log."""
        return msgspec.json.encode(self).decode()


NOTHING_YET = Program()


class WaitLimits(NamedTuple):
    """``one_s``: the longest wait after one command; ``all_s``: of a turn."""

    one_s: float
    all_s: float


def program_from(text: str) -> Program:
    """What ``Program.text`` wrote; ``NOTHING_YET`` for the empty text."""
    return msgspec.json.decode(text, type=Program) if text else NOTHING_YET


def program_of(answer: Answer, previous: Program, limits: WaitLimits) -> Program:
    """What ``answer`` comes to after ``previous``."""
    if answer.complaint:
        return Program(
            complaint=answer.complaint,
            warnings=answer.warnings,
            unread=previous.unread + 1,
            complete=previous.complete,
        )
    keys, warnings = _waits(answer.commands, limits)
    return Program(
        keys=keys,
        warnings=(*answer.warnings, *warnings),
        complete=previous.complete + 1 if answer.complete else 0,
    )


def _waits(commands: tuple[Command, ...], limits: WaitLimits) -> tuple[tuple[Keys, ...], list[str]]:
    keys: list[Keys] = []
    left_s = limits.all_s
    cut = False
    for command in commands:
        wait_s = min(command.duration_s, limits.one_s, left_s)
        cut = cut or wait_s < min(command.duration_s, limits.one_s)
        left_s -= wait_s
        keys.append(Keys(_typed(command.keystrokes), wait_s))
    return tuple(keys), [f"all durations together were cut to {limits.all_s:g} s"] if cut else []


def _typed(keystrokes: str) -> str:
    """Without what no terminal can be given: half a surrogate pair becomes "?", NUL is left out."""
    return keystrokes.encode("utf-8", "replace").decode().replace("\0", "")
