"""The log as one simulated process sees it: the real files and codec, on a disk and a clock that are not.

What is not real: how long an append takes, when a frame that is durable is noticed by another process, and whether the
process still lives. A frame that lay there when a reader was opened is seen at once.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import anyio

from t1actors.log.filelog import FileLog
from t1actors.log.interface import CommitHead, Frame, JournalReader, Snapshot, Watch
from t1actors.runtime.appending import Appending

if TYPE_CHECKING:
    from tests.simulation.incarnation import Incarnation
    from tests.simulation.universe import Universe

T = TypeVar("T")


@dataclass
class Journals:
    """What the simulation knows of all journals: when each frame became durable, and who waits for which."""

    durable_at: dict[tuple[str, int, int], float] = field(default_factory=dict)
    watches: list[SimWatch] = field(default_factory=list)


class SimLog:
    """A ``Log`` for one incarnation."""

    def __init__(self, universe: Universe, incarnation: Incarnation) -> None:
        self._universe = universe
        self.incarnation = incarnation

    def files(self) -> FileLog:
        return self._universe.filelog()

    def open_writer(self, name: str) -> SimWriter:
        with self._universe.running(self.incarnation):
            return SimWriter(self._universe, self.incarnation, self.files().open_writer(name))

    def open_reader(self, name: str, *, from_sequence: int = 0) -> SimReader:
        reader = self.files().open_reader(name, from_sequence=from_sequence)
        return SimReader(self._universe, self.incarnation, reader)

    def watch(self) -> AbstractAsyncContextManager[Watch]:
        return self._watching()

    def journals(self) -> list[str]:
        return self.files().journals()

    def kept_from(self, name: str) -> int:
        return self.files().kept_from(name)

    def snapshots(self, name: str) -> list[Snapshot]:
        self.incarnation.gate()
        return self.files().snapshots(name)

    @asynccontextmanager
    async def _watching(self) -> AsyncGenerator[SimWatch]:
        watch = SimWatch(self._universe, self.incarnation)
        watches = self._universe.journals.watches
        watches.append(watch)
        try:
            yield watch
        finally:
            watches.remove(watch)


def appending(universe: Universe, incarnation: Incarnation) -> Appending:
    """A call takes a while until it happens, and another until its caller knows."""

    async def appending(call: Callable[[], T]) -> T:
        await incarnation.spend(universe.delays.before_append())
        with universe.running(incarnation):
            result = call()
        await incarnation.spend(universe.delays.after_append())
        return result

    return appending


class SimWriter:
    """A ``FileJournalWriter`` whose process may be dead."""

    def __init__(self, universe: Universe, incarnation: Incarnation, writer) -> None:
        self._universe = universe
        self._incarnation = incarnation
        self._writer = writer
        self._closed = False
        self.name, self.epoch = writer.name, writer.epoch
        universe.oracle.opened(universe.filelog(), self.name, writer.next_sequence)
        incarnation.on_death(self._bury)

    @property
    def next_sequence(self) -> int:
        return self._writer.next_sequence

    def append(self, head: CommitHead, events: Sequence[bytes]) -> int:
        self._incarnation.gate()
        universe = self._universe
        universe.at_moment(self._incarnation, f"append to {self.name}")
        with universe.running(self._incarnation):
            first = self._writer.append(head, events)
        universe.oracle.acknowledged(self.name, first, head, events)
        now_s = anyio.current_time()
        universe.journals.durable_at[self.name, first, first + len(events)] = now_s
        for watch in universe.journals.watches:
            watch.notify(self.name, now_s)
        universe.at_moment(self._incarnation, f"appended to {self.name}")
        return first

    @property
    def last_frame(self) -> bytes:
        return self._writer.last_frame

    def keep(self, snapshot: Snapshot) -> None:
        with self._universe.running(self._incarnation):
            self._writer.keep(snapshot)

    def close(self) -> None:
        if not self._incarnation.dead and not self._closed:
            self._closed = True
            self._writer.close()

    def _bury(self) -> None:
        """The kernel closes a dead process's descriptors, and so drops its locks; nothing is written."""
        if self._closed or self._universe.powerless:
            return  # without power it is the disk that closes them
        self._closed = True
        for descriptor in (self._writer._segment_fd, self._writer._end_fd, self._writer._lock._descriptor):
            os.close(descriptor)


class SimReader:
    """Sees a frame when it has been durable for a while."""

    def __init__(self, universe: Universe, incarnation: Incarnation, reader: JournalReader) -> None:
        self._universe = universe
        self._incarnation = incarnation
        self._reader = reader
        self._ahead: tuple[Frame, bytes] | None = None
        self._last = b""
        self._opened_s = anyio.current_time()
        self._boot = universe.boots
        self._delay_s = universe.delays.notice(incarnation.name, reader.name)
        self.name = reader.name
        self.next_sequence = reader.next_sequence

    def read(self, *, max_frames: int = 256) -> list[Frame]:
        found: list[Frame] = []
        while len(found) < max_frames and not (self._incarnation.dead or self._incarnation.frozen):
            if self._ahead is None and (frames := self._reader.read(max_frames=1)):
                self._ahead = frames[0], self._reader.last_digest()
            if self._ahead is None or not self._noticed(self._ahead[0]):
                break
            found.append(self._ahead[0])
            self._last = self._ahead[1]
            self._ahead = None
            self.next_sequence = found[-1].next_sequence
        return found

    def last_digest(self) -> bytes:
        return self._last

    def _noticed(self, frame: Frame) -> bool:
        key = (frame.journal, frame.base_sequence, frame.next_sequence)
        durable_s = self._universe.journals.durable_at.get(key, 0.0)
        return durable_s <= self._opened_s or durable_s + self._delay_s <= anyio.current_time()

    def close(self) -> None:
        if self._universe.boots == self._boot:  # after a power cut its descriptors are somebody else's
            self._reader.close()


class SimWatch:
    """Wakes some time after a frame is durable; now and then not at all, and then the slow poll finds it."""

    def __init__(self, universe: Universe, incarnation: Incarnation) -> None:
        self._universe = universe
        self._incarnation = incarnation
        self._journals: set[str] = set()
        self._due: list[float] = []
        self._event = anyio.Event()

    def add(self, journal: str) -> None:
        self._journals.add(journal)

    def notify(self, journal: str, durable_s: float) -> None:
        if journal in self._journals and not self._universe.delays.misses_notice():
            self._due.append(durable_s + self._universe.delays.notice(self._incarnation.name, journal))
            self._event.set()

    async def wait(self, timeout_s: float) -> None:
        until_s = anyio.current_time() + timeout_s
        while True:
            now_s = anyio.current_time()
            if any(due_s <= now_s for due_s in self._due) or now_s >= until_s:
                self._due = [due_s for due_s in self._due if due_s > now_s]
                return
            self._event = anyio.Event()
            with anyio.move_on_after(min([until_s, *self._due]) - now_s):
                await self._event.wait()
