"""A log that keeps account of itself: calls, and the wall and CPU seconds spent inside them.

Guarantees: what is wrapped behaves as before; a call's CPU seconds are those of the thread that made it, so that work of
other threads meanwhile is not counted. Wall seconds of calls in several threads overlap: they are no share of the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field

from t1actors.log.frame import CommitHead, Frame
from t1actors.log.interface import JournalReader, JournalWriter, Log, Snapshot, Watch


@dataclass
class Account:
    calls: int = 0
    events: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def counting(self, events: int = 0) -> Generator[None]:
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        yield
        wall_s, cpu_s = time.perf_counter() - wall_s, time.thread_time() - cpu_s
        with self.lock:
            self.calls += 1
            self.events += events
            self.wall_s += wall_s
            self.cpu_s += cpu_s


class MeteredLog:
    """A ``Log`` around another."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.appends = Account()
        self.reads = Account()

    def open_writer(self, name: str) -> JournalWriter:
        return _Writer(self._log.open_writer(name), self.appends)

    def open_reader(self, name: str, *, from_sequence: int = 0) -> JournalReader:
        return _Reader(self._log.open_reader(name, from_sequence=from_sequence), self.reads)

    def watch(self) -> AbstractAsyncContextManager[Watch]:
        return self._log.watch()

    def journals(self) -> list[str]:
        return self._log.journals()

    def kept_from(self, name: str) -> int:
        return self._log.kept_from(name)

    def snapshots(self, name: str) -> list[Snapshot]:
        return self._log.snapshots(name)


class _Writer:
    def __init__(self, writer: JournalWriter, account: Account) -> None:
        self._writer = writer
        self._account = account

    @property
    def name(self) -> str:
        return self._writer.name

    @property
    def epoch(self) -> int:
        return self._writer.epoch

    @property
    def next_sequence(self) -> int:
        return self._writer.next_sequence

    @property
    def last_frame(self) -> bytes:
        return self._writer.last_frame

    def keep(self, snapshot: Snapshot) -> None:
        self._writer.keep(snapshot)

    def append(self, head: CommitHead, events: Sequence[bytes]) -> int:
        with self._account.counting(len(events)):
            return self._writer.append(head, events)

    def close(self) -> None:
        self._writer.close()


class _Reader:
    def __init__(self, reader: JournalReader, account: Account) -> None:
        self._reader = reader
        self._account = account

    @property
    def name(self) -> str:
        return self._reader.name

    @property
    def next_sequence(self) -> int:
        return self._reader.next_sequence

    def read(self, *, max_frames: int = 256) -> list[Frame]:
        with self._account.counting():
            return self._reader.read(max_frames=max_frames)

    def last_digest(self) -> bytes:
        return self._reader.last_digest()

    def close(self) -> None:
        self._reader.close()
