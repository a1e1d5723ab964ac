"""What a part of the evidence is: a question, what it costs, and a function that answers it.

A part is a module with a ``PART``; ``bench.learning.parts`` lists them. ``run`` gets a ``Context`` and gives an ``Answer``:
tables, gates and perhaps pictures. A gate is a claim that is made elsewhere (README, docs) with the figure that was observed
for it: when it does not hold the command fails. A *result*, whatever it says, is a table: that a critic does not beat a batch
mean is a finding and no failure.

Guarantees: what two parts both need is made once in an invocation (``Context.once``).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar, cast

from matplotlib.axes import Axes

from bench.tables import Table
from t1actors.sandbox.interface import SandboxBackend

T = TypeVar("T")


@dataclass(frozen=True)
class Gate:
    """``claim`` in words, with its bound ("explained variance of the first 4 steps above 0.2"); ``observed`` in words too."""

    claim: str
    observed: str
    holds: bool


@dataclass(frozen=True)
class Picture:
    """``docs/pictures/NAME.png``; ``draw`` draws into axes that are made for it."""

    name: str
    title: str
    draw: Callable[[Axes], None]


@dataclass(frozen=True)
class Answer:
    tables: tuple[Table, ...]
    gates: tuple[Gate, ...] = ()
    pictures: tuple[Picture, ...] = ()


@dataclass
class Context:
    """What an invocation offers its parts. ``quick``: sizes that show that a part works, nothing else."""

    backend: SandboxBackend
    quick: bool = False
    say: Callable[[str], None] = print
    """Progress, a line at a time."""
    _made: dict[Hashable, object] = field(default_factory=dict[Hashable, object])

    async def once(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """What ``make`` gave when ``key`` was first asked for. A key names all that the result depends on."""
        if key not in self._made:
            self._made[key] = await make()
        return cast(T, self._made[key])


@dataclass(frozen=True)
class Part:
    """``cpu_seconds``: roughly, of one idle core, when it runs alone in full size."""

    name: str
    question: str
    cpu_seconds: int
    run: Callable[[Context], Awaitable[Answer]]


def process_seconds() -> float:
    """CPU seconds of this process, all threads. What ran in sandboxes is not in it: nobody waits for their processes."""
    return time.process_time()
