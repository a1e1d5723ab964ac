"""The log as files: ``RUN/log/<journal>/`` (see ``docs/log-format.md``).

Guarantees the interface's contract among all processes of one machine. Nothing is created by reading or watching.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from t1actors.log.errors import JournalFailed
from t1actors.log.file_reader import FileJournalReader
from t1actors.log.file_writer import Durability, FileJournalWriter
from t1actors.log.inotify import InotifyWatch
from t1actors.log.interface import Watch, check_journal_name
from t1actors.log.lock import JournalLock
from t1actors.log.segments import MAX_SEGMENT_BYTES, end_path, make_directories

SEGMENT_BYTES = 64 * 1024 * 1024


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

    def journals(self) -> list[str]:
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if end_path(path).exists())

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
