"""A new run directory of what is whole in a damaged one.

Guarantees: the damaged run is only read. In the new one every journal opens and the journals fit together; what could not
stay lies beside them and is named (``log.aside``). Blobs are copied when they are what their names say; the others are named.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from t1actors.log.aside import Aside, no_ground, set_aside
from t1actors.log.blobs import FileBlobs
from t1actors.log.filelog import FileLog
from t1actors.log.frame import Frame
from t1actors.log.segments import end_path, list_segments
from t1actors.payloads import BlobError

_NOT_TAKEN = frozenset({"log", "blobs", "sandboxes", "graders", "model", "plots", "report.md", "report.json"})
"""Made anew, or said of the run before the cut."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Salvaged:
    """What could not be saved: parts of journals, and blobs (why each)."""

    asides: list[Aside]
    bad_blobs: list[str]


def salvage(
    run: Path, to: Path, *, ground: Callable[[Frame], bool | None] = no_ground, progress: Progress | None = None
) -> Salvaged:
    """Make the run directory ``to`` of ``run``; a failure leaves none. ``ground``: as in ``log.aside.set_aside``.
    ``progress`` hears of blobs: done, total. Raises ``FileExistsError`` (of ``to``), ``OSError``, ``JournalFenced`` when the
    run is going on."""
    FileLog(run / "log").refuse_if_written()
    to.mkdir(parents=True)
    try:
        _copy_files(run, to)
        for journal in sorted((run / "log").iterdir()):
            if journal.is_dir() and (list_segments(journal) or end_path(journal).exists()):
                # All of it, also what lies behind the durable end: that file may be what is damaged.
                left = shutil.ignore_patterns("lock", "aside-*", "*.seal", ".*")
                shutil.copytree(journal, to / "log" / journal.name, ignore=left)
        asides = set_aside(to / "log", ground=ground)
        return Salvaged(asides, _copy_blobs(FileBlobs(run / "blobs"), FileBlobs(to / "blobs"), progress))
    except BaseException:
        shutil.rmtree(to, ignore_errors=True)
        raise


def _copy_files(directory: Path, to: Path) -> None:
    """Regular files, with their modes, which tasks' sandboxes show; no links, pipes or sockets."""
    for entry in sorted(directory.iterdir()):
        if entry.is_symlink() or entry.name in _NOT_TAKEN:
            continue
        if entry.is_dir():
            (to / entry.name).mkdir()
            _copy_files(entry, to / entry.name)
            shutil.copymode(entry, to / entry.name)
        elif entry.is_file():
            shutil.copy(entry, to / entry.name)


def _copy_blobs(blobs: FileBlobs, copies: FileBlobs, progress: Progress | None) -> list[str]:
    bad: list[str] = []
    digests = list(blobs.digests())
    for done, digest in enumerate(digests):
        if progress is not None:
            progress(done, len(digests))
        try:
            data = blobs.get(digest)
        except BlobError as error:
            bad.append(str(error))
            continue
        copies.path(digest).parent.mkdir(parents=True, exist_ok=True)
        copies.path(digest).write_bytes(data)
        data.release()
    return bad
