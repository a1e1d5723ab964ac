"""What is tried again, how often, and after how long. Pure.

Only a fault of the infrastructure is worth another try: what is wrong with a spec or with a task's files is wrong the
next time, and what a trial does to itself is its result. The pauses differ from sandbox to sandbox, so that those that
failed together are not tried again together; they are a function of (seed, key, attempt), so a run that is repeated has
the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from t1actors.sandbox.errors import ArchiveError, SandboxDied, SandboxError, SandboxRefused, SandboxSealed


@dataclass(frozen=True)
class Retry:
    """One more try of a creation: after which fault, and how long that waits."""

    key: str
    attempt: int
    """Of the one that failed, from 1."""
    cause: str
    detail: str
    pause_s: float


@dataclass(frozen=True)
class RetryPolicy:
    """``most`` more tries; the first after about ``pause_s``, each later one after about twice as long as the one before."""

    most: int = 2
    pause_s: float = 0.2
    longest_s: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.most < 0 or self.pause_s < 0 or self.longest_s < self.pause_s:
            raise ValueError(f"{self}: must not be negative, and longest_s not below pause_s")

    def after(self, error: Exception, key: str, attempt: int) -> Retry | None:
        """What to do about the ``attempt``-th try of ``key`` that failed with ``error``; None: give up."""
        if attempt > self.most or not is_infrastructure(error):
            return None
        middle_s = min(self.longest_s, self.pause_s * 2 ** (attempt - 1))
        number = int.from_bytes(sha256(f"{self.seed}/{key}/{attempt}".encode()).digest()[:8], "big")
        pause_s = middle_s * (0.5 + number / 2**64)
        return Retry(key, attempt, type(error).__name__, str(error), pause_s)


def is_infrastructure(error: Exception) -> bool:
    """Whether neither the trial nor its task brought it about."""
    if isinstance(error, SandboxDied):
        return error.cause != "memory"
    if isinstance(error, ArchiveError | SandboxRefused | SandboxSealed):
        return False
    return isinstance(error, SandboxError | TimeoutError)
