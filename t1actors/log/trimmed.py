"""Where a journal begins whose oldest segments were deleted: the file ``trimmed`` in its directory, one JSON object.

It is written, flushed and given its name before the first segment goes, so a segment that is missing without it is damage. It
holds what the deleted segments said of those that follow: the number of the first one kept, the sequence with which that
begins, and the digest of the frame before it, so that the chain of frames goes on.

Guarantees: what is read back was written whole, or the journal is refused; ``delete_before`` can be done again after it was
interrupted, and the first kept segment only ever rises.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from blake3 import blake3

from t1actors.log.errors import JournalDamaged
from t1actors.log.seal import seal_path
from t1actors.log.segments import Position, fsync_directory, list_segments, segment_path


class Trimmed(msgspec.Struct, frozen=True, kw_only=True):
    """``first_segment`` begins with ``first_sequence``; ``last_frame`` is the digest (hex) of the frame before it. ``check``:
    blake3 (hex) of the object as it is encoded with an empty ``check``."""

    first_segment: int = 0
    first_sequence: int = 0
    last_frame: str = ""
    check: str = ""

    @property
    def start(self) -> Position:
        """Where the journal begins."""
        return Position(self.first_segment, 0)

    @property
    def previous(self) -> bytes:
        """What the first frame names as the one before it, or would if it named one."""
        return bytes.fromhex(self.last_frame)

    def checked(self) -> str:
        """What ``check`` must be."""
        return blake3(msgspec.json.encode(msgspec.structs.replace(self, check=""))).hexdigest()


WHOLE = Trimmed()
"""Of a journal that has its beginning."""


def trimmed_path(directory: Path) -> Path:
    """The file that says where the journal in ``directory`` begins."""
    return directory / "trimmed"


def trimmed_of(directory: Path) -> Trimmed:
    """Where the journal in ``directory`` begins. Raises ``JournalDamaged``."""
    path = trimmed_path(directory)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Trimmed)
    except FileNotFoundError:
        return WHOLE
    except msgspec.DecodeError as error:
        raise JournalDamaged(directory.name, 0, 0, f"{path} cannot be read ({error})", advice=_ADVICE) from error
    if found.check != found.checked():
        raise JournalDamaged(directory.name, 0, 0, f"{path} is not what was written: its check differs", advice=_ADVICE)
    return found


_ADVICE = "it says where the journal begins: restore it from a copy of the run"


def write_trimmed(directory: Path, trimmed: Trimmed) -> None:
    """Durable when it returns. Raises ``OSError``."""
    path = trimmed_path(directory)
    temporary = path.with_name(f".{path.name}")
    try:
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(msgspec.structs.replace(trimmed, check=trimmed.checked())) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(directory)


def kept_segments(directory: Path, trimmed: Trimmed) -> list[int]:
    """The numbers of the segment files that count, ascending: a deletion that was interrupted leaves others."""
    return [segment for segment in list_segments(directory) if segment >= trimmed.first_segment]


def delete_before(directory: Path, trimmed: Trimmed) -> int:
    """Delete the segments before the first kept one; how many bytes they had. Raises ``OSError``."""
    freed = 0
    for segment in list_segments(directory):
        if segment >= trimmed.first_segment:
            break
        path = segment_path(directory, segment)
        freed += path.stat().st_size
        path.unlink()
        seal_path(directory, segment).unlink(missing_ok=True)
    return freed
