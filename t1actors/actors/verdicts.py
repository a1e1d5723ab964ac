"""How a run grades a sealed trial: what the verifier actor and `t1 grade` share, so that both grade alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from t1actors.config import Config
from t1actors.events import SandboxSealed
from t1actors.payloads import Blobs, unpack
from t1actors.sandbox.choice import limits_of
from t1actors.sandbox.interface import HOST, SandboxBackend
from t1actors.sandbox.retries import RetryPolicy
from t1actors.tasks.task import Task
from t1actors.verify.live import Tested, judge_live
from t1actors.verify.verdict import Grader, Verdict
from t1actors.verify.verifier import Verifier

TOOLS_FOLDER = "tools"
"""In a run's directory: built tool layers."""


def verifier_of(
    config: Config, backend: SandboxBackend, *, cache: Path | None = None, packages: Sequence[str] = ()
) -> Verifier:
    """As the run's configuration says; ``packages`` come on top."""
    verify = config.verify
    return Verifier(
        backend,
        limits=limits_of(config.sandbox, command_s=verify.deadline_s),
        deadline_s=verify.deadline_s,
        packages=(*verify.tool_packages, *packages),
        cache=cache,
        retries=retries_of(config),
        create_deadline_s=config.sandbox.create_deadline_s,
    )


def retries_of(config: Config) -> RetryPolicy:
    """Of every sandbox of a run, trials' and graders'."""
    return RetryPolicy(config.sandbox.retries, config.sandbox.retry_pause_s, seed=config.run.seed)


async def verdict_on(sealed: SandboxSealed, task: Task, verifier: Grader, blobs: Blobs, *, key: str) -> Verdict:
    """Grade the sealed trial: in a fresh root, or from what its tests left in its own sandbox.

    Raises:
        BlobError: what is to be graded is not there, or damaged.
        VerifyError, TaskError, SandboxUnavailable: as ``Verifier.grade``.
    """
    if sealed.tested is not None:
        return judge_live(task, msgspec.msgpack.decode(unpack(blobs, sealed.tested), type=Tested))
    return await verifier.grade(task, bytes(unpack(blobs, sealed.layer)), key=key, base=sealed.image or HOST)
