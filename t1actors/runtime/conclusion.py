"""How a session of a run ends: the first RunFinished or RunFailed in the publisher's journal, or this session's RunPaused,
followed as the journal grows.

Guarantees: reads that one journal from its start, so a resumed run that had ended ends again at once; a pause of an earlier
session ends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from t1actors.events import AnyEvent, RunFailed, RunFinished, RunPaused, UnknownEvent, decode
from t1actors.log.interface import Log

POLL_S = 0.25


@dataclass(frozen=True)
class Conclusion:
    """``sequence`` is where the journal ``journal`` says so."""

    reason: Literal["finished", "failed", "interrupted"]
    detail: str
    journal: str
    sequence: int


async def concluded(log: Log, journal: str, *, session: int) -> Conclusion:
    """Waits for the end of the run, or of its ``session``, as ``journal`` tells it."""
    async with log.watch() as watch:
        watch.add(journal)
        reader = log.open_reader(journal)
        try:
            while True:
                for frame in reader.read():
                    for sequence, raw in enumerate(frame.events, frame.base_sequence):
                        end = _end(decode(raw), session)
                        if end is not None:
                            return Conclusion(*end, journal, sequence)
                await watch.wait(POLL_S)
        finally:
            reader.close()


def _end(
    event: AnyEvent | UnknownEvent, session: int
) -> tuple[Literal["finished", "failed", "interrupted"], str] | None:
    """(reason, detail) when ``event`` is one."""
    match event:
        case RunFinished():
            return "finished", f"{event.steps} steps"
        case RunFailed():
            return "failed", event.reason
        case RunPaused() if event.session == session:
            return "interrupted", f"paused before step {event.step}"
        case _:
            return None
