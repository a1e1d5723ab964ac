"""The frames that an actor is to apply next, in causal order, one at a time.

One at a time, because applying a frame may teach the actor a new journal (ActorStarted) on which the next frame
rests: a reader that hands out a list, as ``log.causal`` does, would be too early with the rest of it.

Guarantees: ``next`` gives each frame of each followed journal once, in order, and only after all that it rests on in
the followed journals was applied. Ties go to the journal followed first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from t1actors.log.interface import Frame, Log

MAX_FRAMES = 256


class Inbox:
    def __init__(self, log: Log, positions: Mapping[str, int]) -> None:
        """``positions``: of each journal that is followed from the start, the next sequence to apply."""
        self._log = log
        self._positions = dict(positions)
        self._readers = {name: log.open_reader(name, from_sequence=at) for name, at in positions.items()}
        self._queues: dict[str, deque[Frame]] = {name: deque() for name in positions}
        self._stale = set(positions)
        """Journals that may hold more than was read."""

    def follows(self, journal: str) -> bool:
        return journal in self._positions

    def follow(self, journal: str) -> None:
        """Reads ``journal`` too, from its start."""
        self._positions[journal] = 0
        self._readers[journal] = self._log.open_reader(journal)
        self._queues[journal] = deque()
        self._stale.add(journal)

    def news(self) -> None:
        """Some journal may have grown."""
        self._stale.update(self._readers)

    def position(self, journal: str) -> int:
        """The next sequence of ``journal`` to apply. It can lie inside a frame, after a restart."""
        return self._positions[journal]

    def next(self) -> Frame | None:
        """The next frame to apply, then to be told to ``applied``; None when there is none now."""
        while True:
            for queue in self._queues.values():
                if queue and self._ready(queue[0]):
                    return queue.popleft()
            if not self._fill():
                return None

    def applied(self, frame: Frame) -> None:
        self._positions[frame.journal] = frame.next_sequence

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def _ready(self, frame: Frame) -> bool:
        positions = self._positions
        for journal, sequence in frame.head.vector.items():
            position = positions.get(journal)
            if position is not None and position <= sequence and journal != frame.journal:
                return False
        return True

    def _fill(self) -> bool:
        """Reads on where all that was read is applied; whether there was anything."""
        found = False
        for journal in list(self._stale):
            queue = self._queues[journal]
            if not queue:
                frames = self._readers[journal].read(max_frames=MAX_FRAMES)
                queue.extend(frames)
                found = found or bool(frames)
                if len(frames) < MAX_FRAMES:
                    self._stale.discard(journal)
        return found
