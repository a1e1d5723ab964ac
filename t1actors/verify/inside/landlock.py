"""Fences around the programs that tests start: Landlock, which needs no privileges.

    fence = Fence(read=("/usr", ...), write=("/tmp", ...))        in the grader
    fence.enter()                                                 in a child of it, before it becomes the program

``hedge()`` is a fence that closes no file: for programs of another user than the grader's. What is started apart can't look
into each other.

Guarantees: a process behind the fence, and all it starts, opens nothing but what lies below ``read`` and writes, makes and
removes nothing but below ``write``; it can't trace or look into what does not descend from it, the grader or what entered a
fence by itself, nor, from ``SIGNALS`` on, signal it. It can't be left again.

Left to others: metadata (modes, times), which Landlock does not restrict, and limits of the same user's processes.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

OLDEST = 3
"""Before this version files could be cut (Linux 6.2)."""
OLDEST_HEDGE = 2
"""Before it no fence lets files be moved between directories (Linux 5.19)."""
SIGNALS = 6
"""From this version on processes outside can't be signalled (Linux 6.12)."""
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_VERSION = 1
_PATH_BENEATH = 1
_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read files, read directories
_ALL = (1 << 15) - 1
_MOVE = 1 << 13
_OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14  # execute, write, read, cut
_SIGNALS_AND_ABSTRACT_SOCKETS = 0b11


def version() -> int:
    """What this kernel has; 0: none."""
    return max(0, int(_libc().syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class Fence:
    """See the module. Raises ``OSError`` where the kernel has none."""

    def __init__(
        self,
        *,
        read: Iterable[str],
        write: Iterable[str],
        rights: int = _ALL,
        scopes: int = _SIGNALS_AND_ABSTRACT_SOCKETS,
    ) -> None:
        self._call = _libc().syscall
        scopes = scopes if version() >= SIGNALS else 0
        attributes = struct.pack("QQQ", rights, 0, scopes)
        size = ctypes.c_size_t(24 if scopes else 8)
        self._fd = self._checked(self._call(_CREATE, attributes, size, 0))
        for paths, allowed in ((read, _READ & rights), (write, rights)):
            for path in paths:
                self._allow(path, allowed)

    def enter(self) -> None:
        """For good. No new privileges may be had by exec already, or the kernel refuses."""
        self._checked(self._call(_RESTRICT, self._fd, 0))

    def _allow(self, path: str, rights: int) -> None:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:  # what is not there needs no leave
            return
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                rights &= _OF_FILES
            self._checked(self._call(_ADD, self._fd, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0))
        finally:
            os.close(fd)

    def _checked(self, result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), f"landlock: {os.strerror(ctypes.get_errno())}")
        return int(result)


def hedge() -> Fence | None:
    """A fence that closes no file and keeps no signal back; None where the kernel has none."""
    return Fence(read=(), write=("/",), rights=_MOVE, scopes=0) if version() >= OLDEST_HEDGE else None
