"""Reading several journals in causal order.

Guarantees: a frame is delivered only after every frame that its vector names, of the journals this reader reads; each
journal's frames in order, each once; what is deliverable at the same time goes by journal name, so the order of what is
there is a function of what is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from t1actors.log.frame import Frame
from t1actors.log.interface import JournalReader, Log

_READ_FRAMES = 256
_POLL_FRAMES = 1024


class _Source:
    """One journal: what was read and not delivered yet, the sequence behind the last delivered frame, and whether the
    last look found nothing new."""

    def __init__(self, reader: JournalReader, position: int) -> None:
        self.reader = reader
        self.position = position
        self.pending: deque[Frame] = deque()
        self.dry = False


class CausalReader:
    """Reads ``positions``' journals, each from the given sequence on, and those added later."""

    def __init__(self, log: Log, *, positions: Mapping[str, int]) -> None:
        self._log = log
        self._sources: dict[str, _Source] = {}
        for journal, from_sequence in sorted(positions.items()):
            self.add(journal, from_sequence)

    def add(self, journal: str, from_sequence: int = 0) -> None:
        """Read ``journal`` too. What is read already stays where it is."""
        if journal in self._sources:
            return
        source = _Source(self._log.open_reader(journal, from_sequence=from_sequence), from_sequence)
        self._sources = dict(sorted({**self._sources, journal: source}.items()))

    def poll(self, *, max_frames: int = _POLL_FRAMES) -> list[Frame]:
        """The next frames, at most ``max_frames``; empty only when nothing more can be delivered now."""
        delivered: list[Frame] = []
        while len(delivered) < max_frames:
            self._fill()
            source = next((source for source in self._sources.values() if self._deliverable(source)), None)
            if source is not None:
                frame = source.pending.popleft()
                source.position = frame.next_sequence
                delivered.append(frame)
            elif not self._look_again():
                break
        return delivered

    def position(self, journal: str) -> int:
        """The sequence behind the last delivered frame of ``journal``."""
        return self._sources[journal].position

    def held(self) -> list[tuple[Frame, str, int]]:
        """The first waiting frame of each journal, with the journal and sequence it waits for."""
        first = [source.pending[0] for source in self._sources.values() if source.pending]
        waiting = [(frame, self._missing(frame)) for frame in first]
        return [(frame, *missing) for frame, missing in waiting if missing is not None]

    def close(self) -> None:
        """Close every reader."""
        for source in self._sources.values():
            source.reader.close()

    def _fill(self) -> None:
        """Have the first frame of every journal at hand, unless it has none now."""
        for source in self._sources.values():
            if not source.pending and not source.dry:
                source.pending.extend(source.reader.read(max_frames=_READ_FRAMES))
                source.dry = not source.pending

    def _look_again(self) -> bool:
        """Whether journals that were dry have grown: what a held frame waits for was durable before it."""
        dry = [source for source in self._sources.values() if source.dry]
        for source in dry:
            source.dry = False
        self._fill()
        return any(not source.dry for source in dry)

    def _deliverable(self, source: _Source) -> bool:
        return bool(source.pending) and self._missing(source.pending[0]) is None

    def _missing(self, frame: Frame) -> tuple[str, int] | None:
        """The first journal and sequence that ``frame`` rests on and that was not delivered."""
        for journal, sequence in frame.head.vector.items():
            source = self._sources.get(journal)
            if source is not None and journal != frame.journal and sequence >= source.position:
                return journal, sequence
        return None
