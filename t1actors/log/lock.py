"""The lock file: held for a writer's life, it is the fence; what is written in it is the epoch.

Guarantees: at most one holder among all processes (the kernel drops it when the last descriptor closes, so also at
kill -9); the epoch it remembers rises at every opening and is durable before anything is written under it, so it is
known even when an incarnation wrote no frame. A forked child that keeps the descriptor keeps the lock: actors never
fork, and what they exec does not inherit it.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import msgspec

from t1actors.log.errors import JournalDamaged, JournalFenced
from t1actors.log.segments import fsync_directory

_RECORD_BYTES = 128
"""Fixed, so that a new record overwrites the old one within one disk sector."""


_PATIENCE_S = 0.25
"""How long a held lock is tried again: a killed holder, or a program it was just starting, may take a moment to be
gone."""


class Holder(msgspec.Struct, frozen=True):
    """Who opened the journal last: its epoch, its process, and the boot it ran in."""

    epoch: int = 0
    pid: int = 0
    boot_id: str = ""


class JournalLock:
    """A held lock. ``previous`` is who held it before."""

    def __init__(self, journal: str, directory: Path) -> None:
        """Raises ``JournalFenced`` when someone holds it, ``JournalDamaged`` when its record can't be read."""
        path = directory / "lock"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not _take(self._descriptor):
                raise JournalFenced(
                    f"journal {journal}: {path} is held by another writer ({self._read_text().strip() or 'unknown'}); "
                    "end that process and every process it left behind, then start again"
                )
            text = self._read_text().strip(" \n\0")
            try:
                self.previous = msgspec.json.decode(text, type=Holder) if text else Holder()
            except msgspec.DecodeError as error:
                raise JournalDamaged(
                    journal, 0, 0, f"the lock file {path} does not hold an epoch ({error})", advice="restore it"
                ) from error
            fsync_directory(directory)
        except BaseException:
            os.close(self._descriptor)
            raise

    def remember(self, holder: Holder) -> None:
        """Make ``holder`` the durable record."""
        record = msgspec.json.encode(holder).ljust(_RECORD_BYTES - 1) + b"\n"
        os.pwrite(self._descriptor, record, 0)
        os.fsync(self._descriptor)

    def release(self) -> None:
        """Let another open the journal. Call it once."""
        os.close(self._descriptor)

    def _read_text(self) -> str:
        return os.pread(self._descriptor, _RECORD_BYTES, 0).decode("utf-8", errors="replace")


def holder_in(directory: Path) -> Holder | None:
    """Who holds the lock in ``directory`` now; None when nobody does. The lock is taken for an instant to find out, which an
    opener's patience outlasts."""
    try:
        descriptor = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)  # a lock does not need more
    except FileNotFoundError:
        return None
    try:
        if _take(descriptor):
            return None
        text = os.pread(descriptor, _RECORD_BYTES, 0).decode("utf-8", errors="replace").strip(" \n\0")
        return msgspec.json.decode(text, type=Holder) if text else Holder()
    finally:
        os.close(descriptor)


def last_holder(directory: Path) -> Holder:
    """What the lock file in ``directory`` remembers, whether or not it is held; an empty ``Holder`` when that can't be read:
    opening the journal says why."""
    try:
        return msgspec.json.decode((directory / "lock").read_bytes().strip(b" \n\0"), type=Holder)
    except (FileNotFoundError, msgspec.DecodeError):
        return Holder()


def _take(descriptor: int) -> bool:
    """Whether the lock was to be had."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        else:
            return True
