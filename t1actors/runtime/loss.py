"""What a run's start does about a machine that was lost under ``log_durability = "process"``.

Then nothing was flushed: journals may end unevenly, anywhere, and blobs may be empty under their names. What fits together
stays, the rest is set aside (``log.aside``), and what was done after the cut is done again. Under ``"machine"`` nothing
acknowledged can be missing, so there nothing is cut: what is missing is damage, and opening the journal says so.

Guarantees: nothing is touched while the machine has stayed up since the journals were written, whatever died on it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from t1actors.events import (
    ActorInitialised,
    ActorUpdated,
    CriticInitialised,
    CriticUpdated,
    JournalCut,
    TrajectoryAssembled,
    decode,
)
from t1actors.log.aside import asides_of, set_aside
from t1actors.log.blobs import FileBlobs
from t1actors.log.frame import Frame
from t1actors.log.lock import last_holder
from t1actors.payloads import BlobError, Blobs, payloads_of


def settle_after_loss(run_dir: Path, boot_id: str) -> None:
    """Cut the journals of the run to what fits together, if they were last written in another boot than ``boot_id``. Raises
    ``JournalFenced``, ``JournalDamaged``, ``OSError``."""
    root = run_dir / "log"
    if not root.is_dir():
        return
    holders = [last_holder(path) for path in sorted(root.iterdir()) if path.is_dir()]
    if any(holder.epoch and holder.boot_id != boot_id for holder in holders):
        set_aside(root, objection=objection(FileBlobs(run_dir / "blobs")))


def cuts_of(run_dir: Path) -> list[JournalCut]:
    """What was ever cut off the run's journals, as events."""
    root = run_dir / "log"
    return [
        JournalCut(
            journal=aside.journal,
            from_sequence=aside.from_sequence,
            events=aside.events,
            size_bytes=aside.size_bytes,
            path=str(aside.path(root).relative_to(run_dir)),
            reason=aside.reason,
        )
        for aside in asides_of(root)
    ]


def objection(blobs: Blobs) -> Callable[[Frame], str]:
    """Whether a frame names a blob that is damaged, or one that is missing and always kept."""

    def objected(frame: Frame) -> str:
        for event in map(decode, frame.events):
            always = isinstance(event, TrajectoryAssembled | ActorInitialised | CriticInitialised) or (
                isinstance(event, ActorUpdated | CriticUpdated) and event.snapshot
            )
            for name, payload in payloads_of(event):
                if payload.inline is not None or not (blobs.has(payload.digest) or (always and name in _ALWAYS_KEPT)):
                    continue
                try:
                    blobs.get(payload.digest)
                except BlobError as error:
                    return f"{type(event).__name__}.{name}: {error}"
        return ""

    return objected


_ALWAYS_KEPT = frozenset({"record", "state", "weights"})
