"""Snapshots beside a journal: what the recovery of its actor would rebuild, as it was after one durable frame.

A snapshot is a file ``snapshot-<next sequence>.t1s`` in the journal's directory: ``T1S1``, the blake3 of what follows, and
one MessagePack map. It holds nothing that the journals do not, as long as they are whole; once their beginnings were deleted
(``log.trimmed``) it is where reading begins.

Guarantees: a file under its name is whole or is not read (checksum); when the log is flushed at all, the snapshot and every
blob that its frame rests on are flushed before it has its name, so that no lost machine takes the journals back behind it;
the latest two are kept. What ``content`` means, and whether a snapshot fits the code that reads it, is left
to the runtime; here ``positions`` say how far its actor had read other journals, and ``last_frame`` after which frame it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
from blake3 import blake3

from t1actors.log.blobs import sync_file_system
from t1actors.log.segments import fsync_directory

KEPT = 2
"""So that one may be damaged."""
_MAGIC = b"T1S1"
_DIGEST_BYTES = 32
_NAME = re.compile(r"snapshot-(\d{12,})\.t1s")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """After the frame of digest ``last_frame``, whose events begin at ``base_sequence`` and end before ``next_sequence``.
    ``positions``: of every journal that its actor follows, the next sequence to apply; ``vector``: what the frame rests on;
    ``code``: the code version that wrote it; ``shape``: of what form ``content`` is."""

    base_sequence: int
    next_sequence: int
    last_frame: bytes
    code: str
    shape: str
    positions: dict[str, int]
    vector: dict[str, int]
    content: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """As the file holds it."""
    body = _encoder.encode(snapshot)
    return b"".join((_MAGIC, blake3(body).digest(), body))


def decode_snapshot(data: bytes) -> Snapshot | None:
    """None: these bytes are no whole snapshot."""
    body = data[len(_MAGIC) + _DIGEST_BYTES :]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) :][:_DIGEST_BYTES] != blake3(body).digest():
        return None
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError:  # of a later version
        return None


def snapshot_path(directory: Path, next_sequence: int) -> Path:
    """The file of the snapshot before whose ``next_sequence`` the journal in ``directory`` was as it says."""
    return directory / f"snapshot-{next_sequence:012d}.t1s"


def snapshot_files(directory: Path) -> list[Path]:
    """Those there are, the newest first."""
    found = [(int(match[1]), name) for name in os.listdir(directory) if (match := _NAME.fullmatch(name))]
    return [directory / name for _, name in sorted(found, reverse=True)]


def write_snapshot(directory: Path, snapshot: Snapshot, *, flush: bool) -> None:
    """Write it; then delete all but the latest ``KEPT``, and any that says to be of a later time: the journal was cut back
    since. ``flush``: the whole file system, volatile blobs among it, before it has its name. Raises ``OSError``."""
    path = snapshot_path(directory, snapshot.next_sequence)
    temporary = path.with_name(f".{path.name}")
    with temporary.open("wb") as file:
        file.write(encode_snapshot(snapshot))
    if flush:
        sync_file_system(directory)
    os.replace(temporary, path)
    if flush:
        fsync_directory(directory)
    gone = outlived(snapshot_files(directory), path)
    if gone and not flush:
        # Or a power cut could take the frame that this one is of, and the older ones would be gone already.
        sync_file_system(directory)
    for old in gone:
        old.unlink()


def outlived(files: Iterable[Path], latest: Path) -> list[Path]:
    """Which of ``files``, the newest first, go when ``latest`` was written last."""
    files = list(files)
    place = files.index(latest)
    return [*files[:place], *files[place + KEPT :]]


def read_snapshots(directory: Path) -> list[Snapshot]:
    """The whole ones, the newest first."""
    return [snapshot for _, snapshot in _read(directory) if snapshot is not None]


def damaged_snapshots(directory: Path) -> list[Path]:
    """Those that are not whole, the newest first."""
    return [path for path, snapshot in _read(directory) if snapshot is None]


def _read(directory: Path) -> list[tuple[Path, Snapshot | None]]:
    files = snapshot_files(directory) if directory.is_dir() else []
    try:
        return [(path, decode_snapshot(path.read_bytes())) for path in files]
    except FileNotFoundError:
        if snapshot_files(directory) == files:
            raise
        return _read(directory)  # a newer one was written meanwhile
