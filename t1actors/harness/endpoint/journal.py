"""Where an endpoint's events are kept: a journal that is read once, when the endpoint starts, and written after that.

Guarantees: what ``commit`` returned from is durable, blobs before the event that names them, and one commit's events are
there together or not at all; commits that wait for the disk at the same time share a flush; a commit that was begun is ended,
whatever happens to its caller. After ``JournalFailed`` nothing is written any more: the endpoint answers 503 and must be
started again, which finds out what is durable.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import anyio
import msgspec
from anyio import to_thread

from t1actors.events import AnyEvent, UnknownEvent, decode, encode
from t1actors.log.blobs import FileBlobs
from t1actors.log.errors import FrameRefused, LogError
from t1actors.log.filelog import FileLog
from t1actors.log.interface import CommitHead, JournalWriter
from t1actors.nursery import apart
from t1actors.payloads import BlobError, Blobs
from t1actors.tito.render.messages import Message, Tool

JOURNAL = "endpoint"
Events: TypeAlias = Sequence[AnyEvent]


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What ``events.ChatCall.said`` holds, as JSON. ``tools`` are those of a chunk's first turn; later ones have the same."""

    messages: tuple[Message, ...]
    given: Message
    tools: tuple[Tool, ...] = ()


class Journal(Protocol):
    """See the module for what every journal guarantees. Used from one event loop; any number of commits at once."""

    @property
    def blobs(self) -> Blobs:
        """Where the payloads of its events lie."""
        ...

    @property
    def failed(self) -> str:
        """Why nothing can be written any more; empty while all is well."""
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Events are taken while this is open. Raises ``LogError``."""
        ...

    def events(self) -> Iterator[AnyEvent | UnknownEvent]:
        """All that was committed before ``running`` was entered, in order. Raises ``LogError``."""
        ...

    async def commit(self, prepare: Callable[[Blobs], Events]) -> Events:
        """Write the events that ``prepare`` makes, in a worker thread, of what it stores; returns them once they are durable.
        Raises ``FrameRefused`` (nothing happened), ``BlobError`` or ``JournalFailed``."""
        ...


@dataclass(eq=False)
class _Commit:
    prepare: Callable[[Blobs], Events]
    events: Events = ()
    done: bool = False
    error: Exception | None = None


class FileJournal:
    """``DIRECTORY/log/endpoint`` and ``DIRECTORY/blobs``: what ``t1 log cat DIRECTORY`` reads."""

    def __init__(self, directory: Path, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._directory = directory
        self._log = FileLog(directory / "log")
        self._blobs = FileBlobs(directory / "blobs")
        self._now_ns = now_ns
        self._waiting: list[_Commit] = []
        self._writer: JournalWriter | None = None
        self._failed = ""

    @property
    def blobs(self) -> FileBlobs:
        return self._blobs

    @property
    def failed(self) -> str:
        return self._failed

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        self._lock = anyio.Lock()
        writer = await to_thread.run_sync(self._log.open_writer, JOURNAL)
        self._writer = writer
        try:
            yield
        finally:
            self._writer = None
            writer.close()

    def events(self) -> Iterator[AnyEvent | UnknownEvent]:
        reader = self._log.open_reader(JOURNAL)
        try:
            while frames := reader.read():
                yield from (decode(raw) for frame in frames for raw in frame.events)
        finally:
            reader.close()

    async def commit(self, prepare: Callable[[Blobs], Events]) -> Events:
        commit = _Commit(prepare)
        await apart(lambda: self._committed(commit))
        if commit.error is not None:
            raise commit.error
        return commit.events

    async def _committed(self, commit: _Commit) -> None:
        assert self._writer is not None, "the journal is not running"
        with anyio.CancelScope(shield=True):
            self._waiting.append(commit)
            async with self._lock:
                if not commit.done:  # whoever had the lock before may have taken it along
                    batch, self._waiting = self._waiting, []
                    await to_thread.run_sync(self._write, self._writer, batch)

    def _write(self, writer: JournalWriter, batch: list[_Commit]) -> None:
        """One frame for all of them; where that is refused, one for each."""
        for commit in batch:
            try:
                commit.events = commit.prepare(self._blobs)
            except BlobError as error:
                commit.error = error
            commit.done = True
        whole = [commit for commit in batch if commit.error is None]
        try:
            self._append(writer, whole)
        except FrameRefused:
            for commit in whole:
                try:
                    self._append(writer, [commit])
                except LogError as error:
                    commit.error = error
        except LogError as error:
            self._failed = str(error)
            for commit in whole:
                commit.error = error

    def _append(self, writer: JournalWriter, commits: list[_Commit]) -> None:
        if commits:
            writer.append(
                CommitHead(wall_ns=self._now_ns(), mono_ns=time.monotonic_ns()),
                [encode(event) for commit in commits for event in commit.events],
            )
