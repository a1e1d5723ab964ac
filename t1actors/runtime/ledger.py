"""What an actor has applied and emitted and not yet committed, cut into frames.

Guarantees:
- Inputs are recorded in the order they were applied, as runs; a run ends wherever something was emitted, so that
  whoever folds the frame again knows which own events came between which inputs.
- One decision's events never straddle two frames, and no frame exceeds ``MAX_FRAME_BYTES``.
- Events are numbered as they will be in the journal: own results can be referred to before they are written.

A batch that emits nothing can wait: its inputs would only be read again. It is committed with the next emission,
when it has grown long, or at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from t1actors.log.interface import MAX_FRAME_BYTES, InputRun
from t1actors.runtime.errors import HostError
from t1actors.runtime.intents import Intent
from t1actors.runtime.snapshots import Taken
from t1actors.runtime.told import Told

HEAD_BYTES = 4096
"""Room kept for a frame's header and its head without the input runs: vector, code version, times."""
RUN_BYTES = 128
"""Most bytes of one input run: a journal name of 100, three numbers."""
MAX_RUNS = 1024
"""Input runs in one frame, and idle inputs kept back: bounds what a crash makes a recovery read again."""
MAX_IDLE_INPUTS = 4096


@dataclass(slots=True)
class Run:
    """A growing ``InputRun``."""

    journal: str
    first: int
    last: int
    emitted: int


@dataclass(slots=True)
class Batch:
    """The content of one frame. ``begins`` and ``cancels`` are to happen once it is durable."""

    base_sequence: int
    runs: list[Run] = field(default_factory=list[Run])
    events: list[bytes] = field(default_factory=list[bytes])
    events_bytes: int = 0
    input_count: int = 0
    vector: Mapping[str, int] = field(default_factory=dict[str, int])
    begins: list[Intent] = field(default_factory=list[Intent])
    cancels: list[Intent] = field(default_factory=list[Intent])
    told: list[Told] = field(default_factory=list[Told])
    """Who waits for events of it to be durable."""
    taken: Taken | None = None
    """The actor as it is at this frame's end, when a snapshot of it is wanted."""

    def inputs(self) -> tuple[InputRun, ...]:
        """What the commit head states of the inputs."""
        return tuple(InputRun(run.journal, run.first, run.last, run.emitted) for run in self.runs)


class Ledger:
    """See the module."""

    def __init__(self, name: str, *, next_sequence: int, vector: Mapping[str, int]) -> None:
        self._name = name
        self._vector = dict(vector)
        self._current = Batch(next_sequence)
        self._sealed: deque[Batch] = deque()

    @property
    def next_sequence(self) -> int:
        """The sequence that the next emitted event gets."""
        return self._current.base_sequence + len(self._current.events)

    @property
    def backlog(self) -> int:
        """Frames that are full and wait to be written."""
        return len(self._sealed)

    def rest_on(self, vector: Mapping[str, int]) -> None:
        """What is emitted from here on rests on all that ``vector`` names."""
        mine = self._vector
        for journal, sequence in vector.items():
            if mine.get(journal, -1) < sequence and journal != self._name:
                mine[journal] = sequence

    def room_for(self, events_bytes: int) -> None:
        """Starts a new frame unless events of ``events_bytes``, from one decision, still fit into the current one.
        Raises ``HostError`` when they would fit into none."""
        batch = self._current
        if batch.events_bytes + events_bytes + HEAD_BYTES + RUN_BYTES * (len(batch.runs) + 1) > MAX_FRAME_BYTES:
            if events_bytes + HEAD_BYTES + RUN_BYTES > MAX_FRAME_BYTES:
                raise HostError(
                    f"actor {self._name}: one decision emitted {events_bytes:,} bytes, which no frame of "
                    f"{MAX_FRAME_BYTES:,} holds; put large payloads into blobs, or decide in smaller parts"
                )
            self._seal()
        elif len(batch.runs) >= MAX_RUNS:
            self._seal()

    def consumed(self, journal: str, sequence: int) -> None:
        """One foreign event was applied and nothing was emitted."""
        batch = self._current
        run = batch.runs[-1] if batch.runs else None
        if run is not None and run.last == sequence - 1 and run.journal == journal and run.emitted == 0:
            run.last = sequence
        else:
            if len(batch.runs) >= MAX_RUNS:
                self._seal()
                batch = self._current
            batch.runs.append(Run(journal, sequence, sequence, 0))
        batch.input_count += 1
        self._vector[journal] = sequence

    def emitted(self, journal: str, sequence: int, events: Sequence[bytes]) -> Batch:
        """One foreign event was applied and its decision emitted ``events``; ``room_for`` them was made."""
        self.consumed(journal, sequence)
        batch = self._current
        batch.runs[-1].emitted = len(events)
        return self._append(batch, events)

    def own(self, results: Sequence[bytes], events: Sequence[bytes]) -> Batch:
        """Own ``results`` were folded, the decision on the last of them emitted ``events``; ``room_for`` both was
        made."""
        batch = self._current
        first = self.next_sequence
        batch.runs.append(Run(self._name, first, first + len(results) - 1, len(events)))
        batch.input_count += 1
        self._append(batch, results)
        return self._append(batch, events)

    def take(self, *, all_of_it: bool = False) -> Batch | None:
        """The next frame's content, to be written now; None when nothing needs to be."""
        if not self._sealed:
            batch = self._current
            idle = not batch.events and batch.input_count < MAX_IDLE_INPUTS
            if not batch.runs or (idle and not all_of_it):
                return None
            self._seal()
        return self._sealed.popleft()

    def end_frame(self) -> Batch | None:
        """Have the frame end with what was applied last; its content. None: nothing was since the last frame."""
        if not self._current.runs:
            return None
        self._seal()
        return self._sealed[-1]

    @property
    def due(self) -> bool:
        """Whether ``take`` has something."""
        return bool(self._sealed) or bool(self._current.events) or self._current.input_count >= MAX_IDLE_INPUTS

    def _append(self, batch: Batch, events: Sequence[bytes]) -> Batch:
        batch.events.extend(events)
        batch.events_bytes += sum(map(len, events))
        return batch

    def _seal(self) -> None:
        batch = self._current
        batch.vector = dict(self._vector)
        self._current = Batch(batch.base_sequence + len(batch.events))
        self._sealed.append(batch)
