"""A running run that keeps only its last steps (``run.keep_steps``): a trimming each time that a step opens.

Guarantees: what was deleted is an event, durable after it is gone (``LogTrimmed``); what could not be deleted ends nothing:
the event says why, and the next step tries again. The deleting is done in a thread of its own and is not cut short.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from t1actors.events import AnyEvent, LogTrimmed, StepOpened, decode
from t1actors.log.errors import LogError
from t1actors.log.interface import Log
from t1actors.payloads import BlobError
from t1actors.runtime.appending import Appending
from t1actors.runtime.trimming import Plan, Trimmer

POLL_S = 0.25
RECENT_S = 60.0
"""Much longer than from a blob to the event that names it."""


async def keep_last_steps(
    log: Log,
    run_dir: Path,
    count: int,
    *,
    publisher: str,
    record: Callable[[Sequence[AnyEvent]], Awaitable[None]],
    calling: Appending,
) -> None:
    """Trims the run in ``run_dir`` to its last ``count`` finished steps whenever ``publisher`` opens one, and at once for
    what was open before; ``calling`` makes the calls that block. Ends only when cancelled."""
    trimmer = Trimmer(run_dir, RECENT_S)
    reader = log.open_reader(publisher)
    try:
        async with log.watch() as watch:
            watch.add(publisher)
            while True:
                frames = reader.read()
                if any(isinstance(decode(raw), StepOpened) for frame in frames for raw in frame.events):
                    done = await calling(partial(_trimmed, trimmer, count))
                    if done is not None:
                        await record([done])
                elif not frames:
                    await watch.wait(POLL_S)
    finally:
        reader.close()
        trimmer.close()


def _trimmed(trimmer: Trimmer, count: int) -> LogTrimmed | None:
    plan: Plan | None = None
    trouble = ""
    try:
        plan = trimmer.plan(count)
        if plan.empty:
            return None
        trimmer.carry_out(plan)
    except (LogError, BlobError, OSError) as error:
        trouble = str(error)
    return LogTrimmed(
        first_step=plan.note.first_step if plan is not None else 0,
        kept_step=plan.note.kept_step if plan is not None else 0,
        steps=count,
        segment_bytes=plan.segment_bytes if plan is not None else 0,
        blobs=len(plan.blobs) if plan is not None else 0,
        blob_bytes=plan.blob_bytes if plan is not None else 0,
        trouble=trouble,
        given_up=plan.given_up if plan is not None else (),
    )
