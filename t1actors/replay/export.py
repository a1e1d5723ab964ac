"""A run, or what one of its steps rests on, as one archive that somebody else can replay.

Guarantees: the run is only read, and may be going on: the archive holds the greatest consistent cut of its log. An archive of
a step holds the whole log and the blobs that replaying the step opened: it was replayed from them. The same content gives the
same bytes (names sorted, no times, no owners), and a file appears under its name only when it is whole.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from t1actors.log.archive import NOTE, Exported
from t1actors.log.aside import RESTS_ON_LOST, set_aside
from t1actors.log.blobs import FileBlobs
from t1actors.log.check import check_journals, run_digest
from t1actors.log.copies import copy_journals
from t1actors.log.errors import Truncated
from t1actors.log.filelog import FileLog
from t1actors.log.sweep import named_digests
from t1actors.payloads import BlobError, Blobs
from t1actors.replay.inputs import ReplayImpossible
from t1actors.replay.report import ReplayReport
from t1actors.replay.run import Replayer
from t1actors.runtime.recovery import SUPERVISOR
from t1actors.runtime.trim_note import NOTE as TRIM_NOTE
from t1actors.runtime.trim_note import trim_note

ATTEMPTS = 5
_OF_NO_USE = frozenset({"log", "blobs", "sandboxes", "graders", "tools"})
"""Entries of a run directory that are not copied as they are."""

Progress = Callable[[int, int], None]


class ExportRefused(Exception):
    """What was asked for cannot be exported. Says why, and what to do."""


@dataclass(frozen=True)
class Archive:
    """What was written. ``replayed``: how the step's replay went, which chose the blobs."""

    path: Path
    exported: Exported
    blobs: int
    size_bytes: int
    replayed: ReplayReport | None = None


@dataclass
class _Opened:
    """Blobs that note what is asked of them."""

    blobs: Blobs
    digests: set[str] = field(default_factory=set[str])

    def put(self, data: bytes | memoryview, *, volatile: bool = False) -> str:
        return self.blobs.put(data, volatile=volatile)

    def put_many(self, blobs: Sequence[bytes | memoryview]) -> list[str]:
        return self.blobs.put_many(blobs)

    def flush(self) -> None:
        self.blobs.flush()

    def get(self, digest: str) -> memoryview:
        self.digests.add(digest)
        return self.blobs.get(digest)

    def has(self, digest: str) -> bool:
        return self.blobs.has(digest)

    def delete(self, digest: str) -> None:
        self.blobs.delete(digest)


def export(run: Path, archive: Path, *, step: int | None = None, progress: Progress | None = None) -> Archive:
    """Write ``archive``: a tar file, compressed when its name ends in .gz or .tgz. ``progress`` hears of the log's bytes that
    were copied, done and total. Raises ``ExportRefused``, ``LogError``, ``BlobError``, ``OSError``."""
    if archive.exists():
        raise ExportRefused(f"{archive} exists already: name another file, or move it away")
    for left in reversed(range(ATTEMPTS)):
        try:
            return _export(run, archive, step, progress)
        except (BlobError, FileNotFoundError, Truncated):
            # A run that goes on may delete what it needs no longer while it is being copied: what is there now fits together.
            if not left or FileLog(run / "log").holder(SUPERVISOR) is None:
                raise
    raise AssertionError("the last attempt returns or raises")


