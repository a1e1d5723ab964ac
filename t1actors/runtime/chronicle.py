"""The supervisor's journal: who was started, is ready, has stopped, and how the run began and ended.

Guarantees: ``record`` returns when the events are durable; records never interleave; each rests on what it names and on what
those before it did, earlier sessions included.
An actor's epoch is what its journal said when it was opened; the supervisor reports it and never makes one up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import anyio

from t1actors.config import Config, digest, from_toml, to_toml
from t1actors.events import AnyEvent, Event, RunStarted, decode, encode
from t1actors.log.interface import CommitHead, Log
from t1actors.runtime.appending import Appending
from t1actors.runtime.clock import Clock
from t1actors.runtime.errors import RunDirectoryError
from t1actors.runtime.numerics import Numerics, first_start
from t1actors.runtime.recovery import SUPERVISOR
from t1actors.tasks.choice import CHOICE, choice_digest

E = TypeVar("E", bound=Event)


def check_configuration(log: Log, run_dir: Path, config: Config, kernels: str = "") -> None:
    """Raises ``RunDirectoryError`` when ``log`` was begun with another configuration, other tasks or other kernels: whatever
    the files say today, the steps before were made with those."""
    begun = first_start(log)
    if begun is None:
        return
    if digest(from_toml(begun.config_toml)) != digest(config):
        raise RunDirectoryError(
            f"{run_dir}: its log was begun with another configuration than this run's; restore its config.toml "
            "(`t1 log cat --kind RunStarted` shows what it held), or choose a new run directory"
        )
    if begun.tasks_digest != choice_digest(run_dir):
        raise RunDirectoryError(
            f"{run_dir / CHOICE}: not the choice of tasks that its log was begun with; restore the file, or choose a new "
            "run directory"
        )
    if begun.kernels and kernels and begun.kernels != kernels:
        raise RunDirectoryError(
            f"{run_dir}: its log was begun with the {begun.kernels} kernels and would go on with the {kernels} ones, whose "
            "bits are others; ask for those that it was begun with, or choose a new run directory"
        )


class Chronicle:
    """Opened with ``with``; raises ``JournalFenced`` when another supervisor has the run."""

    def __init__(self, log: Log, *, clock: Clock, code: str, appending: Appending) -> None:
        self._writer = log.open_writer(SUPERVISOR)
        self._clock = clock
        self._code = code
        self._appending = appending
        self._lock = anyio.Lock()
        self.session = self._writer.epoch
        self._vector = _last_vector(log)

    async def begin(self, run_dir: Path, config: Config, environment: Mapping[str, str], numerics: Numerics) -> None:
        """RunStarted."""
        started = RunStarted(
            run=run_dir.name,
            config_digest=digest(config),
            config_toml=to_toml(config),
            code_version=self._code,
            environment=dict(environment),
            resumed=self._writer.next_sequence > 0,
            session=self.session,
            tasks_digest=choice_digest(run_dir),
            kernels=numerics.kernels,
            numerics=dict(numerics.facts),
        )
        await self.record([started])

    async def record(self, events: Sequence[AnyEvent], *, rests_on: Mapping[str, int] | None = None) -> None:
        """Appends ``events`` as one frame. Not interrupted by a cancellation: it may have landed."""
        encoded = [encode(event) for event in events]
        with anyio.CancelScope(shield=True):
            async with self._lock:
                self._vector |= rests_on or {}
                head = CommitHead(
                    vector=dict(self._vector),
                    code=self._code,
                    wall_ns=self._clock.wall_ns(),
                    mono_ns=self._clock.mono_ns(),
                    boot_id=self._clock.boot_id,
                )
                await self._appending(partial(self._writer.append, head, encoded))

    def __enter__(self) -> Chronicle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()


def recorded(log: Log, kind: type[E]) -> list[E]:
    """The supervisor's events of one kind."""
    found: list[E] = []
    with closing(log.open_reader(SUPERVISOR)) as reader:
        while frames := reader.read():
            events = [decode(raw) for frame in frames for raw in frame.events]
            found += [event for event in events if isinstance(event, kind)]
    return found


def _last_vector(log: Log) -> dict[str, int]:
    """What the supervisor's last frame rests on."""
    vector: dict[str, int] = {}
    with closing(log.open_reader(SUPERVISOR)) as reader:
        while frames := reader.read():
            vector = dict(frames[-1].head.vector)
    return vector
