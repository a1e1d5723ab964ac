"""One small real run for many tests: real shells, a real model, every actor, in one process over journals on disk."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio
import numpy as np

from t1actors import config as cfg
from t1actors.actors.actor import PolicyActor
from t1actors.actors.assembler import Assembler
from t1actors.actors.critic import Critic
from t1actors.actors.pool import Pool
from t1actors.actors.publisher import Publisher
from t1actors.actors.sampler import Sampler
from t1actors.actors.verifier import Verifier
from t1actors.events import ActorUpdated, AnyEvent, BatchSealed, TrajectoryAssembled, UnknownEvent, decode
from t1actors.log.blobs import FileBlobs
from t1actors.log.filelog import FileLog
from t1actors.log.merged import merged
from t1actors.payloads import unpack_array
from t1actors.runtime.appending import in_thread
from t1actors.runtime.local import LocalResult, run_local
from t1actors.tito.stored import load

ACTORS = (
    ("publisher", Publisher),
    ("pool", Pool),
    ("sampler", Sampler),
    ("verifier", Verifier),
    ("assembler", Assembler),
    ("critic", Critic),
    ("actor", PolicyActor),
)

TINY = (
    "tasks.train_count=24",
    "tasks.heldout_per_level=1",
    "rollout.batch_size=6",
    "rollout.oversample=0.3",
    "schedule.recalibrate_steps=1",
    "schedule.train_steps=4",
    "train.snapshot_every=2",
)


E = TypeVar("E")


@dataclass(frozen=True)
class TinyRun:
    run_dir: Path
    config: cfg.Config
    result: LocalResult
    events: list[AnyEvent | UnknownEvent]

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


def make_run(run_dir: Path, *sets: str) -> TinyRun:
    """A run in ``run_dir``, to its end."""
    config = cfg.resolve(preset="smoke", sets=[*TINY, *sets]).config
    run_dir.mkdir(parents=True, exist_ok=True)
    log = FileLog(run_dir / "log", "process", segment_bytes=config.run.segment_bytes)

    async def main() -> LocalResult:
        with anyio.fail_after(240):
            return await run_local(
                ACTORS,
                config=config,
                log=log,
                blobs=FileBlobs(run_dir / "blobs"),
                run_dir=run_dir,
                appending=in_thread(),
            )

    result = anyio.run(main, backend="trio")
    events = [decode(entry.raw) for entry in merged(FileLog(run_dir / "log", "process"))]
    return TinyRun(run_dir, config, result, events)


def engine_gaps(run_dir: Path, events: Iterable[AnyEvent | UnknownEvent]) -> dict[int, int]:
    """For every step of the actor: how many of its tokens have another log-prob, in any bit, by the trainer under their own
    version than the sampler recorded. Read off the log, not off what the trainer reports of the gap."""
    blobs = FileBlobs(run_dir / "blobs")
    events = list(events)
    assembled = {e.trial: e for e in events if isinstance(e, TrajectoryAssembled)}
    sealed = {e.step: e for e in events if isinstance(e, BatchSealed)}
    found: dict[int, int] = {}
    for update in events:
        if not isinstance(update, ActorUpdated):
            continue
        kept = [load(blobs, assembled[item.trial].record) for item in sealed[update.step].items]
        arrays = [chunk.arrays() for trial in kept for chunk in trial.chunks]
        sampler_T = np.concatenate([a.logprobs_N[a.mask_N == 1] for a in arrays])
        trainer_T = np.ascontiguousarray(unpack_array(blobs, update.tokens)[:, 0], dtype=np.float32)
        found[update.step] = int((trainer_T.view(np.uint32) != sampler_T.view(np.uint32)).sum())
    return found
