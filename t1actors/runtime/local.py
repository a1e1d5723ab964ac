"""The in-process host: all actors of a run in one task group, for tests and for embedding.

Guarantees: the same actors, journals and rules as with a process each; the run ends with RunFinished or RunFailed,
or with ``ActorFailed`` naming the first actor that raised. Nothing is restarted here: a failed actor's journal is
whole, and calling ``run_local`` again over the same log resumes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio

from t1actors.config import Config
from t1actors.events import ActorReady, ActorStarted, RunStopped
from t1actors.log.interface import Log
from t1actors.payloads import Blobs
from t1actors.runtime.actor import ActorFactory
from t1actors.runtime.appending import Appending, inline
from t1actors.runtime.chronicle import Chronicle, check_configuration
from t1actors.runtime.clock import Clock, system_clock
from t1actors.runtime.conclusion import Conclusion, concluded
from t1actors.runtime.errors import ActorFailed, leaves
from t1actors.runtime.host import host_actor
from t1actors.runtime.numerics import Numerics


@dataclass(frozen=True)
class LocalResult:
    """``detail`` is the failure's reason, or how many steps were made."""

    reason: Literal["finished", "failed", "interrupted"]
    detail: str
    seconds: float


async def run_local(
    actors: Sequence[tuple[str, ActorFactory]],
    *,
    config: Config,
    log: Log,
    blobs: Blobs,
    run_dir: Path,
    concludes: str = "publisher",
    clock: Clock | None = None,
    code: str = "",
    environment: Mapping[str, str] | None = None,
    numerics: Numerics | None = None,
    appending: Appending = inline,
) -> LocalResult:
    """Runs ``actors`` (name, factory) until the actor ``concludes`` emits RunFinished or RunFailed, with the kernels of
    ``numerics``; None: with those that the configuration names, which are not recorded.

    Raises ``ActorFailed``, and ``RunDirectoryError`` where the log was begun with another configuration or other kernels.
    """
    clock = clock or system_clock()
    started_s = clock.monotonic()

    with Chronicle(log, clock=clock, code=code, appending=appending) as chronicle:
        numerics = numerics or Numerics()
        check_configuration(log, run_dir, config, numerics.kernels)
        await chronicle.begin(run_dir, config, environment or {}, numerics)

        async def host(name: str, factory: ActorFactory) -> None:
            epoch = 0

            async def opened(number: int) -> None:
                nonlocal epoch
                epoch = number
                await chronicle.record([ActorStarted(actor=name, journal=name, epoch=epoch, pid=os.getpid())])

            async def ready() -> None:
                await chronicle.record([ActorReady(actor=name, epoch=epoch, seconds=clock.monotonic() - started_s)])

            try:
                await host_actor(
                    factory,
                    name=name,
                    log=log,
                    blobs=blobs,
                    config=config,
                    run_dir=run_dir,
                    clock=clock,
                    code=code,
                    appending=appending,
                    opened=opened,
                    ready=ready,
                )
            except Exception as error:
                first = leaves(error)[0]
                raise ActorFailed(name, f"{type(first).__name__}: {first}") from error

        async def until_concluded() -> Conclusion:
            async with anyio.create_task_group() as tasks:
                for name, factory in actors:
                    tasks.start_soon(host, name, factory)
                end = await concluded(log, concludes, session=chronicle.session)
                tasks.cancel_scope.cancel()
                return end
            raise AssertionError("the task group ends with a conclusion or an exception")

        try:
            end = await until_concluded()
        except BaseExceptionGroup as group:
            failed = next((error for error in leaves(group) if isinstance(error, ActorFailed)), None)
            if failed is None:
                raise
            await chronicle.record([RunStopped(reason=str(failed))])
            raise failed from failed.__cause__
        await chronicle.record([RunStopped(reason=end.reason)], rests_on={end.journal: end.sequence})
    return LocalResult(end.reason, end.detail, clock.monotonic() - started_s)
