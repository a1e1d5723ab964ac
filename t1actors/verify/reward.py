"""The reward of a graded trial: r = P / S (T1 section 8).

S is fixed for the whole run, so 10 of 20 passed assertions are worth more than 2 of 4, and r may exceed 1. What was not
measured has no reward: it is never 0 by accident.
"""

from __future__ import annotations

from t1actors.verify.verdict import Verdict


def reward(verdict: Verdict, scale: float) -> float | None:
    """P / ``scale``; None unless ``verdict`` is graded. Only a task that has no per-assertion channel at all is paid 0 or 1,
    as its grader wrote: solving a task of 4 assertions pays 0.2, so a fallback of 1 for a report that went missing would pay
    an agent five times for breaking it."""
    if verdict.outcome != "graded":
        return None
    if verdict.binary is not None:
        return float(verdict.binary)
    return verdict.passed / scale
