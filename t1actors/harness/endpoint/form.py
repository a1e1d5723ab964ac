"""What the endpoint's parts say to each other: a call as it was read, and what was answered. No HTTP, no JSON of any API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from t1actors.tito.render.messages import Message, Tool

JsonObject: TypeAlias = dict[str, Any]
"""A body on its way out."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One model call. ``digest`` is of all that was asked for. ``request_id`` is the client's, empty when it has none;
    ``is_retry``: the client says that it sent the same before and got no answer. What is None is left to the endpoint.
    ``one_tool_call``: of several, only the first is handed out."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    digest: str
    max_new_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    one_tool_call: bool = False
    request_id: str = ""
    is_retry: bool = False


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A committed turn. ``held_ids`` of its ``prompt_ids`` were not rendered for this call."""

    session: str
    turn: int
    given: Message
    finish: Literal["stop", "length"]
    version: str
    prompt_ids: int
    held_ids: int
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
