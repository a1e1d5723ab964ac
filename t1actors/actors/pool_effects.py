"""What the pool does to sandboxes, and under which keys."""

from __future__ import annotations

from t1actors.runtime.actor import Effect

RECLAIM = "/kill"
DEADLINE = "/trial"
"""The whole trial's timer."""
REAP = "reap/"


class Create(Effect, frozen=True, kw_only=True):
    """Make the trial's sandbox, once it is admitted."""

    trial: str
    task: str


class Run(Effect, frozen=True, kw_only=True):
    """Run one turn's command; the key makes it once."""

    trial: str
    turn: int
    command: str


class Seal(Effect, frozen=True, kw_only=True):
    """End the trial's processes and store what was written."""

    trial: str
    task: str


class Reclaim(Effect, frozen=True, kw_only=True):
    """Kill the trial's sandbox, if it has one."""

    trial: str


class Reap(Effect, frozen=True, kw_only=True):
    """Remove what is left of sandboxes that nobody owns."""


def run_key(trial: str, turn: int) -> str:
    """Of a turn's command."""
    return f"{trial}/{turn}/run"


def start_key(trial: str) -> str:
    """Of what makes its sandbox ready for the first turn."""
    return f"{trial}/start"


def trial_of(key: str) -> str:
    """The trial that an effect is for."""
    return key.partition("/")[0]


def is_work(key: str) -> bool:
    """Whether the trial has to wait for it before it is reclaimed."""
    return not key.endswith((RECLAIM, DEADLINE)) and not key.startswith(REAP)