def _export(run: Path, archive: Path, step: int | None, progress: Progress | None) -> Archive:
    name = run.resolve().name
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".export-") as folder:
        log = _copied(run, Path(folder) / "log", progress)
        blobs = FileBlobs(run / "blobs")
        replayed, digests = (None, _named(log, blobs)) if step is None else _replayed(run, log, blobs, step)
        checked = check_journals(log)
        if checked.problems:
            raise _damaged(run, checked.problems[0].message)
        digest = run_digest(checked.digests)
        exported = Exported(run=name, digest=digest, events=log.events(), step=step)
        members = [(f"log/{path.relative_to(log.root)}", path) for path in _files(log.root) if path.is_file()]
        members += [(f"blobs/{digest[:2]}/{digest}", blobs.path(digest)) for digest in digests]
        if step is None:
            # The archive itself may be written into the run's directory.
            left = {*_OF_NO_USE, Path(folder).name, archive.name}
            kept = [path for path in sorted(run.iterdir()) if path.name not in left]
            members += [(str(file.relative_to(run)), file) for path in kept for file in _files(path)]
        else:
            members += [(kept, file) for kept in ("config.toml", TRIM_NOTE) for file in _files(run / kept)]
        written = Path(folder) / "archive"
        _write(written, name, members, exported, compress=archive.suffix in (".gz", ".tgz"))
        os.replace(written, archive)
    return Archive(archive, exported, len(digests), archive.stat().st_size, replayed)


def _copied(run: Path, to: Path, progress: Progress | None) -> FileLog:
    """The log as it is now, made to fit."""
    copy_journals(FileLog(run / "log"), to, progress)
    for aside in set_aside(to):
        # In a copy of a live log a journal may end before what another one rests on; anything else is damage.
        if aside.reason != RESTS_ON_LOST:
            raise _damaged(run, f"journal {aside.journal}: {aside.reason}")
    for left in (*to.glob("*/lock"), *to.glob("*/aside-*")):
        left.unlink()
    return FileLog(to)


def _damaged(run: Path, what: str) -> ExportRefused:
    return ExportRefused(
        f"{run} is damaged ({what}); `t1 log salvage {run} NEW` makes a run of what is whole, which can be exported"
    )


def _named(log: FileLog, blobs: FileBlobs) -> list[str]:
    """All blobs that the log names and that are still kept, each checked."""
    found = sorted(digest for digest in named_digests(log) if blobs.has(digest))
    for digest in found:
        blobs.get(digest)
    return found


def _replayed(run: Path, log: FileLog, blobs: FileBlobs, step: int) -> tuple[ReplayReport, list[str]]:
    opened = _Opened(blobs)
    try:
        replayer = Replayer.of(log, opened, trimmed=trim_note(run))
    except ReplayImpossible as error:
        raise ExportRefused(str(error)) from error
    report = replayer.step(step)
    if report.impossible:
        raise ExportRefused(
            f"step {step} cannot be replayed here, so its archive would be of no use: {report.impossible}"
        )
    return report, sorted(digest for digest in opened.digests if blobs.has(digest))


def _files(path: Path) -> Iterator[Path]:
    """The regular files and directories at or under ``path``, sorted; no links are followed."""
    if path.is_symlink():
        return
    if path.is_file():
        yield path
    elif path.is_dir():
        yield path
        for entry in sorted(path.iterdir()):
            yield from _files(entry)


def _write(path: Path, name: str, members: list[tuple[str, Path]], exported: Exported, *, compress: bool) -> None:
    with ExitStack() as closing:
        stream: BinaryIO = closing.enter_context(path.open("xb"))
        if compress:
            stream = cast(
                BinaryIO, closing.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0))
            )
        tar = closing.enter_context(tarfile.open(fileobj=stream, mode="w"))
        note = msgspec.json.format(msgspec.json.encode(exported)) + b"\n"
        tar.addfile(_member(f"{name}/{NOTE}", len(note)), io.BytesIO(note))
        for inside, file in sorted(members):
            # With its mode: what is copied into a task's sandbox keeps it.
            status = os.stat(file)
            if stat.S_ISDIR(status.st_mode):
                tar.addfile(_member(f"{name}/{inside}", 0, stat.S_IMODE(status.st_mode), tarfile.DIRTYPE))
            else:
                with file.open("rb") as content:
                    tar.addfile(_member(f"{name}/{inside}", status.st_size, stat.S_IMODE(status.st_mode)), content)


def _member(name: str, size: int, mode: int = 0o644, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.type = size, mode, kind
    return member
