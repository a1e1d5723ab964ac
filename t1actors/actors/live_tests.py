"""Tests of tasks that are graded in the agent's own sandbox: run by the pool, whose sandbox it is, before it seals.

Guarantees: a task that asks for it is refused by name unless the run allows it (``verify.same_sandbox``); what the
tests left goes with ``SandboxSealed`` to the verifier, which alone judges.
"""

from __future__ import annotations

import msgspec

from t1actors.actors.task_files import TaskFiles
from t1actors.actors.verdicts import TOOLS_FOLDER, verifier_of
from t1actors.config import Config
from t1actors.events import Isolation, Payload
from t1actors.payloads import pack
from t1actors.runtime.actor import ActorContext, Unrecoverable
from t1actors.sandbox.interface import HOST, Limits, SandboxBackend
from t1actors.tasks.task import Task, TaskError
from t1actors.verify.verdict import VerifyError

CARRY_MARGIN_S = 180.0
"""Room for bringing the tests in, beside the tests themselves."""


def why_not(task: Task, config: Config) -> str:
    """Why the run does not allow the way in which ``task`` is graded; empty: it does."""
    if task.grading.mode == "fresh-root" or config.verify.same_sandbox:
        return ""
    return (
        "its task.toml asks for grading in the agent's own sandbox, where a report can be forged; allow it with "
        "--set verify.same_sandbox=true"
    )


class LiveTests:
    """For the pool; see the module."""

    def __init__(self, context: ActorContext, tasks: TaskFiles, backend: SandboxBackend) -> None:
        self._config = context.config
        self._tasks = tasks
        self._blobs = context.blobs
        self._verifier = verifier_of(context.config, backend, cache=context.run_dir / TOOLS_FOLDER)

    @property
    def deadline_s(self) -> float:
        """What sealing a trial may take longer for them."""
        return self._config.verify.deadline_s + CARRY_MARGIN_S if self._config.verify.same_sandbox else 0.0

    def check(self, task: Task) -> None:
        """Raises ``TaskError`` for a task that the run does not allow."""
        if reason := why_not(task, self._config):
            raise TaskError(f"task {task.name}: {reason}")

    def limits(self, task: Task, limits: Limits) -> Limits:
        """Of its sandbox: commands may take as long as the tests do."""
        if task.grading.mode != "same-sandbox":
            return limits
        return msgspec.structs.replace(limits, command_s=max(limits.command_s, self._config.verify.deadline_s))

    async def run(self, trial: str, task_name: str, image: str, isolation: Isolation) -> Payload | None:
        """What the tests left in the trial's sandbox, made with ``isolation`` on ``image`` (empty: none); None for a task
        that is graded elsewhere.

        Raises ``SandboxError``, ``TaskError``."""
        if not self._config.verify.same_sandbox:
            return None
        task = self._tasks.read(task_name)
        if task.grading.mode != "same-sandbox":
            return None
        try:
            tested = await self._verifier.test_live(
                task, trial, key=f"{trial}/live", isolation=isolation, base=image or HOST
            )
        except VerifyError as error:
            raise Unrecoverable(str(error)) from error
        return pack(self._blobs, msgspec.msgpack.encode(tested))
