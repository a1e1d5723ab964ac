"""What goes wrong in a simulation, and when: a function of the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, TypeAlias

import anyio

from tests.simulation.universe import Universe

Kind: TypeAlias = Literal[
    "process", "two", "supervisor", "zombie", "power", "hang", "stuck", "curse", "clock", "interrupt", "disk"
]
WEIGHTS: dict[Kind, int] = {
    "process": 5,
    "two": 2,
    "supervisor": 2,
    "zombie": 4,
    "power": 3,
    "hang": 1,
    "stuck": 1,
    "curse": 1,
    "clock": 1,
    "interrupt": 1,
    "disk": 1,
}
IN_CODE = ("process", "supervisor", "power")
"""What can happen between two system calls, or before and after an append or an act."""


@dataclass(frozen=True)
class Planned:
    """``at``: seconds, or the how manieth moment or system call."""

    kind: Kind
    where: Literal["time", "moment", "syscall"]
    at: float

    def __str__(self) -> str:
        return (
            f"{self.kind} at {self.where} {self.at:.3f}"
            if self.where == "time"
            else f"{self.kind} at {self.where} {self.at:.0f}"
        )


def plan(draw: random.Random, *, seconds: float, moments: int, syscalls: int) -> list[Planned]:
    """Of a run that takes so long when nobody disturbs it."""
    planned: list[Planned] = []
    for _ in range(draw.choice([1, 2, 4, 6, 10])):
        where = draw.choice(["time", "moment", "syscall"])
        if where == "time":
            planned.append(
                Planned(draw.choices([*WEIGHTS], [*WEIGHTS.values()])[0], "time", draw.uniform(0, 1.2 * seconds))
            )
        else:
            most = moments if where == "moment" else syscalls
            planned.append(Planned(draw.choice(IN_CODE), where, draw.randint(1, most)))  # pyright: ignore
    return planned


class Faults:
    """Brings about what is planned."""

    def __init__(self, universe: Universe, planned: list[Planned], draw: random.Random) -> None:
        self._universe = universe
        self._planned = planned
        self._draw = draw
        universe.doom = self._doom
        for fault in planned:
            if fault.where == "moment":
                universe.at_nth_moment[int(fault.at)] = fault.kind
            elif fault.where == "syscall":
                universe.at_syscall[int(fault.at)] = fault.kind

    async def run(self) -> None:
        """Those that have a time."""
        for fault in sorted((f for f in self._planned if f.where == "time"), key=lambda fault: fault.at):
            await anyio.sleep_until(fault.at)
            self._happen(fault.kind)

    def _doom(self, kind: str) -> None:
        """In the middle of somebody's code."""
        if kind == "power":
            self._universe.power_cut(self._draw)
        else:
            self._happen(kind)

    def _happen(self, kind: str) -> None:
        universe, draw = self._universe, self._draw
        living = [child.incarnation for child in universe.children.values() if not child.incarnation.dead]
        match kind:
            case "process" | "two":
                for incarnation in draw.sample(living, min(len(living), 2 if kind == "two" else 1)):
                    universe.kill(incarnation, "killed")
            case "supervisor":
                universe.kill_supervisor(linger_s=0.005)
            case "zombie":
                universe.kill_supervisor(linger_s=draw.uniform(1.0, 20.0))
            case "power":
                universe.power_cut(draw)
            case "hang" if living:
                hung = draw.choice(living)
                hung.frozen = True
                universe.deaths.append(f"{anyio.current_time():.3f} {hung} hangs")
            case "stuck" if living:
                working = [one for one in living if one.name in ("critic", "actor", "sampler", "sampler1")]
                if working:
                    incarnation = draw.choice(working)
                    incarnation.stuck = True
                    universe.deaths.append(f"{anyio.current_time():.3f} the work of {incarnation} hangs")
            case "curse" if not universe.exact:  # its trials are replaced: the batch is another
                universe.cursed = "sampler1"
                for incarnation in living:
                    if incarnation.name == universe.cursed:
                        universe.kill(incarnation, "cursed")
            case "clock":
                universe.wall_step_ns += int(draw.uniform(-3600, 3600) * 1e9)
            case "interrupt":
                universe.interrupt.set()
            case "disk":
                universe.free_bytes = 0
                universe.nursery.start_soon(self._free_the_disk)
            case _:
                pass

    async def _free_the_disk(self) -> None:
        await anyio.sleep(self._draw.uniform(1, 60))
        self._universe.free_bytes = 10**12
