"""What a run directory says of what was deleted from it on purpose: ``trimmed.json``.

Guarantees: it is durable before anything goes that would be missed, so what is missing without it is damage; of trials from
``kept_step`` on nothing is missing.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec

from t1actors.log.errors import NoteDamaged
from t1actors.log.segments import fsync_directory

NOTE = "trimmed.json"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors by which there is no room."""
_RECORD_BYTES = 256
"""Fixed, so that a new record overwrites the old one within one disk sector."""


class TrimNote(msgspec.Struct, frozen=True, kw_only=True):
    """Steps from ``first_step`` on replay; for that the trials of steps from ``kept_step`` on are kept, and no others.
    ``steps``: of how many finished steps that was asked for last."""

    first_step: int
    kept_step: int
    steps: int

    def text(self, last: int | None) -> str:
        """What stays replayable, in one line. ``last``: the run's last step."""
        if self.first_step == 0:
            return "all steps replay"
        which = (
            f"steps {self.first_step} to {last} replay"
            if last is not None
            else f"steps from {self.first_step} on replay"
        )
        return f"{which}; of those before the log has what was graded and trained, not their turns: it was trimmed"


def trim_note(run_dir: Path) -> TrimNote:
    """What was trimmed; of a whole run a note from step 0 on. Raises ``NoteDamaged``."""
    try:
        return msgspec.json.decode((run_dir / NOTE).read_bytes(), type=TrimNote)
    except FileNotFoundError:
        return TrimNote(first_step=0, kept_step=0, steps=0)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NoteDamaged(run_dir / NOTE, error, advice=_ADVICE) from error


_ADVICE = (
    "it says what was trimmed, without it that would pass for damage: restore it from a copy of the run, or write "
    '{"first_step": N, "kept_step": N, "steps": 1} to it, N the first step of which you know that nothing is missing'
)


def write_trim_note(run_dir: Path, note: TrimNote) -> None:
    """Durable when it returns; where the disk is full over the one that is there, which takes no room. Raises ``OSError``."""
    path = run_dir / NOTE
    record = msgspec.json.format(msgspec.json.encode(note)).ljust(_RECORD_BYTES - 1) + b"\n"
    try:
        _write_anew(path, record)
    except OSError as error:
        path.with_name(f".{NOTE}").unlink(missing_ok=True)
        if error.errno not in FULL or not path.exists():
            raise
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, record, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_anew(path: Path, record: bytes) -> None:
    temporary = path.with_name(f".{path.name}")
    with temporary.open("wb") as file:
        file.write(record)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    fsync_directory(path.parent)
