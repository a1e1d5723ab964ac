"""The log as files: ``RUN/log/<journal>/`` (see ``docs/log-format.md``).

Guarantees the interface's contract among all processes of one machine. Nothing is created by reading or watching.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgspec

from t1actors.log.errors import JournalDamaged, JournalFailed, JournalFenced
from t1actors.log.file_reader import FileJournalReader
from t1actors.log.file_writer import Durability, FileJournalWriter
from t1actors.log.inotify import InotifyWatch
from t1actors.log.interface import Watch, check_journal_name, names_journal
from t1actors.log.lock import Holder, JournalLock, holder_in
from t1actors.log.segments import MAX_SEGMENT_BYTES, end_path, fsync_directory, make_directories
from t1actors.log.snapshots import Snapshot, read_snapshots
from t1actors.log.trimmed import trimmed_of

SEGMENT_BYTES = 64 * 1024 * 1024
_BEHIND_ALL = 2**63 - 1
"""No sequence: reading from here skips every frame."""


class FileLog:
    """A ``Log`` under ``root``. ``durability`` and ``segment_bytes`` matter to writers only."""

    def __init__(self, root: Path, durability: Durability = "machine", *, segment_bytes: int = SEGMENT_BYTES) -> None:
        if not 0 < segment_bytes <= MAX_SEGMENT_BYTES // 2:
            raise ValueError(f"segment_bytes={segment_bytes}: use 1 to {MAX_SEGMENT_BYTES // 2:,}")
        self.root = root
        self._durability: Durability = durability
        self._segment_bytes = segment_bytes

    def open_writer(self, name: str) -> FileJournalWriter:
        directory = self.directory(name)
        try:
            make_directories(directory)
            for parent in (directory.parent, self.root.parent):
                fsync_directory(parent)  # who made them may have been killed before it did
            lock = JournalLock(name, directory)
            try:
                return FileJournalWriter(
                    name,
                    directory,
                    durability=self._durability,
                    segment_bytes=self._segment_bytes,
                    lock=lock,
                )
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise JournalFailed(f"journal {name}: opening {directory} failed ({error}); see to the disk") from error

    def open_reader(self, name: str, *, from_sequence: int = 0) -> FileJournalReader:
        return FileJournalReader(name, self.directory(name), from_sequence)

    def watch(self) -> AbstractAsyncContextManager[Watch]:
        return self._watching()

    def kept_from(self, name: str) -> int:
        return trimmed_of(self.directory(name)).first_sequence

    def snapshots(self, name: str) -> list[Snapshot]:
        return read_snapshots(self.directory(name))

    def journals(self) -> list[str]:
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if names_journal(path.name) and end_path(path).exists())

    def events(self) -> int:
        """How many events all journals hold now, from the last segment of each: a total for tools that show how far they
        are. A journal whose last segment is damaged counts as far as it can be read."""
        return sum(map(self._events_of, self.journals()))

    def _events_of(self, name: str) -> int:
        reader = self.open_reader(name, from_sequence=_BEHIND_ALL)
        try:
            reader.read()
        except JournalDamaged:
            pass  # whoever reads the events will say it
        finally:
            reader.close()
        return max(0, reader.durable_next - self.kept_from(name))

    def holder(self, name: str) -> Holder | None:
        """Who has the journal open for writing now; None when nobody has."""
        return holder_in(self.directory(name))

    def refuse_if_written(self) -> None:
        """For tools that need a log at rest. Raises ``JournalFenced`` naming who writes it."""
        for name in self.journals():
            holder = self.holder(name)
            if holder is not None:
                raise JournalFenced(f"journal {name}: process {holder.pid} is writing it; stop the run first")

    @contextmanager
    def held_at_rest(self) -> Generator[None]:
        """For tools that change a log at rest: every journal is locked for the block, and the locks name this process.
        Raises ``JournalFenced`` naming who writes one, ``JournalDamaged``, ``OSError``."""
        self.refuse_if_written()
        with ExitStack() as held:
            for name in self.journals():
                lock = JournalLock(name, self.directory(name))
                held.callback(lock.release)
                # The epoch and the boot stay: nothing was written in this one. On a full disk it may not work: no matter.
                with suppress(OSError):
                    lock.remember(msgspec.structs.replace(lock.previous, pid=os.getpid()))
                    held.callback(lock.remember, lock.previous)
            yield

    def directory(self, name: str) -> Path:
        """Where the journal's files are. For tools."""
        return self.root / check_journal_name(name)

    @asynccontextmanager
    async def _watching(self) -> AsyncGenerator[Watch]:
        watch = InotifyWatch(self.root)
        try:
            yield watch
        finally:
            watch.close()
