"""How much time is left, from how fast it went: always a range, and nothing before two measurements.

Guarantees: pure (times are arguments); the range contains what is left if everything that is still to come takes between
the fastest and the slowest of what was measured last; what takes longer than anything before moves the upper end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

RECENT = 6
"""Measurements that say how long the next ones may take."""
LEAST = 2
"""Measurements before anything is said."""
WINDOW_S = 1.0
WINDOW_SHARE = 0.05
"""Fast units are measured together, over at least this long, and this share of the time so far: else the fastest and the
slowest of many short measurements would say nothing of a long time."""


@dataclass(frozen=True)
class TimeLeft:
    """If all goes as fast as the fastest, and as slow as the slowest, of what was measured last."""

    low_s: float
    high_s: float


class Pace:
    """Of work in equal units, of which ``total`` are to be done."""

    def __init__(self, total: float) -> None:
        self._total = total
        self._done = 0.0
        self._begun_s: float | None = None
        self._mark: tuple[float, float] | None = None
        """Time and units of the last measurement's end."""
        self._seconds_per_unit: deque[float] = deque(maxlen=RECENT)

    def note(self, done: float, now_s: float) -> None:
        """``done`` units are done; the first call starts the clock."""
        self._done = done
        if self._mark is None or self._begun_s is None:
            self._begun_s, self._mark = now_s, (now_s, done)
            return
        since_s, before = now_s - self._mark[0], self._mark[1]
        if done > before and since_s >= max(WINDOW_S, WINDOW_SHARE * (now_s - self._begun_s)):
            self._seconds_per_unit.append(since_s / (done - before))
            self._mark = (now_s, done)

    def left(self, now_s: float) -> TimeLeft | None:
        """None until two measurements are there, and when nothing is left."""
        if self._mark is None or len(self._seconds_per_unit) < LEAST or self._done >= self._total:
            return None
        at_s, before = self._mark
        since_s, remaining = max(0.0, now_s - at_s), self._total - before
        fastest, slowest = min(self._seconds_per_unit), max(self._seconds_per_unit)
        # One unit more than is done has been worked at since: longer than ever is the slowest yet.
        begun = self._done - before + 1
        slowest = max(slowest, since_s / begun)
        least_s = fastest * max(0.0, remaining - begun)
        return TimeLeft(max(least_s, fastest * remaining - since_s), max(0.0, slowest * remaining - since_s))
