"""What grading a trial ends with. A plain value: the verifier actor turns it into ``Graded``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from t1actors.events import AssertionResult, Channel, GradingMode, Isolation, Outcome, counted
from t1actors.sandbox.retries import Retry
from t1actors.tasks.task import Task

NO_ISOLATION = Isolation(backend="")
"""Of a grading that got no sandbox."""


class VerifyError(Exception):
    """Grading cannot work here at all (no interpreter, unreadable tests): says what is missing and what to do."""


@dataclass(frozen=True)
class Verdict:
    """Only ``outcome == "graded"`` measures the trial; every other outcome says why it was not measured.

    ``assertions`` are the expected ones in declared order (of a task that declares none: the report's own); ``passed`` and
    ``expected`` count them (``events.counted``). ``binary`` is set only where there are none: the task declares none,
    its tests have no report, and the grader wrote 0 or 1. ``output`` is the end of what the tests said. ``channel`` says
    which report decided, ``warnings`` what is not promised, ``retried`` after which faults the grader's sandbox was made.
    """

    outcome: Outcome
    assertions: tuple[AssertionResult, ...] = ()
    binary: int | None = None
    tests_digest: str = ""
    tools_digest: str = ""
    isolation: Isolation = NO_ISOLATION
    seconds: float = 0.0
    phases: tuple[tuple[str, float], ...] = ()
    detail: str = ""
    output: str = ""
    mode: GradingMode = ""
    channel: Channel = ""
    tool_layer_digest: str = ""
    stand_ins: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    retried: tuple[Retry, ...] = ()

    @property
    def passed(self) -> int:
        return counted(self.assertions)[0]

    @property
    def expected(self) -> int:
        return counted(self.assertions)[1]


class Grader(Protocol):
    """Whoever gives verdicts on sealed trials: ``verifier.Verifier``, or one of your own."""

    async def grade(self, task: Task, layer: bytes, *, key: str, base: str) -> Verdict:
        """The verdict on ``layer``, the canonical archive (``sandbox.archive``), rooted at /, of what was written on top of
        ``base``. ``key`` names the grading: asked again with it, the answer is the same."""
        ...
