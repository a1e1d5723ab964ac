"""Clears an image store: what nobody named, used or holds goes.

Guarantees: an image stays that has a name, was used within the days given, or is locked by a live sandbox; a layer stays
that such an image or a build step used within those days needs, or that a live sandbox holds. Nothing is removed while
something is being added: then ``StoreError`` says so. Stopped half-way, it leaves whole images: images go before layers.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from t1actors.images.errors import StoreError
from t1actors.images.store import ImageStore, open_lock, remove

DAY_S = 86_400.0


@dataclass(frozen=True)
class Pruned:
    """What went."""

    images: tuple[str, ...]
    layers: int
    size_bytes: int


def prune(store: ImageStore, *, days: float, clock_s: Callable[[], float] = time.time) -> Pruned:
    """Remove what was not used for ``days``. Raises ``StoreError``: something is being imported or built."""
    if not store.root.is_dir():
        return Pruned((), 0, 0)
    oldest_s = clock_s() - days * DAY_S
    with open_lock(store.root) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"{store.root}: an image is being imported or built; prune when that is done") from error
        store.sweep()
        images: list[str] = []
        needed: set[str] = set()
        for listed in store.list():
            path = store.image_file(listed.digest)
            if not listed.names and listed.used_s < oldest_s and _gone(path, path.unlink):
                images.append(listed.digest)
            else:
                needed.update(listed.image.layers)
        for step in (store.root / "steps").iterdir():
            if step.stat().st_mtime < oldest_s:
                step.unlink()
            else:
                needed.add(step.read_text())
        layers, size_bytes = 0, 0
        for folder in (store.root / "layers").iterdir():
            digest = f"sha256:{folder.name}"
            if digest not in needed:
                info = store.layer_info(digest)
                aside = store.root / "staging" / folder.name
                if _gone(store.layer_path(digest), lambda folder=folder, aside=aside: folder.rename(aside)):
                    remove(aside)
                    layers, size_bytes = layers + 1, size_bytes + info.size_bytes
    return Pruned(tuple(images), layers, size_bytes)


def _gone(held: Path, take_away: Callable[[], object]) -> bool:
    """Take it away unless somebody holds ``held``. Whoever wants to hold it meanwhile waits, and finds it gone."""
    with _alone(held) as alone:
        if alone:
            take_away()
    return alone


@contextmanager
def _alone(path: Path) -> Generator[bool]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(fd)
