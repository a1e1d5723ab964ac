"""The log in memory: the same contract as files, without a disk. For tests, simulation and embedding.

Guarantees the interface's contract among the threads and tasks of one process; frames go through the real codec, so
what is refused on disk is refused here. Nothing survives the process; a journal reopened after ``close`` continues.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from msgspec import structs

from t1actors.log.errors import JournalFailed, JournalFenced
from t1actors.log.frame import CommitHead, Frame, decode_frame, encode_frame, frame_digest
from t1actors.log.interface import JournalReader, JournalWriter, Watch, check_journal_name
from t1actors.log.snapshots import KEPT, Snapshot, decode_snapshot, encode_snapshot
from t1actors.log.watch import DescriptorWatch


class _Journal:
    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.bases: list[int] = []
        self.next_sequence = 0
        self.epoch = 0
        self.writer: MemoryWriter | None = None
        self.snapshots: list[bytes] = []
        """The latest first."""


class MemoryLog:
    """A ``Log`` in this process's memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._journals: dict[str, _Journal] = {}
        self._watches: set[_MemoryWatch] = set()

    def open_writer(self, name: str) -> JournalWriter:
        check_journal_name(name)
        with self._lock:
            journal = self._journals.setdefault(name, _Journal())
            if journal.writer is not None:
                raise JournalFenced(f"journal {name}: held by a writer of epoch {journal.epoch}; close that one first")
            journal.epoch += 1
            journal.writer = MemoryWriter(self, name, journal.epoch, journal.next_sequence)
            return journal.writer

    def open_reader(self, name: str, *, from_sequence: int = 0) -> JournalReader:
        return _MemoryReader(self, check_journal_name(name), from_sequence)

    @asynccontextmanager
    async def _watching(self) -> AsyncGenerator[Watch]:
        watch = _MemoryWatch()
        with self._lock:
            self._watches.add(watch)
        try:
            yield watch
        finally:
            with self._lock:
                self._watches.discard(watch)
            watch.close()

    def watch(self) -> AbstractAsyncContextManager[Watch]:
        return self._watching()

    def journals(self) -> list[str]:
        with self._lock:
            return sorted(self._journals)

    def kept_from(self, name: str) -> int:
        """All is kept, for as long as the process lives."""
        del name
        return 0

    def snapshots(self, name: str) -> list[Snapshot]:
        with self._lock:
            journal = self._journals.get(name)
            found = [decode_snapshot(data) for data in journal.snapshots] if journal else []
        return [snapshot for snapshot in found if snapshot is not None]

    def append(self, writer: MemoryWriter, head: CommitHead, events: Sequence[bytes]) -> int:
        """For ``MemoryWriter``: the frame becomes visible and watches wake, or nothing happens."""
        with self._lock:
            journal = self._journals[writer.name]
            if journal.writer is not writer:
                raise JournalFailed(f"journal {writer.name}: the writer of epoch {writer.epoch} is closed")
            base = journal.next_sequence
            previous = frame_digest(journal.frames[-1]) if journal.frames else b""
            head = structs.replace(head, previous=previous)
            journal.frames.append(encode_frame(head, events, base_sequence=base, epoch=writer.epoch))
            journal.bases.append(base)
            journal.next_sequence = base + len(events)
            for watch in self._watches:
                watch.notify(writer.name)
            return base

    def keep(self, writer: MemoryWriter, snapshot: Snapshot) -> None:
        """For ``MemoryWriter``: as ``JournalWriter.keep``."""
        with self._lock:
            journal = self._journals[writer.name]
            journal.snapshots = [encode_snapshot(snapshot), *journal.snapshots][:KEPT]

    def last_frame(self, name: str) -> bytes:
        """For ``MemoryWriter``: the digest of the last frame."""
        with self._lock:
            frames = self._journals[name].frames
            return frame_digest(frames[-1]) if frames else b""

    def release(self, writer: MemoryWriter) -> None:
        """For ``MemoryWriter``: the journal is free again."""
        with self._lock:
            if self._journals[writer.name].writer is writer:
                self._journals[writer.name].writer = None

    def frames_from(self, name: str, index: int, max_frames: int) -> list[bytes]:
        """For readers: encoded frames from the ``index``-th on."""
        with self._lock:
            journal = self._journals.get(name)
            return journal.frames[index : index + max_frames] if journal else []

    def index_near(self, name: str, sequence: int) -> int | None:
        """For readers: the index of a frame at or before the first that reaches ``sequence``; None: no journal yet."""
        with self._lock:
            journal = self._journals.get(name)
            return None if journal is None else max(0, bisect_left(journal.bases, sequence) - 1)


class MemoryWriter:
    """A ``JournalWriter`` of a ``MemoryLog``."""

    def __init__(self, log: MemoryLog, name: str, epoch: int, next_sequence: int) -> None:
        self._log = log
        self.name = name
        self.epoch = epoch
        self.next_sequence = next_sequence

    def append(self, head: CommitHead, events: Sequence[bytes]) -> int:
        """As ``JournalWriter.append``."""
        first = self._log.append(self, head, events)
        self.next_sequence = first + len(events)
        return first

    @property
    def last_frame(self) -> bytes:
        """As ``JournalWriter.last_frame``."""
        return self._log.last_frame(self.name)

    def keep(self, snapshot: Snapshot) -> None:
        """As ``JournalWriter.keep``."""
        self._log.keep(self, snapshot)

    def close(self) -> None:
        """As ``JournalWriter.close``."""
        self._log.release(self)


class _MemoryReader:
    def __init__(self, log: MemoryLog, name: str, from_sequence: int) -> None:
        self._log = log
        self._from = from_sequence
        self._index: int | None = None
        self._last = b""
        self.name = name
        self.next_sequence = from_sequence

    def read(self, *, max_frames: int = 256) -> list[Frame]:
        if self._index is None:
            self._index = self._log.index_near(self.name, self._from)
        if self._index is None:
            return []
        while encoded := self._log.frames_from(self.name, self._index, max_frames):
            self._index += len(encoded)
            self._last = encoded[-1]
            frames = [decode_frame(self.name, data) for data in encoded]
            if wanted := [frame for frame in frames if frame.reaches(self._from)]:
                self.next_sequence = wanted[-1].next_sequence
                return wanted
        return []

    def last_digest(self) -> bytes:
        return frame_digest(self._last)

    def close(self) -> None:
        """Nothing is held."""


class _MemoryWatch(DescriptorWatch):
    """Wakes by an eventfd, so that a writer in any thread, or in none of ours, can wake a task of any event loop."""

    def __init__(self) -> None:
        super().__init__(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._journals: set[str] = set()

    def add(self, journal: str) -> None:
        self._journals.add(check_journal_name(journal))

    def notify(self, journal: str) -> None:
        if journal in self._journals:
            os.eventfd_write(self._descriptor, 1)
