"""The runtime's errors: each names the actor, the place and the next step."""

from __future__ import annotations

EXIT_UNRECOVERABLE = 78
"""Exit status of an actor's process when a restart cannot help (EX_CONFIG of sysexits.h)."""


class RuntimeFault(Exception):
    """Base of this folder's errors."""


class HostError(RuntimeFault):
    """An actor broke the host's rules (a decision larger than a frame, one key for two effects). A restart cannot
    help."""


class RecoveryError(RuntimeFault):
    """An actor's journal rests on events that cannot be read any more, or contradicts itself. A restart cannot help."""


class EffectStalled(RuntimeFault):
    """An effect that must show progress has shown none for too long. A restart may help: what it hung in is gone then."""


class RunDirectoryError(RuntimeFault):
    """A run directory that cannot be used for this run."""


class ActorFailed(RuntimeFault):
    """An actor raised: ``actor`` names it, ``__cause__`` is what it raised."""

    def __init__(self, actor: str, message: str) -> None:
        super().__init__(f"actor {actor} failed: {message}")
        self.actor = actor


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions inside nested exception groups, in order; ``[error]`` when it is no group."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    found: list[BaseException] = []
    for inner in error.exceptions:  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        found.extend(leaves(inner))  # pyright: ignore[reportUnknownArgumentType]
    return found
