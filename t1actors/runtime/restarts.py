"""When a dead actor is started again, and when the run gives up. Pure: time and chance are given.

Guarantees: at most ``budget`` restarts within any window of ten minutes; the delay doubles with each death in a row
up to ``backoff_max_s``, is jittered so that actors that died together do not come back together, and begins anew
after a healthy life.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 600.0
HEALTHY_S = 10.0


@dataclass
class Restarts:
    """One actor's deaths, and what follows from the next."""

    budget: int
    backoff_s: float
    backoff_max_s: float
    _deaths: deque[float] = field(default_factory=deque[float])
    _in_a_row: int = 0

    def died(self, *, now_s: float, lived_s: float, chance: float) -> float | None:
        """The delay before the next start; None: the budget is spent. ``chance`` lies in [0, 1)."""
        while self._deaths and self._deaths[0] <= now_s - WINDOW_S:
            self._deaths.popleft()
        if len(self._deaths) >= self.budget:
            return None
        self._deaths.append(now_s)
        self._in_a_row = 0 if lived_s >= HEALTHY_S else self._in_a_row
        # Bounded exponent: 2 ** 1000 is no float.
        delay_s = min(self.backoff_max_s, self.backoff_s * 2 ** min(self._in_a_row, 30))
        self._in_a_row += 1
        return delay_s * (0.5 + chance / 2)
