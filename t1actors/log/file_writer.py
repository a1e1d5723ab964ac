"""The writer of a journal on disk.

Guarantees: ``append`` returns when the frame is flushed (``durability="machine"``; with ``"process"`` it is in the
kernel, which survives kill -9 but no power cut) and then published, in this order, by a write of the durable end that
wakes the readers. A sealed segment is its frames and nothing else, and so is the last one once the writer is closed; while
a ``"machine"`` writer lives, zeros lie behind them (``log.ahead``). After a failed write or flush, or an append that was
interrupted, nothing is tried again: the kernel may have marked pages clean that never reached the disk, so this writer is
finished and its process must end; the next opening finds out what is there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec import structs

from t1actors.log.ahead import ZerosAhead
from t1actors.log.consumed import consumed_by_others
from t1actors.log.errors import JournalFailed
from t1actors.log.frame import CommitHead, encode_frame, frame_digest
from t1actors.log.lock import Holder, JournalLock
from t1actors.log.recovery import Recovered, recover
from t1actors.log.seal import SealBuilder, write_seal
from t1actors.log.segments import Position, end_path, fsync_directory, segment_path, write_all, write_end
from t1actors.log.snapshots import Snapshot, write_snapshot

Durability = Literal["machine", "process"]


class FileJournalWriter:
    """Made by ``FileLog.open_writer``. ``recovered`` says what opening found."""

    def __init__(
        self, name: str, directory: Path, *, durability: Durability, segment_bytes: int, lock: JournalLock
    ) -> None:
        """Takes over ``lock``. Raises ``JournalDamaged`` or ``OSError``."""
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # While the machine stays up, the page cache keeps what was written; only after a boot can a tail be missing.
        machine_was_lost = lock.previous.epoch > 0 and lock.previous.boot_id != boot_id
        consumed = consumed_by_others(directory) if machine_was_lost else None
        self.name = name
        self._directory = directory
        self._flushes = durability == "machine"
        self._segment_bytes = segment_bytes
        self._lock = lock
        self.recovered: Recovered = recover(name, directory, consumed=consumed)
        self.epoch = max(lock.previous.epoch, self.recovered.epoch) + 1
        lock.remember(Holder(self.epoch, os.getpid(), boot_id))
        self.next_sequence = self.recovered.next_sequence
        self._segment, self._offset = self.recovered.position
        self._last_frame, self._growing = self.recovered.last_frame, self.recovered.growing
        self._sealed = self.recovered.sealed
        self._segment_fd = os.open(segment_path(directory, self._segment), os.O_WRONLY | os.O_CLOEXEC)
        try:
            self._end_fd = os.open(end_path(directory), os.O_WRONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(self._segment_fd)
            raise
        self._zeros = ZerosAhead(self._segment_fd, segment_bytes)
        self._unusable = ""
        self._interrupted = (
            f"journal {name}: an append of this writer was interrupted; end this process and start again"
        )

    def append(self, head: CommitHead, events: Sequence[bytes]) -> int:
        """As ``JournalWriter.append``."""
        if self._unusable:
            raise JournalFailed(self._unusable)
        # One frame more once the segment is full: so it is known, when a frame is written, that it is the last.
        seals = not self._sealed and self._offset >= self._segment_bytes
        first = self.next_sequence
        head = structs.replace(head, previous=self._last_frame)
        data = encode_frame(head, events, base_sequence=first, epoch=self.epoch, seals=seals)
        self._unusable = self._interrupted  # until the frame is through, nobody may go on or cut
        try:
            if self._sealed:
                self._start_segment()
            write_all(self._segment_fd, data, self._offset)
            end = self._offset + len(data)
            if self._flushes:
                self._zeros.follow(end, len(data))
                os.fdatasync(self._segment_fd)
            write_end(self._end_fd, Position(self._segment, end))
            self._grew(data, first, first + len(events), seals=seals)
        except OSError as error:
            place = f"{segment_path(self._directory, self._segment)}, offset {self._offset:,}"
            self._unusable = (
                f"journal {self.name}, {place}: writing failed ({error}); end this process, see to the disk, and start "
                "again: recovery decides what is durable"
            )
            raise JournalFailed(self._unusable) from error
        self._unusable = ""
        return first

    @property
    def last_frame(self) -> bytes:
        """As ``JournalWriter.last_frame``."""
        return self._last_frame

    def keep(self, snapshot: Snapshot) -> None:
        """As ``JournalWriter.keep``."""
        write_snapshot(self._directory, snapshot, flush=self._flushes)

    def close(self) -> None:
        """As ``JournalWriter.close``."""
        if self._segment_fd < 0:
            return
        if not self._unusable:
            self._unusable = f"journal {self.name}: the writer of epoch {self.epoch} is closed"
            # Nothing depends on it: zeros that stay are as a crash leaves them.
            with suppress(OSError):
                if self._zeros.cut(self._offset):
                    os.fsync(self._segment_fd)
        os.close(self._segment_fd)
        os.close(self._end_fd)
        self._segment_fd = self._end_fd = -1
        self._lock.release()

    def _grew(self, data: bytes, base_sequence: int, next_sequence: int, *, seals: bool) -> None:
        """``data`` is the journal's last frame now."""
        self._last_frame = frame_digest(data)
        self._growing.frame(self._offset, base_sequence)
        self._growing.hashed(data)
        self._offset += len(data)
        self._sealed = seals
        self.next_sequence = next_sequence
        if seals:
            seal = self._growing.seal(next_sequence=next_sequence, epoch=self.epoch, last_frame=self._last_frame)
            write_seal(self._directory, self._segment, seal)

    def _start_segment(self) -> None:
        path = segment_path(self._directory, self._segment + 1)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.close(self._segment_fd)
        self._segment_fd, self._segment, self._offset, self._sealed = descriptor, self._segment + 1, 0, False
        self._growing, self._zeros = SealBuilder(), ZerosAhead(descriptor, self._segment_bytes)
        if self._flushes:
            os.fsync(descriptor)
            fsync_directory(self._directory)
