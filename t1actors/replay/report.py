"""What a replay found: level by level, and where the first difference lies.

Levels in order: batch; the critic's weights before, values, losses and gradients of its updates, weights, optimizer; the
actor's weights before, old log-probs, losses and gradients, weights, optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass

BIT_EXACT = 0
DIFFERS = 1
IMPOSSIBLE = 2
NAMED = 8
"""Differing operations that the text names."""


@dataclass(frozen=True)
class Level:
    """One digest of the step. ``part`` is "batch", "critic" or "actor"."""

    part: str
    level: str
    recorded: str
    recomputed: str

    @property
    def equal(self) -> bool:
        return self.recorded == self.recomputed

    @property
    def name(self) -> str:
        return self.level if self.part == self.level else f"{self.part} {self.level}"


@dataclass(frozen=True)
class Difference:
    """The first thing that differs. ``update`` counts from 1; ``token`` is a sampled token of the trial, from 0."""

    step: int
    level: str
    tensor: str = ""
    trial: str = ""
    token: int | None = None
    update: int | None = None
    note: str = ""

    def text(self) -> str:
        """One line: step, level, and the place as far as it is known."""
        where = [
            f"update {self.update}" if self.update is not None else "",
            f"tensor {self.tensor}" if self.tensor else "",
            f"trial {self.trial}" if self.trial else "",
            f"sampled token {self.token}" if self.token is not None else "",
            self.note,
        ]
        return f"step {self.step}: {self.level} differs: " + (", ".join(w for w in where if w) or "place not recorded")


@dataclass(frozen=True)
class EnvironmentChange:
    """A line of the environment fingerprint that is not as recorded."""

    part: str
    key: str
    recorded: str
    now: str


@dataclass(frozen=True)
class OperationsHere:
    """How the numeric operations of this machine compare with those of the part that recorded: ``differing`` of the ``known``
    ones, by name."""

    part: str
    known: int
    differing: tuple[str, ...]

    def text(self) -> str:
        """One line."""
        if not self.differing:
            return f"all {self.known} operations give the recorded bits here"
        more = len(self.differing) - NAMED
        names = ", ".join(self.differing[:NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"{len(self.differing)} of {self.known} operations give other bits here: {names}"


@dataclass(frozen=True)
class ReplayReport:
    """``recomputed`` are the steps that had to be run again, this one last; ``first`` the first difference among them."""

    step: int
    purpose: str
    levels: tuple[Level, ...] = ()
    recomputed: tuple[int, ...] = ()
    first: Difference | None = None
    environment: tuple[EnvironmentChange, ...] = ()
    operations: tuple[OperationsHere, ...] = ()
    edited: bool = False
    impossible: str = ""
    """Why the step could not be run again; empty when it was."""

    @property
    def bit_exact(self) -> bool:
        return not self.impossible and self.first is None

    @property
    def exit_status(self) -> int:
        """0 bit-exact, 1 something differs, 2 the step could not be run again."""
        return IMPOSSIBLE if self.impossible else BIT_EXACT if self.first is None else DIFFERS

    def _environment(self) -> dict[str, list[str]]:
        """What there is to say of it, and of which parts."""
        said: dict[str, list[str]] = {}
        for change in self.environment:
            said.setdefault(f"{change.key} was {change.recorded!r}, is {change.now!r}", []).append(change.part)
        changed = {change.part for change in self.environment}
        for here in self.operations:
            if here.differing or here.part in changed:
                said.setdefault(here.text(), []).append(here.part)
        return said

    def text(self) -> str:
        """The report as lines for a terminal."""
        lines = [f"step {self.step} ({self.purpose})" if self.purpose else f"step {self.step}"]
        if len(self.recomputed) > 1:
            lines.append(f"  recomputed from step {self.recomputed[0]}: {len(self.recomputed)} steps")
        for level in self.levels:
            verdict = "same" if level.equal else f"recorded {level.recorded[:12]}, now {level.recomputed[:12]}"
            lines.append(f"  {level.name:<24} {verdict}")
        for said, parts in self._environment().items():
            lines.append(f"  {' and '.join(parts)} environment: {said}")
        if self.impossible:
            lines.append(f"cannot replay: {self.impossible}")
        elif self.first is None:
            lines.append("bit-exact")
        else:
            lines.append(self.first.text())
        return "\n".join(lines)
