"""``POST /v1/chat/completions``: reading a call, and writing its answer, whole or in chunks.

Guarantees: what a call asks for is done or refused by name; nothing that changes what is sampled is passed over. ``IGNORED``
are hints, which promise nothing. A field that nobody here knows is refused.
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
from t1actors.tito.render.messages import Message, ToolCall

IGNORED = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "reasoning_effort", "verbosity",
)  # fmt: skip
"""Hints about accounting, caching and effort: fields of a call that change nothing here."""


class WireTool(msgspec.Struct, frozen=True):
    """A tool as a call names it."""

    type: Literal["function"]
    function: WireFunction


class WireCalledFunction(msgspec.Struct, frozen=True):
    """What an assistant called."""

    name: str
    arguments: str


class WireToolCall(msgspec.Struct, frozen=True):
    """A call in an assistant's message."""

    id: str
    function: WireCalledFunction
    type: Literal["function"] = "function"


class WireMessage(msgspec.Struct, frozen=True):
    """A message. Fields that clients add for themselves are passed over: no model is shown them."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_calls: list[WireToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: Any = None
    audio: Any = None


class WireCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a call. None is "not said"."""

    messages: list[WireMessage]
    model: str = ""
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    tools: list[WireTool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    logprobs: bool | None = None
    # What cannot be done: only values that ask for nothing.
    top_logprobs: Any = None
    top_p: Any = None
    n: Any = None
    stop: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    logit_bias: Any = None
    response_format: Any = None
    modalities: Any = None
    prediction: Any = None
    audio: Any = None
    web_search_options: Any = None
    # Hints.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None


_UNSUPPORTED = {
    "top_logprobs": ((0,), "only the sampled token's log-prob is kept"),
    "top_p": ((1,), "the trainer normalises over the whole vocabulary, so nothing may cut it"),
    "n": ((1,), "a call is one turn; send it again for another answer"),
    "stop": (([], ""), "the model ends its turn by itself; an answer cut off later would not be what was sampled"),
    "presence_penalty": ((0,), "the trainer knows no penalties"),
    "frequency_penalty": ((0,), "the trainer knows no penalties"),
    "logit_bias": (({},), "the trainer knows no biases"),
    "response_format": (({"type": "text"},), "nothing constrains what is sampled"),
    "modalities": ((["text"],), "text only"),
    "prediction": ((), "nothing is predicted"),
    "audio": ((), "text only"),
    "web_search_options": ((), "no search"),
}


class AskedChat(msgspec.Struct, frozen=True):
    """A call as it was read, and how its answer is wanted."""

    call: Call
    model: str
    stream: bool
    usage_in_stream: bool
    logprobs: bool


def read_call(body: bytes, *, request_id: str, is_retry: bool) -> AskedChat:
    """Raises ``CallRefused``."""
    wire = which(body, WireCall)
    refuse_unless_neutral(wire, _UNSUPPORTED)
    if None not in (wire.max_tokens, wire.max_completion_tokens):
        raise bad_request("max_tokens and max_completion_tokens: one of them", code="invalid_value", param="max_tokens")
    limit = wire.max_completion_tokens if wire.max_tokens is None else wire.max_tokens
    if limit is not None and limit < 1:
        raise bad_request(f"max_tokens = {limit}: at least 1", code="invalid_value", param="max_tokens")
    messages = tuple(_message(message, f"messages[{n}]") for n, message in enumerate(wire.messages))
    tools = chosen_tools(tuple(as_tool(tool.function) for tool in wire.tools or ()), wire.tool_choice)
    call = Call(
        messages=messages,
        tools=tools,
        digest=digest_of_call(
            "chat", messages, tools, limit, wire.temperature, wire.seed, wire.parallel_tool_calls is False
        ),
        max_new_tokens=limit,
        temperature=wire.temperature,
        seed=wire.seed,
        one_tool_call=wire.parallel_tool_calls is False,
        request_id=request_id,
        is_retry=is_retry,
    )
    return AskedChat(
        call=call,
        model=wire.model,
        stream=bool(wire.stream),
        usage_in_stream=bool((wire.stream_options or {}).get("include_usage")),
        logprobs=bool(wire.logprobs),
    )


def _message(wire: WireMessage, where: str) -> Message:
    if wire.function_call is not None or wire.audio is not None:
        raise bad_request(f"{where}: function_call and audio have no form here", code="unsupported_value", param=where)
    if wire.role == "tool" and not wire.tool_call_id:
        raise bad_request(
            f"{where}: a tool's message names its call in tool_call_id", code="invalid_value", param=where
        )
    if wire.tool_calls and wire.role != "assistant":
        raise bad_request(f"{where}: only an assistant calls tools", code="invalid_value", param=where)
    return Message(
        role=wire.role,
        content=text_of(wire.content, where) or wire.refusal or "",
        reasoning=wire.reasoning_content or wire.reasoning or "",
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in wire.tool_calls or ()
        ),
        tool_call_id=wire.tool_call_id or "",
        name=wire.name or "",
    )


