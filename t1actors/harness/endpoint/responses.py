"""``POST /v1/responses``: reading a call, and writing its answer, whole or as events.

A conversation is a list of items here: what an assistant said in one turn comes back as several (reasoning, message, calls),
and is one message again. Nothing is stored for the client: it sends all items with each call, as with ``store`` false.

Guarantees: as in ``chat``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from t1actors.harness.endpoint.errors import bad_request
from t1actors.harness.endpoint.form import Answered, Call, JsonObject
from t1actors.harness.endpoint.reading import (
    Content,
    WireFunction,
    as_tool,
    chosen_tools,
    digest_of_call,
    refuse_unless_neutral,
    text_of,
    which,
)
from t1actors.tito.render.messages import Message, Tool, ToolCall

IGNORED = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "include", "text", "reasoning", "stream_options", "client_metadata", "truncation",
)  # fmt: skip
"""Hints, and what to include that is not there."""


class WireTool(msgspec.Struct, frozen=True):
    """A tool as a call names it."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class WireItem(msgspec.Struct, frozen=True):
    """An item of a conversation. ``status``, ids of items and the like are passed over: no model is shown them."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content = None


class WireCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a call. None is "not said"."""

    input: str | list[WireItem]
    model: str = ""
    instructions: str | None = None
    stream: bool | None = None
    tools: list[WireTool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    # What cannot be done: only values that ask for nothing.
    previous_response_id: Any = None
    conversation: Any = None
    background: Any = None
    prompt: Any = None
    max_tool_calls: Any = None
    top_logprobs: Any = None
    top_p: Any = None
    text: Any = None
    # Hints.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    include: Any = None
    reasoning: Any = None
    stream_options: Any = None
    client_metadata: Any = None
    truncation: Any = None


_UNSUPPORTED = {
    "previous_response_id": ((), "nothing is stored for clients; send all items with each call"),
    "conversation": ((), "nothing is stored for clients; send all items with each call"),
    "background": ((False,), "a call is answered when its turn is done"),
    "prompt": ((), "there are no stored prompts"),
    "max_tool_calls": ((), "the client runs the tools"),
    "top_logprobs": ((0,), "only the sampled token's log-prob is kept"),
    "top_p": ((1,), "the trainer normalises over the whole vocabulary, so nothing may cut it"),
}


class AskedResponse(msgspec.Struct, frozen=True):
    """A call as it was read, and how its answer is wanted."""

    call: Call
    model: str
    stream: bool


def read_call(body: bytes, *, request_id: str, is_retry: bool) -> AskedResponse:
    """Raises ``CallRefused``."""
    wire = which(body, WireCall)
    refuse_unless_neutral(wire, _UNSUPPORTED)
    _check_text(wire.text)
    limit = wire.max_output_tokens
    if limit is not None and limit < 1:
        raise bad_request(f"max_output_tokens = {limit}: at least 1", code="invalid_value", param="max_output_tokens")
    messages = tuple(_messages(wire))
    tools = chosen_tools(tuple(_tool(tool) for tool in wire.tools or ()), wire.tool_choice)
    one = wire.parallel_tool_calls is False
    call = Call(
        messages=messages,
        tools=tools,
        digest=digest_of_call("responses", messages, tools, limit, wire.temperature, None, one),
        max_new_tokens=limit,
        temperature=wire.temperature,
        one_tool_call=one,
        request_id=request_id,
        is_retry=is_retry,
    )
    return AskedResponse(call=call, model=wire.model, stream=bool(wire.stream))


def _check_text(text: Any) -> None:
    wanted = text.get("format") if isinstance(text, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if wanted not in (None, {"type": "text"}):
        raise bad_request(
            f"text.format = {msgspec.json.encode(wanted).decode()} is not done here: nothing constrains what is sampled",
            code="unsupported_parameter",
            param="text",
        )


def _tool(wire: WireTool) -> Tool:
    if wire.type != "function" or not wire.name:
        raise bad_request(
            f"a tool of type {wire.type!r}: only functions, which the client runs",
            code="unsupported_value",
            param="tools",
        )
    return as_tool(WireFunction(wire.name, wire.description, wire.parameters))


def _messages(wire: WireCall) -> Iterator[Message]:
    if wire.instructions:
        yield Message(role="system", content=wire.instructions)
    if isinstance(wire.input, str):
        yield Message(role="user", content=wire.input)
        return
    said: list[Message] = []
    """What the assistant said since anybody else did."""
    for number, item in enumerate(wire.input):
        message = _message(item, f"input[{number}]")
        if message.role == "assistant":
            said.append(message)
            continue
        if said:
            yield _together(said)
            said = []
        yield message
    if said:
        yield _together(said)


def _together(said: list[Message]) -> Message:
    return Message(
        role="assistant",
        content="".join(message.content for message in said),
        reasoning="".join(message.reasoning for message in said),
        tool_calls=tuple(call for message in said for call in message.tool_calls),
    )


def _message(item: WireItem, where: str) -> Message:
    match item:
        case WireItem(type="message", role=str() as role):
            return Message(role=role, content=text_of(item.content, where))
        case WireItem(type="reasoning"):
            return Message(role="assistant", reasoning=_reasoning(item.content))
        case WireItem(type="function_call", call_id=str() as call_id, name=str() as name, arguments=str() as arguments):
            call = ToolCall(id=call_id, name=name, arguments=arguments)
            return Message(role="assistant", tool_calls=(call,))
        case WireItem(type="function_call_output", call_id=str() as call_id):
            return Message(role="tool", content=text_of(item.output, where), tool_call_id=call_id)
        case _:
            raise bad_request(
                f"{where}: an item of type {item.type!r}, or without what it needs",
                code="unsupported_value",
                param=where,
            )


def _reasoning(content: Content) -> str:
    if isinstance(content, list):
        return "".join(part.text or "" for part in content)
    return content or ""


# --- the answer ---------------------------------------------------------------------------------------------------------


def whole(answered: Answered, asked: AskedResponse, *, created_s: int) -> JsonObject:
    """The answer as one body."""
    return _response(answered, asked, created_s, done=True)


def events(answered: Answered, asked: AskedResponse, *, created_s: int) -> Iterator[JsonObject]:
    """The answer as the bodies of server-sent events, numbered."""
    for number, event in enumerate(_events(answered, asked, created_s)):
        yield {**event, "sequence_number": number}


def _events(answered: Answered, asked: AskedResponse, created_s: int) -> Iterator[JsonObject]:
    begun = _response(answered, asked, created_s, done=False)
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(_items(answered)):
        at = {"output_index": index, "item_id": item["id"]}
        empty = {
            **item,
            "status": "in_progress",
            **({"arguments": ""} if item["type"] == "function_call" else {"content": []}),
        }
        yield {"type": "response.output_item.added", "output_index": index, "item": empty}
        if item["type"] == "function_call":
            yield {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]}
            yield {
                "type": "response.function_call_arguments.done", **at,
                "name": item["name"], "arguments": item["arguments"],
            }  # fmt: skip
        for place, part in enumerate(item.get("content", ())):
            here = {**at, "content_index": place}
            kind = "output_text" if part["type"] == "output_text" else "reasoning_text"
            more = {"logprobs": []} if kind == "output_text" else {}
            yield {"type": "response.content_part.added", **here, "part": {**part, "text": ""}}
            yield {"type": f"response.{kind}.delta", **here, "delta": part["text"], **more}
            yield {"type": f"response.{kind}.done", **here, "text": part["text"], **more}
            yield {"type": "response.content_part.done", **here, "part": part}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    done = _response(answered, asked, created_s, done=True)
    yield {"type": f"response.{done['status']}", "response": done}


def _response(answered: Answered, asked: AskedResponse, created_s: int, *, done: bool) -> JsonObject:
    cut_off = answered.finish == "length"
    call = asked.call
    return {
        "id": f"resp_{answered.session}-{answered.turn}",
        "object": "response",
        "created_at": created_s,
        "model": asked.model,
        "status": ("incomplete" if cut_off else "completed") if done else "in_progress",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if done and cut_off else None,
        "instructions": None,
        "metadata": {},
        "output": _items(answered) if done else [],
        "parallel_tool_calls": not call.one_tool_call,
        "temperature": call.temperature,
        "top_p": 1.0,
        "tool_choice": "auto",
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": False,
            }
            for tool in call.tools
        ],
        "max_output_tokens": call.max_new_tokens,
        "previous_response_id": None,
        "store": False,
        "usage": _usage(answered) if done else None,
    }


def _usage(answered: Answered) -> JsonObject:
    sampled = len(answered.sampled_ids)
    return {
        "input_tokens": answered.prompt_ids,
        "input_tokens_details": {"cached_tokens": answered.held_ids},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answered.prompt_ids + sampled,
    }


def _items(answered: Answered) -> list[JsonObject]:
    given, name = answered.given, f"{answered.session}-{answered.turn}"
    items: list[JsonObject] = []
    if given.reasoning:
        text = {"type": "reasoning_text", "text": given.reasoning}
        items.append({"id": f"rs_{name}", "type": "reasoning", "summary": [], "content": [text], "status": "completed"})
    if given.content or not given.tool_calls:
        text = {"type": "output_text", "text": given.content, "annotations": [], "logprobs": []}
        items.append(
            {"id": f"msg_{name}", "type": "message", "role": "assistant", "content": [text], "status": "completed"}
        )
    for number, call in enumerate(given.tool_calls):
        items.append(
            {
                "id": f"fc_{name}-{number}", "type": "function_call", "call_id": call.id, "name": call.name,
                "arguments": call.arguments, "status": "completed",
            }
        )  # fmt: skip
    return items
