"""Blobs that nobody names: what a crash left between a blob and the frame that was to name it, and what a cut left unnamed.

Guarantees: only blobs that no event of the whole log names are deleted, and files that are no blobs yet (a put cut short)
or no more (``.damaged-``). The log must be at rest: of a run that goes on, a blob is there before its event is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from t1actors.log.blobs import FileBlobs


@dataclass(frozen=True)
class Swept:
    """What was, or would be, deleted; ``kept`` blobs are named by some event."""

    blobs: int
    other_files: int
    size_bytes: int
    kept: int


def sweep(blobs: FileBlobs, named: Callable[[], Iterator[str]], *, delete: bool) -> Swept:
    """``named`` gives the digests that the log names. Raises what reading the log raises, then nothing was deleted."""
    wanted = set(named())
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
