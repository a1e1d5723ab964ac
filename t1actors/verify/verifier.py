"""Grading as one object: what an embedding program, the verifier actor and `t1 grade` use.

    verifier = Verifier(backend)
    verdict = await verifier.grade(task, layer, key="grading")      # fresh-root: a sealed trial
    made = await backend.create(SandboxSpec(key="trial"))             # or a pool's; the agent works in it
    verdict = await verifier.grade_live(task, "trial", key="tests", isolation=made.isolation)  # same-sandbox: before the seal

Guarantees: the tool layer is built once, when the first tests need it, in a thread; runs under trio and asyncio alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from t1actors.events import Isolation
from t1actors.sandbox.interface import HOST, Limits, SandboxBackend
from t1actors.sandbox.retries import RetryPolicy
from t1actors.tasks.layers import tests_layer
from t1actors.tasks.task import Task
from t1actors.verify.command import uses_pytest
from t1actors.verify.grade import grade
from t1actors.verify.live import Tested, judge_live, run_live
from t1actors.verify.toolbox import ToolLayer, build_tool_layer
from t1actors.verify.tools import find_tools
from t1actors.verify.verdict import Verdict

LEASE_MARGIN_S = 60.0


class Verifier:
    """See the module. ``backend`` makes the graders' sandboxes, and must be running."""

    def __init__(
        self,
        backend: SandboxBackend,
        *,
        limits: Limits | None = None,
        deadline_s: float = 900.0,
        packages: Sequence[str] = (),
        wheels: Path | None = None,
        cache: Path | None = None,
        retries: RetryPolicy = RetryPolicy(),  # noqa: B008
        create_deadline_s: float | None = None,
    ) -> None:
        """
        Args:
            limits: those of the trials' sandboxes.
            deadline_s: the longest that a grading may take.
            packages: what tests may import beside pytest; installed here, or wheels in ``wheels``.
            cache: a directory that keeps built tool layers.
            retries, create_deadline_s: of making graders' sandboxes, as in ``verify.grade.grade``.
        """
        self._backend = backend
        self._limits = limits or Limits()
        self._deadline_s = deadline_s
        self._packages = tuple(packages)
        self._wheels = wheels
        self._cache = cache
        self._retries = retries
        self._create_deadline_s = create_deadline_s
        self._tool_layer: ToolLayer | None = None
        self._building = anyio.Lock()

    async def grade(self, task: Task, layer: bytes, *, key: str, base: str = HOST) -> Verdict:
        """As ``verify.grade.grade``. Raises ``VerifyError``, ``SandboxUnavailable``, and ``TaskError`` for tests that
        cannot be read."""
        return await grade(
            task,
            layer,
            self._backend,
            key=key,
            deadline_s=self._deadline_s,
            lease_s=self._deadline_s + LEASE_MARGIN_S,
            limits=self._limits,
            tool_layer=await self.tool_layer_for(task),
            base=base,
            retries=self._retries,
            create_deadline_s=self._create_deadline_s,
        )

    async def test_live(self, task: Task, sandbox: str, *, key: str, isolation: Isolation, base: str = HOST) -> Tested:
        """Run the tests in the agent's own ``sandbox``, which lives on, was made on ``base`` and has this ``isolation``
        (``Created``): what they left. Judged by ``judge_live``."""
        layer = await self.tool_layer_for(task)
        return await run_live(
            task,
            self._backend,
            sandbox,
            key=key,
            isolation=isolation,
            deadline_s=self._deadline_s,
            tool_layer=layer,
            base=base,
        )

    async def grade_live(
        self, task: Task, sandbox: str, *, key: str, isolation: Isolation, base: str = HOST
    ) -> Verdict:
        """``test_live``, judged. Raises what the backend raises for that sandbox."""
        return judge_live(task, await self.test_live(task, sandbox, key=key, isolation=isolation, base=base))

    async def tool_layer_for(self, task: Task) -> ToolLayer | None:
        """The tool layer; None for tests that do without. Raises ``VerifyError``, ``TaskError``."""
        if not uses_pytest(tests_layer(task)):
            return None
        async with self._building:
            if self._tool_layer is None:
                self._tool_layer = await anyio.to_thread.run_sync(self._build)
            return self._tool_layer

    def _build(self) -> ToolLayer:
        return build_tool_layer(
            find_tools().interpreter, packages=self._packages, wheels=self._wheels, cache=self._cache
        )
