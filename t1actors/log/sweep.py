"""Blobs that nobody names: what a crash left between a blob and the frame that was to name it, and what a cut left unnamed.

A name is looked for in every event as plain MessagePack, whatever its kind: also in those of a newer version.

Guarantees: only blobs that no event of the whole log names are deleted, and files that are no blobs yet (a put cut short)
or no more (``.damaged-``). The log must be at rest: of a run that goes on, a blob is there before its event is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from t1actors.log.blobs import FileBlobs, is_digest
from t1actors.log.filelog import FileLog
from t1actors.log.interface import Log
from t1actors.log.merged import merged


@dataclass(frozen=True)
class Swept:
    """What was, or would be, deleted; ``kept`` blobs are named by some event."""

    blobs: int
    other_files: int
    size_bytes: int
    kept: int


def named_digests(log: Log) -> set[str]:
    """Whatever could be a blob's name in any event: 64 hexadecimal digits, at any depth. Raises as ``merged``."""
    return {digest for entry in merged(log) for digest in digests_in(entry.raw)}


def digests_in(raw: bytes) -> Iterator[str]:
    """Whatever could be a blob's name in one MessagePack value."""
    return _digests(msgspec.msgpack.decode(raw))


def _digests(value: object) -> Iterator[str]:
    match value:
        case str():
            if is_digest(value):
                yield value
        case dict():
            for one in cast("dict[object, object]", value).values():
                yield from _digests(one)
        case list():
            for one in cast("list[object]", value):
                yield from _digests(one)
        case _:
            pass


def sweep(log: FileLog, blobs: FileBlobs, *, delete: bool) -> Swept:
    """Raises ``JournalFenced`` while the run goes on, and what reading the log raises: then nothing was deleted."""
    if not delete:  # also where nothing can be written
        log.refuse_if_written()
        return _sweep(log, blobs, delete=False)
    with log.held_at_rest():  # a run that is resumed meanwhile would have put blobs that no event names yet
        return _sweep(log, blobs, delete=True)


def _sweep(log: FileLog, blobs: FileBlobs, *, delete: bool) -> Swept:
    wanted = named_digests(log)
    present = list(blobs.digests())
    garbage = [blobs.path(digest) for digest in present if digest not in wanted]
    others = list(_no_blobs(blobs.root))
    size = sum(path.stat().st_size for path in (*garbage, *others))
    if delete:
        for path in (*garbage, *others):
            path.unlink()
    return Swept(len(garbage), len(others), size, len(present) - len(garbage))


def _no_blobs(root: Path) -> Iterator[Path]:
    for folder in sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else ():
        for name in sorted(os.listdir(folder)):
            if name.startswith("."):
                yield folder / name
