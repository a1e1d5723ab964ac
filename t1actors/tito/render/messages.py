"""A conversation as chat clients send it, reduced to what a model is shown: roles, texts, tool calls.

Equality is what decides whether a client returned what it was given (``Message.same_as``), so every value here is plain,
frozen and compared by content. Reading them out of a request is the endpoint's business, writing them as ids a renderer's.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Role = Literal["system", "developer", "user", "assistant", "tool"]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a tool. ``arguments`` is the JSON text of an object, as the model wrote it."""

    id: str
    name: str
    arguments: str


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model may call. ``parameters`` is its JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message. ``reasoning`` is what an assistant thought before ``content``; ``tool_call_id`` and ``name`` are of a
    tool's answer."""

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""

    def same_as(self, given: Message) -> bool:
        """Whether this is ``given``, which was handed out before. Clients may leave reasoning out; what they return of it
        must be the same."""
        return msgspec.structs.replace(self, reasoning="") == msgspec.structs.replace(given, reasoning="") and (
            self.reasoning in ("", given.reasoning)
        )
