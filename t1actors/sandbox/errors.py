"""Why a sandbox could not do what was asked. One hierarchy; only the standard library: the shim raises these too.

The classes say who is at fault, since that decides what a trial is worth: ``SandboxUnavailable`` is the host's doing
(no sandbox can be made here), ``SandboxDied`` names the cause (inside the trial's limits or outside them),
``SandboxGone`` means that nothing is left under that key, and ``ArchiveError`` blames the bytes of one archive.
"""

from __future__ import annotations


class SandboxError(Exception):
    """Base of all errors of this folder. The message names the sandbox, the step and what to do next."""


class SandboxUnavailable(SandboxError):
    """This host cannot make sandboxes: ``step`` failed for ``reason``; ``fix`` is what a person can do about it."""

    def __init__(self, step: str, reason: str, fix: str) -> None:
        super().__init__(f"no sandbox can be made here: {step} failed: {reason}. {fix}")
        self.step = step
        self.reason = reason
        self.fix = fix


class SandboxGone(SandboxError):
    """Nothing lives under this key: it was never created, was killed, or its lease ended."""


class SandboxDied(SandboxError):
    """The sandbox's processes are dead; what it wrote can still be sealed. ``cause`` is ``memory`` (inside the trial's
    limits) or ``killed`` (outside them: infrastructure)."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class SandboxSealed(SandboxError):
    """A command was sent to a sandbox that is sealed: every process inside is dead on purpose."""


class SandboxRefused(SandboxError):
    """The request makes no sense for this sandbox: says what is wrong with it and what would be right."""


class ArchiveError(SandboxError):
    """An archive's bytes, or a tree that was to become one, are not what they must be: says where."""
