"""How long things take in a simulation. Another draw of these is another interleaving of the same run."""

from __future__ import annotations

import random


def undrawn() -> Delays:
    """Everything takes what it always takes."""
    return Delays(random.Random(0), scale=0.0)


class Delays:
    """``scale`` 0 draws nothing: the run that nobody disturbs."""

    def __init__(self, draw: random.Random, *, scale: float = 1.0) -> None:
        self._draw = draw
        self._scale = scale
        self._paces: dict[str, float] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self._append_s = draw.choice([0.001, 0.005, 0.05]) * scale
        self._notice_s = draw.choice([0.001, 0.02, 0.3]) * scale
        self._misses = draw.choice([0.0, 0.0, 0.2]) * scale
        self._work_s = draw.choice([0.02, 0.2, 1.0]) if scale else 0.2
        self.pace = self._work_s / 0.2
        """How much longer a run takes than an undisturbed one, about."""

    def before_append(self) -> float:
        return self._some(self._append_s)

    def after_append(self) -> float:
        return self._some(self._append_s)

    def notice(self, actor: str, journal: str) -> float:
        """The same for a pair: one reader may be slow on one journal."""
        if (actor, journal) not in self._slow:
            slow = 10.0 if self._scale and self._draw.random() < 0.1 else 1.0
            self._slow[actor, journal] = self._some(self._notice_s) * slow
        return self._slow[actor, journal]

    def chance(self) -> float:
        return self._draw.random()

    def misses_notice(self) -> bool:
        return self._draw.random() < self._misses

    def work(self, what: str, weight: float = 1.0) -> float:
        """Of an effect. One kind may be much faster or slower than it usually is."""
        if not self._scale:
            return weight * self._work_s
        if what not in self._paces:
            self._paces[what] = self._draw.choice([0.1, 1.0, 1.0, 4.0])
        return weight * self._work_s * self._paces[what] * (0.5 + self._draw.random())

    def start(self) -> float:
        """Of a process, until it opens its journal."""
        return 0.1 + self._some(1.0 * self._scale)

    def _some(self, mean_s: float) -> float:
        return self._draw.expovariate(1.0 / mean_s) if mean_s else 0.0
