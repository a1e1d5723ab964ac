"""One actor as one process: ``python -m t1actors.runtime.process RUN_DIR NAME package.module:Factory``.

A plain command that a supervisor, systemd or Slurm can start. It reads ``RUN_DIR/config.toml``, holds the journal
``RUN_DIR/log/NAME`` and logs JSON lines to stderr.

Guarantees: SIGTERM is a clean stop (what was applied is committed; exit status 0). With ``--lifeline``, end of file
on stdin means that the supervisor is dead: the whole process group ends at once, however busy the event loop is.
With ``--status-fd N`` it writes the lines ``opened EPOCH``, ``ready``, ``alive`` every ``--beat-s`` seconds for as long as
its event loop runs, ``stalled REASON`` when an effect hangs (then it is to be killed), and, when it fails, ``failed
REASON``. Exit status 78 says that a restart cannot help.

There is no parent-death signal: that one fires when the *thread* that started the child ends, and event loops start
children from worker threads that come and go.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

import anyio
import structlog

from t1actors.config import ConfigError, from_toml
from t1actors.log.blobs import FileBlobs
from t1actors.log.filelog import FileLog
from t1actors.log.interface import JournalDamaged
from t1actors.payloads import BlobError
from t1actors.runtime.actor import ActorFactory, Unrecoverable
from t1actors.runtime.actor_log import log_to_stderr
from t1actors.runtime.appending import in_thread, inline
from t1actors.runtime.errors import EXIT_UNRECOVERABLE, HostError, RecoveryError, RunDirectoryError, leaves
from t1actors.runtime.fingerprint import code_version
from t1actors.runtime.host import host_actor
from t1actors.runtime.moments import NOBODY, Moments

_logger = structlog.get_logger()

UNRECOVERABLE = (
    Unrecoverable,
    ConfigError,
    RunDirectoryError,
    HostError,
    RecoveryError,
    JournalDamaged,
    BlobError,
    ImportError,
)


@dataclass(frozen=True)
class Arguments:
    """The command line, read."""

    run_dir: Path
    name: str
    factory: str
    status_fd: int | None
    lifeline: bool
    beat_s: float


class Status:
    """Tells the supervisor, if there is one, how far this process has come."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def tell(self, line: str) -> None:
        """One line, cut to what fits; nothing without a supervisor."""
        if self._descriptor is not None:
            os.write(self._descriptor, (" ".join(line.split()) + "\n").encode()[:4096])


def main(
    argv: Sequence[str] | None = None, *, moments: Callable[[Arguments], Moments] = lambda arguments: NOBODY
) -> int:
    """Host one actor until it ends; the exit status says how it did. ``moments`` is for a program of one's own that hosts
    actors (``RunPlan.program``) and wants to be told where this one is."""
    arguments = _parse(argv)
    status = Status(arguments.status_fd)
    if arguments.lifeline:
        # A thread, not a task: it also ends a process whose event loop is busy or stuck.
        threading.Thread(target=_end_with_supervisor, name="lifeline", daemon=True).start()
    log_to_stderr(arguments.name, os.getpid())
    try:
        anyio.run(_serve, arguments, status, moments(arguments), backend="trio")
    except Exception as error:
        errors = leaves(error)
        first = next((one for one in errors if isinstance(one, UNRECOVERABLE)), errors[0])
        reason = f"{type(first).__name__}: {first}"
        _logger.error(f"failed: {reason}", exc_info=first)
        status.tell(f"failed {reason}")
        return EXIT_UNRECOVERABLE if isinstance(first, UNRECOVERABLE) else 1
    _logger.info("stopped")
    return 0


async def _serve(arguments: Arguments, status: Status, moments: Moments) -> None:
    run_dir = arguments.run_dir
    config_path = run_dir / "config.toml"
    try:
        config = from_toml(config_path.read_text(), origin=str(config_path))
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{run_dir} is no run directory: {config_path} is missing") from error
    # What torch makes when it is imported stays for good: collecting among it meanwhile takes a quarter of the start.
    gc.disable()
    factory = load_factory(arguments.factory)
    gc.freeze()
    gc.enable()

    async def opened(epoch: int) -> None:
        _logger.info("opened its journal", epoch=epoch)
        status.tell(f"opened {epoch}")

    async def ready() -> None:
        _logger.info("ready")
        status.tell("ready")

    async def stalled(reason: str) -> None:
        _logger.error(f"stalled: {reason}")
        status.tell(f"stalled {reason}")

    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:

            async def stop_when_told() -> None:
                async for _ in signals:
                    tasks.cancel_scope.cancel()

            async def beat() -> None:
                while True:
                    status.tell("alive")
                    await anyio.sleep(arguments.beat_s)

            tasks.start_soon(stop_when_told)
            tasks.start_soon(beat)
            await host_actor(
                factory,
                name=arguments.name,
                log=FileLog(run_dir / "log", config.run.log_durability, segment_bytes=config.run.segment_bytes),
                blobs=FileBlobs(run_dir / "blobs", config.run.log_durability),
                config=config,
                run_dir=run_dir,
                code=code_version(),
                # Without a flush an append takes microseconds, less than a thread's two hand-overs.
                appending=in_thread() if config.run.log_durability == "machine" else inline,
                opened=opened,
                ready=ready,
                stalled=stalled,
                moments=moments,
            )


def load_factory(path: str) -> ActorFactory:
    """The factory named ``package.module:attribute``. Raises ``ImportError``."""
    module, separator, attribute = path.partition(":")
    if not separator:
        raise ImportError(f"actor factory {path!r}: expected package.module:attribute")
    found = getattr(importlib.import_module(module), attribute, None)
    if not callable(found):
        raise ImportError(f"actor factory {path!r}: module {module} has no callable {attribute!r}")
    return cast(ActorFactory, found)


def _end_with_supervisor() -> None:
    while os.read(0, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _parse(argv: Sequence[str] | None) -> Arguments:
    parser = argparse.ArgumentParser(prog="python -m t1actors.runtime.process", description="Runs one actor of a run.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("name")
    parser.add_argument("factory", help="package.module:attribute")
    parser.add_argument("--status-fd", type=int)
    parser.add_argument("--beat-s", type=float, default=30.0)
    parser.add_argument("--lifeline", action="store_true", help="end when stdin ends")
    return Arguments(**vars(parser.parse_args(argv)))


def end(status: int) -> NoReturn:
    """End at once: taking an interpreter with torch in it apart costs a second of CPU, and everything is closed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    end(main())
