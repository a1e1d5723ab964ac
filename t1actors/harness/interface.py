"""What a harness is: two halves that meet in the log.

The sampler's half (``Harness``) turns text into the ids that a call adds, and a sampled turn into what is to be done. The
pool's half (``Hands``) does it in a sandbox and says what the model is shown of it. What passes between them is a turn's
``command``, a text that says all: the pool performs it under the turn's key, and performs it again in a sandbox that had to
be made again.

Guarantees of every harness: both halves are functions of their arguments and of the configuration. What a turn means may
depend on the turns before it only through the ``command`` of the one before, which carries what there is to remember.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from t1actors.events import EpisodeEnd
from t1actors.sandbox.interface import RunRequest, RunResult


class HarnessError(Exception):
    """A sandbox lacks what the harness needs in it. Says what, and what to do."""


class Reading(NamedTuple):
    """What a sampled turn means. ``command``: what the pool is to perform. ``canonical``: encoding the turn's text gives
    the same ids back. ``end``: why the episode ends with this turn and nothing of it is performed, if it does."""

    command: str
    canonical: bool
    end: EpisodeEnd | None


class Harness(Protocol):
    """The sampler's half."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Sampling one of these ends a turn; it is part of what was sampled."""
        ...

    def opening(self, instruction: str, screen: str) -> tuple[int, ...]:
        """The first call's context. ``screen``: what ``Hands.screen`` said of the terminal, empty where it has none."""
        ...

    def observation(self, text: str, *, last_sampled: int) -> tuple[int, ...]:
        """The context of a call that follows a turn which ended with the id ``last_sampled``; ``text`` is what the model is
        shown of that turn."""
        ...

    def reading(self, sampled_ids: Sequence[int], finish: Literal["stop", "length"], *, previous: str) -> Reading:
        """What a turn means; ``previous`` is the ``command`` of the one before, empty before the first."""
        ...

    def summary_request(self, *, last_sampled: int | None) -> tuple[int, ...]:
        """The context of a call that asks for a summary after a turn that ended with the id ``last_sampled``. None: of the
        longest such context."""
        ...

    def summary(self, sampled_ids: Sequence[int], finish: Literal["stop", "length"]) -> Reading:
        """What that call said: its ``command`` is the summary. One that was cut off ends the episode."""
        ...

    def reopening(self, instruction: str, summary: str, observation: str) -> tuple[int, ...]:
        """The first context of a new chunk. ``observation``: what the model was to be shown next."""
        ...

    def end_after(self, command: str) -> EpisodeEnd | None:
        """Why the episode ends once ``command`` was performed, if it does."""
        ...


class Hands(Protocol):
    """The pool's half."""

    @property
    def limit_s(self) -> float:
        """The longest that a request may take: what a sandbox's ``Limits.command_s`` must allow."""
        ...

    def start(self, key: str) -> RunRequest | None:
        """What makes a new sandbox ready for the first turn; None where nothing does."""
        ...

    def screen(self, started: RunResult) -> str:
        """What there is to see after ``start``. Raises ``HarnessError``."""
        ...

    def request(self, key: str, command: str) -> RunRequest | None:
        """What performs a turn's ``command``, or None where nothing is to be done in the sandbox."""
        ...

    def observation(self, command: str, result: RunResult | None) -> str:
        """What the model is shown of ``command``; ``result`` is None where ``request`` was."""
        ...
