"""What the next model call is, and whether it fits: the context budget of an episode.

A chunk is a stream of ids that only grows, of ``max_ids`` at most. Without compaction the episode ends where the next call
does not fit. With it the model is asked for a summary while there is room for one: that call is the chunk's last, and trained
like any other; then a new chunk begins with the instruction, the summary, and what the last turn showed. Nothing is ever
edited in place.

Guarantees: pure. With compaction a call is made only where a summary can still be asked for after it, whatever is sampled;
only a task's opening may be too long for that. A new chunk that has no such room ends the episode (``compaction_failed``),
and so does a summary that was cut off at ``summary_tokens``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from t1actors.config import RolloutConfig
from t1actors.events import Compaction, EpisodeEnd
from t1actors.harness.interface import Harness


class Standing(NamedTuple):
    """Where a trial stands before a call. ``ids``: the chunk so far. ``observation``: what the last turn showed; None before
    the first turn, whose context is made of ``instruction`` and ``screen``. ``summary``: given by the last call, which was
    asked for it."""

    turn: int
    turn_limit: int
    ids: Sequence[int]
    instruction: str
    screen: str
    observation: str | None
    summary: str | None


class Call(NamedTuple):
    """A call to make. With compaction ``start`` its context begins a chunk; else it is what follows ``Standing.ids``."""

    context_ids: tuple[int, ...]
    max_new_tokens: int
    compaction: Compaction


def next_call(harness: Harness, rollout: RolloutConfig, at: Standing) -> Call | EpisodeEnd:
    """The next call, or why there is none."""
    if at.turn >= at.turn_limit:
        return "turn_limit"
    if at.summary is not None:
        return _first_of_a_chunk(harness, rollout, at, at.summary)
    if at.observation is None:
        context = harness.opening(at.instruction, at.screen)
        if len(context) >= rollout.max_ids:
            return "token_limit"
    else:
        context = harness.observation(at.observation, last_sampled=at.ids[-1])
        if rollout.compaction == "summary" and not _leaves_room(harness, rollout, len(at.ids) + len(context)):
            asked = harness.summary_request(last_sampled=at.ids[-1])
            if (room := rollout.max_ids - len(at.ids) - len(asked)) <= 0:
                return "compaction_failed"
            return Call(asked, min(rollout.summary_tokens, room), "summary")
    room = rollout.max_ids - len(at.ids) - len(context)
    return Call(context, min(rollout.max_new_tokens, room), "") if room > 0 else "token_limit"


def _first_of_a_chunk(harness: Harness, rollout: RolloutConfig, at: Standing, summary: str) -> Call | EpisodeEnd:
    context = harness.reopening(at.instruction, summary, at.observation or "")
    if not _leaves_room(harness, rollout, len(context)):
        return "compaction_failed"
    return Call(context, rollout.max_new_tokens, "start")


def _leaves_room(harness: Harness, rollout: RolloutConfig, length: int) -> bool:
    """Whether a call with ``length`` ids of prompt can be followed by one that asks for a summary."""
    asked = len(harness.summary_request(last_sampled=None))
    return length + rollout.max_new_tokens + asked + rollout.summary_tokens <= rollout.max_ids
