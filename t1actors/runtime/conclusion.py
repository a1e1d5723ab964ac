"""How a run ends: the first RunFinished or RunFailed in the publisher's journal, followed as it grows.

Guarantees: reads that one journal from its start, so a resumed run that had ended ends again at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from t1actors.events import RunFailed, RunFinished, decode
from t1actors.log.interface import Log

POLL_S = 0.25


@dataclass(frozen=True)
class Conclusion:
    """``sequence`` is where the journal ``journal`` says so."""

    reason: Literal["finished", "failed"]
    detail: str
    journal: str
    sequence: int


async def concluded(log: Log, journal: str) -> Conclusion:
    """Waits for the run's end as ``journal`` tells it."""
    async with log.watch() as watch:
        watch.add(journal)
        reader = log.open_reader(journal)
        try:
            while True:
                for frame in reader.read():
                    for sequence, raw in enumerate(frame.events, frame.base_sequence):
                        event = decode(raw)
                        if isinstance(event, RunFinished):
                            return Conclusion("finished", f"{event.steps} steps", journal, sequence)
                        if isinstance(event, RunFailed):
                            return Conclusion("failed", event.reason, journal, sequence)
                await watch.wait(POLL_S)
        finally:
            reader.close()
