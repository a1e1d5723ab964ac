"""Copies of journals, also of those that are still being written.

Guarantees: a copy holds each journal up to the durable end that it had when it was read, and no lock file: whoever opens it
for writing begins with the epoch after the last frame's. Journals of a live run end unevenly in a copy: ``log.aside`` makes
them fit. The original is only read.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from t1actors.log.filelog import FileLog
from t1actors.log.seal import seal_path
from t1actors.log.segments import Position, end_path, read_end_of, segment_path
from t1actors.log.snapshots import snapshot_files
from t1actors.log.trimmed import kept_segments, trimmed_of, trimmed_path

_COPY_BYTES = 1 << 20


def copy_journals(log: FileLog, to: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """All journals of ``log`` into the new directory ``to``; ``progress`` hears of bytes: done, total. Raises ``OSError``."""
    to.mkdir(parents=True)
    # First of all: what a snapshot is of was durable before it, so the frames will be in the copy.
    for name in log.journals():
        directory = log.directory(name)
        for path in (*snapshot_files(directory), trimmed_path(directory)):
            if path.exists():
                (to / name).mkdir(exist_ok=True)
                shutil.copyfile(path, to / name / path.name)
    ends = {name: read_end_of(log.directory(name)) for name in log.journals()}
    parts = [part for name, end in ends.items() if end is not None for part in _parts(log.directory(name), end)]
    total = sum(size for _, size in parts)
    done = 0
    for path, size in parts:
        target = to / path.parent.name / path.name
        target.parent.mkdir(exist_ok=True)
        with path.open("rb") as source, target.open("xb") as copy:
            left = size
            while left and (data := source.read(min(left, _COPY_BYTES))):
                copy.write(data)
                left -= len(data)
                done += len(data)
                if progress is not None:
                    progress(done, total)
        segment, end = int(path.stem), ends[path.parent.name]
        seal = seal_path(path.parent, segment)
        # Of the last segment only a part may have been copied, which its seal, written meanwhile, does not fit.
        if end is not None and segment < end.segment and seal.exists():
            shutil.copyfile(seal, target.with_suffix(".seal"))
    for name, end in ends.items():
        if end is not None:
            (to / name).mkdir(exist_ok=True)
            end_path(to / name).write_bytes(end.encoded())


def _parts(directory: Path, end: Position) -> Iterator[tuple[Path, int]]:
    """The segment files up to ``end``, and how much of each. What is missing is left for whoever reads the copy."""
    for segment in kept_segments(directory, trimmed_of(directory)):
        if segment <= end.segment:
            path = segment_path(directory, segment)
            size = path.stat().st_size
            yield path, min(size, end.offset) if segment == end.segment else size
