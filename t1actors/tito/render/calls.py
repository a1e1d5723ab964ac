"""Tool calls as text: what every family's reader shares, and how another family's calls are recognised.

Arguments that are JSON stay as the model wrote them, byte for byte. Formats that write an argument as text between tags
become JSON by one rule: text for a parameter that the tool declares as a string; else the JSON value that the text is,
if it is one; else text. Nothing here fails: a call that can't be read is a ``BrokenCall``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from t1actors.tito.render.interface import BrokenCall, RenderError
from t1actors.tito.render.messages import Tool, ToolCall

FOREIGN = {
    "qwen3": re.compile(r"<tool_call>\s*\{"),
    "qwen3.5": re.compile(r"<function=[^>\n]+>"),
    "glm": re.compile(r"<tool_call>\s*[\w.-]+\s*(?:<arg_key>|</tool_call>)"),
    "kimi": re.compile(r"<\|tool_call_begin\|>"),
    "deepseek": re.compile("<｜tool▁call▁begin｜>"),
    "gptoss": re.compile(r"to=functions\.[^<]*(?:<\|[^<]*)*<\|message\|>"),
    "llama3": re.compile(r"<\|python_tag\|>|^\s*\{\s*\"name\"\s*:\s*\"[^\"]+\"\s*,\s*\"parameters\"\s*:"),
    "mistral": re.compile(r"\[TOOL_CALLS\]"),
}
"""How each format is known when a model that was taught another one writes it."""

TAGGED = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
"""A call between tags; of one that is not closed the second group is empty."""


class ReadCall(NamedTuple):
    """A call as it was written. ``label``: the model's own name for it, in families that have such."""

    name: str
    arguments: str
    label: str = ""


class Reading(NamedTuple):
    """A turn's text taken apart."""

    content: str
    reasoning: str = ""
    calls: tuple[ReadCall, ...] = ()
    broken: tuple[BrokenCall, ...] = ()


class _Written(msgspec.Struct):
    name: str
    arguments: msgspec.Raw


class _WrittenParameters(msgspec.Struct):
    name: str
    parameters: msgspec.Raw


def foreign_format(text: str, own: str) -> str:
    """The family in whose format ``text`` holds a call, other than ``own``; empty where there is none."""
    return next((name for name, written in FOREIGN.items() if name != own and written.search(text)), "")


def is_object(text: str) -> bool:
    """Whether ``text`` is the JSON of an object."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def read_json_call(text: str, *, parameters: bool = False) -> ReadCall | BrokenCall:
    """``{"name": ..., "arguments": {...}}``; with ``parameters`` that is what the arguments are called."""
    try:
        if parameters:
            found = msgspec.json.decode(text, type=_WrittenParameters)
            name, arguments = found.name, bytes(found.parameters).decode()
        else:
            found = msgspec.json.decode(text, type=_Written)
            name, arguments = found.name, bytes(found.arguments).decode()
    except (msgspec.DecodeError, RecursionError) as error:
        return BrokenCall(text, str(error))
    return checked_call(text, name, arguments)


def read_blocks(text: str, block: re.Pattern[str], read: Callable[[str], ReadCall | BrokenCall]) -> Reading:
    """``text`` with its calls taken out. ``block`` finds one: its first group is the inside, its second the mark that closes
    it, empty where there is none."""
    calls: list[ReadCall] = []
    broken: list[BrokenCall] = []
    for found in block.finditer(text):
        call = read(found[1].strip()) if found[2] else BrokenCall(found[0], "it is not closed")
        if isinstance(call, BrokenCall):
            broken.append(BrokenCall(found[0], call.reason))
        else:
            calls.append(call)
    content = block.sub("", text).strip("\n") if calls or broken else text
    return Reading(content, "", tuple(calls), tuple(broken))


def read_section(
    text: str, start: str, end: str, block: re.Pattern[str], read: Callable[[str], ReadCall | BrokenCall]
) -> Reading:
    """As ``read_blocks``, for families that write all calls of a turn in one section, which ends it."""
    content, _, section = text.partition(start)
    inside, _, behind = section.partition(end)
    found = read_blocks(inside, block, read)
    left = tuple(
        BrokenCall(part.strip(), "it stands where calls do and is none")
        for part in (found.content, behind)
        if part.strip()
    )
    return Reading(content, "", found.calls, (*found.broken, *left))


def leading_objects(text: str, between: str) -> tuple[list[str], str]:
    """The JSON objects that ``text`` begins with, apart by white space and characters of ``between``, and what is left."""
    objects: list[str] = []
    rest = text.lstrip(between + " \n\t")
    while rest.startswith("{"):
        try:
            _, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            break
        objects.append(rest[:end])
        rest = rest[end:].lstrip(between + " \n\t")
    return objects, rest


def checked_call(text: str, name: str, arguments: str, label: str = "") -> ReadCall | BrokenCall:
    """The call, if it has a name and its arguments are an object; ``text`` is all of it as written."""
    if not name:
        return BrokenCall(text, "it names no tool")
    if not is_object(arguments):
        return BrokenCall(text, "its arguments are no JSON object")
    return ReadCall(name, arguments, label)


def arguments_from_text(name: str, pairs: Sequence[tuple[str, str]], tools: Sequence[Tool]) -> str:
    """The JSON of arguments that were written as text, by the rule of this module."""
    schema = next((tool.parameters for tool in tools if tool.name == name), cast("dict[str, Any]", {}))
    properties = schema.get("properties")
    declared = cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}
    members = (f"{_quoted(key)}: {_value(text, declared.get(key))}" for key, text in pairs)
    return "{" + ", ".join(members) + "}"


def _value(text: str, declared: object) -> str:
    kind = cast("dict[str, object]", declared).get("type") if isinstance(declared, dict) else None
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        return _quoted(text)
    bare = {"True": "true", "False": "false", "None": "null"}.get(text.strip(), text.strip())
    try:
        value = msgspec.json.decode(bare, type=msgspec.Raw)
        return _quoted(text) if bytes(value).startswith(b'"') else bare
    except (msgspec.DecodeError, RecursionError):
        return _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """A call's arguments as values, for formats that write them one by one."""
    if not is_object(call.arguments):
        raise RenderError(
            f"tool call {call.id} of {call.name}: its arguments are no JSON object: {call.arguments[:200]!r}"
        )
    return json.loads(call.arguments)


def as_json(value: object, *, indent: int | None = None) -> str:
    """JSON as chat templates write it."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def described(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates are given it."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}
