"""What reading a call of either API has in common: strict JSON, texts, tools, and what is refused with which words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
from blake3 import blake3

from t1actors.harness.endpoint.errors import bad_request
from t1actors.tito.render.messages import Message, Tool

T = TypeVar("T")


class WirePart(msgspec.Struct, frozen=True):
    """A part of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | list[WirePart] | None
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


class WireFunction(msgspec.Struct, frozen=True):
    """A function that the model may call. ``strict`` is a hint here: a call is handed out as it was sampled."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def which(body: bytes, kind: type[T]) -> T:
    """The body as a ``kind``. Raises ``CallRefused`` with the field that is wrong."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        place = re.search(r"\$\.?([\w.\[\]]*)", str(error))
        unknown = re.search(r"unknown field `(.+)`", str(error))
        param = unknown[1] if unknown else (place[1] if place else None)
        why = "unknown_parameter" if unknown else "invalid_value"
        raise bad_request(f"the request is not what it should be: {error}", code=why, param=param) from error
    except msgspec.DecodeError as error:
        raise bad_request(f"the body is not JSON: {error}", code="invalid_json") from error


def refuse_unless_neutral(wire: msgspec.Struct, unsupported: Mapping[str, tuple[Sequence[Any], str]]) -> None:
    """Fields that ask for what is not done here, by name: values that are neutral, and why others cannot be. Raises
    ``CallRefused``."""
    for name, (neutral, why) in unsupported.items():
        value = getattr(wire, name)
        if value is not None and value not in neutral:
            raise bad_request(
                f"{name} = {msgspec.json.encode(value).decode()} is not done here: {why}; leave it out",
                code="unsupported_parameter",
                param=name,
            )


def text_of(content: Content, where: str) -> str:
    """The text of a message's content. Raises ``CallRefused``: there is more than text in it."""
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in TEXT_PARTS:
            raise bad_request(
                f"{where}: a part of type {part.type!r}; this model reads text", code="unsupported_value", param=where
            )
    return "".join(part.text or part.refusal or "" for part in content)


def as_tool(function: WireFunction) -> Tool:
    """The function as a tool."""
    return Tool(name=function.name, description=function.description or "", parameters=function.parameters or {})


def chosen_tools(tools: tuple[Tool, ...], choice: Any) -> tuple[Tool, ...]:
    """The tools that the model is shown: with ``tool_choice`` "none" it sees none. Raises ``CallRefused``."""
    if choice in (None, "auto"):
        return tools
    if choice == "none":
        return ()
    raise bad_request(
        f"tool_choice = {msgspec.json.encode(choice).decode()}: nothing constrains what is sampled; use auto or none",
        code="unsupported_value",
        param="tool_choice",
    )


def digest_of_call(api: str, messages: Sequence[Message], tools: Sequence[Tool], *asked: object) -> str:
    """Names all that was asked for, so that the same call is known again."""
    return blake3(msgspec.json.encode([api, messages, tools, cast("Sequence[object]", asked)])).hexdigest()
