"""`t1 warmstart`: the model that a run starts from, made again.

What ships with the package was made by these two commands with their defaults.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import trio
from cyclopts import Parameter

from t1actors.cli.errors import CommandFailed
from t1actors.cli.numbers import Whole, at_least
from t1actors.cli.progress import Progress
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.tasks.demos import read_demonstrations


def demos(
    file: Annotated[Path, Parameter(help="Where to write the corpus, such as demonstrations.jsonl.gz.")],
    *,
    count: Annotated[Whole, Parameter(help="How many demonstrations.")] = 6000,
    seed: Annotated[Whole, Parameter(help="Which mistakes are made, and where.")] = 0,
    parallel: Annotated[Whole, Parameter(help="Sandboxes at once.")] = 8,
) -> None:
    """Execute noisy demonstrations of the built-in tasks in real sandboxes and write them down.

    Every second sub-goal is done wrong and a quarter of the demonstrations stop early: what is left to learn.

    Example: `t1 warmstart demos demonstrations.jsonl.gz --count 6000`
    """
    at_least(1, "--count", count)
    at_least(1, "--parallel", parallel)
    if file.is_dir():
        raise CommandFailed(f"{file} is a directory; name the file to write in it, such as {file / 'demos.jsonl.gz'}")
    _make_writable(file.parent)
    print("loading torch", file=sys.stderr, flush=True)
    from t1actors.train.warmstart import WarmstartConfig, demonstrate

    async def execute(progress: Progress) -> None:
        with tempfile.TemporaryDirectory(prefix="t1-demos-") as root:
            backend = NamespaceBackend(Path(root) / "sandboxes", name="demos")
            async with backend.running():
                config = WarmstartConfig(demonstrations=count, seed=seed)
                await demonstrate(backend, file, config, parallel=parallel, progress=progress)

    with Progress("executed") as progress:
        progress(0, count)
        trio.run(execute, progress)
    print(f"{count} demonstrations in {file}, {progress.elapsed}")


def make(
    folder: Annotated[Path, Parameter(help="Where to write the model, a Hugging Face folder.")],
    *,
    corpus: Annotated[Path | None, Parameter(help="Demonstrations; the shipped ones by default.")] = None,
) -> None:
    """Train tokenizer and policy on demonstrations (about two minutes on one core).

    Use it with `t1 run --set model.policy=FOLDER`.

    Example: `t1 warmstart make my-warm-start`
    """
    if corpus is not None and not corpus.exists():
        raise CommandFailed(f"no demonstrations at {corpus}; `t1 warmstart demos FILE` makes some")
    _make_writable(folder)
    print("loading torch", file=sys.stderr, flush=True)
    from t1actors.train.sft import SftProgress
    from t1actors.train.warmstart import WarmstartConfig, shipped_corpus
    from t1actors.train.warmstart import make as make_policy

    source = corpus or shipped_corpus()
    config = WarmstartConfig()
    print("reading the demonstrations and training the tokenizer", file=sys.stderr, flush=True)
    with Progress("steps") as progress:

        def on_progress(now: SftProgress) -> None:
            progress(now.step + 1, config.training.steps, f"loss {now.loss:.3f}")

        make_policy(folder, read_demonstrations(source), config, on_progress=on_progress)
    print(f"{folder}, {progress.elapsed}")


def _make_writable(folder: Path) -> None:
    """What cannot be written is said now, and not after the work. Raises ``OSError``."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
