"""Watching the durable ends of journals on disk with inotify.

Guarantees: a journal that grew after ``add`` makes ``wait`` return at once, also when it did not exist at ``add`` (its
directory's birth is watched, and every slow poll looks again). One inotify descriptor a watch. Only the ``end`` files
are watched for writes: a segment changes before its frame is durable.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from t1actors.log.errors import WatchUnavailable
from t1actors.log.interface import check_journal_name
from t1actors.log.segments import end_path
from t1actors.log.watch import DescriptorWatch

_IN_MODIFY, _IN_MOVED_TO, _IN_CREATE = 0x2, 0x80, 0x100
_BIRTH = _IN_CREATE | _IN_MOVED_TO

_libc = ctypes.CDLL(None, use_errno=True)


class InotifyWatch(DescriptorWatch):
    """Wakes by the kernel's notices of changed ``end`` files."""

    def __init__(self, root: Path) -> None:
        descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor < 0:
            raise _unavailable("inotify_init1", root)
        super().__init__(descriptor)
        self._root = root
        self._unborn: set[str] = set()

    def add(self, journal: str) -> None:
        if not self._attach(check_journal_name(journal)):
            self._unborn.add(journal)

    async def wait(self, timeout_s: float) -> None:
        await super().wait(0.0 if self._attach_born() else timeout_s)
        self._attach_born()

    def _attach_born(self) -> bool:
        """Watch the ends of journals that have come to exist; whether there were any."""
        born = {journal for journal in self._unborn if self._attach(journal)}
        self._unborn -= born
        return bool(born)

    def _attach(self, journal: str) -> bool:
        """Watch the journal's end; when there is none yet, watch for its birth and then look once more."""
        end = end_path(self._root / journal)
        if self._watch(end, _IN_MODIFY):
            return True
        self._watch(self._root, _BIRTH)
        self._watch(end.parent, _BIRTH)
        return self._watch(end, _IN_MODIFY)

    def _watch(self, path: Path, mask: int) -> bool:
        if _libc.inotify_add_watch(self._descriptor, os.fsencode(path), ctypes.c_uint32(mask)) >= 0:
            return True
        if ctypes.get_errno() == errno.ENOENT:
            return False
        raise _unavailable("inotify_add_watch", path)


def _unavailable(call: str, path: Path) -> WatchUnavailable:
    code = ctypes.get_errno()
    hint = "raise fs.inotify.max_user_instances and max_user_watches (sysctl)"
    return WatchUnavailable(f"{call} for {path}: {os.strerror(code)}; {hint}")
