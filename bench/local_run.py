"""A run in this process, over any log: every actor in one task group, real model, real sandboxes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
import trio

from t1actors.cli.run import ACTORS
from t1actors.config import Config
from t1actors.log.blobs import FileBlobs
from t1actors.log.interface import Log
from t1actors.runtime.appending import Appending
from t1actors.runtime.local import LocalResult, run_local
from t1actors.runtime.process import load_factory


@contextmanager
def temporary_directory() -> Generator[Path]:
    """As short as the system's temporary directory allows: a socket's path has little room."""
    path = Path(tempfile.mkdtemp(prefix="t1-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def local_run(run_dir: Path, config: Config, log: Log, *, appending: Appending) -> LocalResult:
    """To its end. Raises ``ActorFailed``; ``RuntimeError`` when the run itself failed."""
    torch.set_num_threads(1)
    actors = [(name, load_factory(path)) for name, path in ACTORS.items()]
    run_dir.mkdir(parents=True, exist_ok=True)

    async def main() -> LocalResult:
        return await run_local(
            actors,
            config=config,
            log=log,
            blobs=FileBlobs(run_dir / "blobs"),
            run_dir=run_dir,
            appending=appending,
        )

    result = trio.run(main)
    if result.reason != "finished":
        raise RuntimeError(f"the run failed: {result.detail}")
    return result
