"""A disk that loses power: what was flushed is there, of the rest any sector may be.

The code under test works on real files; ``Disk`` watches its system calls. At a crash it makes another directory that holds
what a disk could hold then: of every file the flushed content, with any of the sectors that were written since; its size the
flushed one, the present one, or between; names whose directory was not flushed may be missing, removed ones may be back.
A sector whose write was lost reads as what was flushed there before (zeros, where a journal keeps zeros ahead of its frames),
and as zeros behind the flushed size.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SECTOR = 512


class PowerCut(BaseException):
    """Nothing after this happens. Not an ``Exception``: nobody may handle it."""


class Disk:
    """Watches the files under ``root``. ``dies_at``: the how manieth system call does not happen any more."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.calls = 0
        self.dies_at = 0
        self._flushed: dict[Path, bytes] = {}
        self._names: dict[Path, dict[str, Path]] = {}
        """By directory: the names that are durable."""
        self._open: set[int] = set()
        patch.setattr("t1actors.log.blobs._syncfs", self._watched("syncfs", lambda descriptor: None))
        patch.setattr(os, "open", self._opened(os.open))
        patch.setattr(os, "close", self._closed(os.close))
        self._close = os.close
        for name in ("pwrite", "fsync", "fdatasync", "ftruncate", "truncate", "unlink", "replace", "rename"):
            patch.setattr(os, name, self._watched(name, getattr(os, name)))
        for path in [root, *(path for path in root.rglob("*"))]:
            if path.is_dir():
                self._names[path] = {entry.name: entry for entry in path.iterdir()}
            else:
                self._flushed[path] = path.read_bytes()

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **more: Any) -> Any:
            place = self._place(arguments[0])
            if place is None:
                return call(*arguments, **more)
            self.calls += 1
            if self.calls == self.dies_at:
                raise PowerCut
            result = call(*arguments, **more)
            if name in ("fsync", "fdatasync"):
                self._flush(place)
            elif name == "syncfs":
                for path in (self.root, *self.root.rglob("*")):
                    self._flush(path)
            elif name in ("rename", "replace"):  # the same file under another name
                self._flushed[Path(arguments[1])] = self._flushed.pop(place, b"")
            return result

        return watched

    def _opened(self, call: Callable[..., int]) -> Callable[..., int]:
        def opened(*arguments: Any, **more: Any) -> int:
            descriptor = call(*arguments, **more)
            if self._place(descriptor) is not None:
                self._open.add(descriptor)
            return descriptor

        return opened

    def _closed(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def closed(descriptor: int) -> None:
            self._open.discard(descriptor)
            call(descriptor)

        return closed

    def _place(self, what: int | str | os.PathLike[str]) -> Path | None:
        path = Path(os.readlink(f"/proc/self/fd/{what}")) if isinstance(what, int) else Path(what)
        return path if path.is_relative_to(self.root) else None

    def _flush(self, path: Path) -> None:
        if path.is_dir():
            self._names[path] = {entry.name: entry for entry in path.iterdir()}
        else:
            self._flushed[path] = path.read_bytes()

    def crash(self, to: Path, draw: random.Random) -> None:
        """What the disk holds now, as the new directory ``to``. What was open is closed: its process is gone."""
        for descriptor in sorted(self._open):
            self._close(descriptor)
        self._copy(self.root, to, draw)

    def _copy(self, directory: Path, to: Path, draw: random.Random) -> None:
        to.mkdir()
        durable = self._names.get(directory, {})
        present = {entry.name: entry for entry in directory.iterdir()}
        for name in sorted({*durable, *present}):
            if (name not in durable or name not in present) and draw.random() < 0.5:
                continue  # made or removed since the directory was flushed
            path = directory / name
            if path.is_dir():
                self._copy(path, to / name, draw)
            elif path.exists() or path in self._flushed:
                now = path.read_bytes() if path.exists() else self._flushed[path]
                (to / name).write_bytes(_mixed(self._flushed.get(path, b""), now, draw))


def _mixed(flushed: bytes, now: bytes, draw: random.Random) -> bytes:
    if flushed == now:
        return now
    low, high = sorted((len(flushed), len(now)))
    # A size changes with a write, or in the middle of a long one at the border of a page: never within a sector.
    size = draw.choice([len(flushed), len(now), *range(low - low % SECTOR + SECTOR, high, SECTOR)])
    found = bytearray(size)
    for at in range(0, size, SECTOR):
        source = now if draw.random() < 0.5 else flushed
        piece = source[at : min(at + SECTOR, size)]
        found[at : at + len(piece)] = piece
    return bytes(found)
