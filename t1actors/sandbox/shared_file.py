"""A small record in a file that the processes of one machine change in turn, and that outlives all of them.

Guarantees: one change at a time (``flock`` on the file itself, so a killed holder lets go); a record that cannot be read,
torn, damaged or missing, is None, never another record; a change after the file was removed happens in a new one, not in
the one that nobody sees any more. Nothing is flushed: a killed process loses no write, and whoever uses this must not
trust what it finds after a reboot (``NodeClock.name``).
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import anyio
import msgspec

from t1actors.sandbox.errors import SandboxUnavailable

T = TypeVar("T")
_RECORD_BYTES = 256
"""Fixed, so that a new record covers the old one."""
_FIRST_LOOK_S = 0.001
_LATER_LOOK_S = 0.05


@dataclass(frozen=True)
class NodeClock:
    """``now_s`` never goes back as long as ``name`` stays the same: times of two names cannot be compared. ``boot`` names
    the start of the machine."""

    now_s: Callable[[], float]
    name: str
    boot: str


def boot_clock() -> NodeClock:
    """Seconds since the machine was started, sleep included, the same in all its processes but for time namespaces."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        name = f"{boot} {os.readlink('/proc/self/ns/time')}"
    except FileNotFoundError as error:
        raise SandboxUnavailable("reading the machine's clock", f"no {error.filename}", "Mount /proc") from error
    return NodeClock(lambda: time.clock_gettime(time.CLOCK_BOOTTIME), name, boot)


class SharedFile(Generic[T]):
    """See the module. ``kind`` is the Struct that the record is."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self.path = path
        self._decoder = msgspec.json.Decoder(kind)

    async def change(self, to: Callable[[T | None], T | None]) -> None:
        """Write what ``to`` makes of the record, unless that is None. Waits for its turn. Raises ``SandboxUnavailable``."""
        look_s = _FIRST_LOOK_S
        while (fd := self.take()) is None:
            await anyio.sleep(look_s)
            look_s = min(2 * look_s, _LATER_LOOK_S)
        try:
            after = to(self.read(fd))
            if after is not None:
                self.write(fd, after)
        finally:
            os.close(fd)

    def take(self, *, make: bool = True) -> int | None:
        """A descriptor that holds the file's lock until it is closed; None while another does, or where there is no file and
        none to be made. Raises ``SandboxUnavailable``."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            if make:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                flags |= os.O_CREAT
            fd = os.open(self.path, flags, 0o600)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not make:
                return None
            raise self._unavailable(error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(fd)):
                return fd
        except (BlockingIOError, FileNotFoundError):  # held, or removed meanwhile
            pass
        except OSError as error:
            os.close(fd)
            raise self._unavailable(error) from error
        os.close(fd)
        return None

    def read(self, fd: int) -> T | None:
        """The record behind a descriptor of the file."""
        checksum, _, text = os.pread(fd, _RECORD_BYTES, 0).rstrip(b"\n ").partition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            return None
        try:
            return self._decoder.decode(text)
        except msgspec.DecodeError:  # another version's
            return None

    def write(self, fd: int, record: T) -> None:
        """In one piece: what a killed process leaves is the old record or the new one, or none that can be read."""
        text = msgspec.json.encode(record)
        line = b"%08x %s" % (zlib.crc32(text), text)
        assert len(line) < _RECORD_BYTES, f"{self.path}: a record of {len(line)} bytes"
        try:
            os.pwrite(fd, line.ljust(_RECORD_BYTES - 1) + b"\n", 0)
        except OSError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: OSError) -> SandboxUnavailable:
        fix = "Make room there, or choose another sandbox.node_dir, the same for all pools of the machine"
        return SandboxUnavailable(f"sharing {self.path}", error.strerror or str(error), fix)