# --- the answer ---------------------------------------------------------------------------------------------------------


def finish_reason(answered: Answered) -> str:
    """Cut off comes first: a call whose turn was cut off may be half a call."""
    if answered.finish == "length":
        return "length"
    return "tool_calls" if answered.given.tool_calls else "stop"


def usage(answered: Answered) -> JsonObject:
    """Ids of prompt and answer; ``cached_tokens`` are those that were held and not rendered again."""
    prompt, sampled = answered.prompt_ids, len(answered.sampled_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": answered.held_ids},
    }


def whole(answered: Answered, asked: AskedChat, *, created_s: int) -> JsonObject:
    """The answer as one body."""
    message: JsonObject = {"role": "assistant", **_said(answered.given), "refusal": None}
    if answered.given.tool_calls:
        message["tool_calls"] = [_tool_call(call) for call in answered.given.tool_calls]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(answered) if asked.logprobs else None,
        "finish_reason": finish_reason(answered),
    }
    return {**_head(answered, asked, created_s, "chat.completion"), "choices": [choice], "usage": usage(answered)}


def chunks(answered: Answered, asked: AskedChat, *, created_s: int) -> Iterator[JsonObject]:
    """The answer as the bodies of server-sent events; ``[DONE]`` comes behind them."""
    head = _head(answered, asked, created_s, "chat.completion.chunk")
    given = answered.given

    def chunk(delta: JsonObject, finish: str | None = None, logprobs: JsonObject | None = None) -> JsonObject:
        return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""}, logprobs=_logprobs(answered) if asked.logprobs else None)
    if given.reasoning:
        yield chunk({"reasoning_content": given.reasoning})
    if given.content:
        yield chunk({"content": given.content})
    for index, call in enumerate(given.tool_calls):
        yield chunk({"tool_calls": [{"index": index, **_tool_call(call)}]})
    yield chunk({}, finish_reason(answered))
    if asked.usage_in_stream:
        yield {**head, "choices": [], "usage": usage(answered)}


def _head(answered: Answered, asked: AskedChat, created_s: int, kind: str) -> JsonObject:
    return {
        "id": f"chatcmpl-{answered.session}-{answered.turn}",
        "object": kind,
        "created": created_s,
        "model": asked.model,
        "system_fingerprint": answered.version[:16],
    }


def _said(given: Message) -> JsonObject:
    said: JsonObject = {"content": given.content or (None if given.tool_calls else "")}
    return {**said, "reasoning_content": given.reasoning} if given.reasoning else said


def _tool_call(call: ToolCall) -> JsonObject:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _logprobs(answered: Answered) -> JsonObject:
    """A token is named by its id: its text may be half a letter."""
    tokens = [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(answered.sampled_ids, answered.logprobs, strict=True)
    ]
    return {"content": tokens, "refusal": None}
