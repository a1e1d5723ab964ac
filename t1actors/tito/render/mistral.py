"""Mistral's tekken tokenizers: the later form (``mistral``: Ministral 3, Devstral), and version 3 (``mistral-v3``: Nemo).

    <s>[SYSTEM_PROMPT]system[/SYSTEM_PROMPT][AVAILABLE_TOOLS][...][/AVAILABLE_TOOLS][INST]text[/INST]answer
    [TOOL_CALLS]run[ARGS]{...}</s>[TOOL_RESULTS]out[/TOOL_RESULTS]

    <s>[AVAILABLE_TOOLS][...][/AVAILABLE_TOOLS][INST]system\\n\\ntext[/INST]
    [TOOL_CALLS][{"name": "run", "arguments": {...}, "id": "a1b2c3d4e"}]</s>
    [TOOL_RESULTS]{"content": out, "call_id": "a1b2c3d4e"}[/TOOL_RESULTS]

No mark begins an answer. Pinned: version 3's template moves tools and system text to the last user message each time;
here they stay in the first. Neither template's own system text is made up where a conversation has none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import msgspec

from t1actors.tito.render.calls import (
    ReadCall,
    Reading,
    as_json,
    checked_call,
    described,
    leading_objects,
    read_json_call,
)
from t1actors.tito.render.family import (
    Options,
    Traits,
    label_of,
    labelled_call_id,
    leading_system,
    plain_call_id,
    refuse_system,
    split_thinking,
)
from t1actors.tito.render.interface import BrokenCall, RenderError
from t1actors.tito.render.messages import Message, Tool
from t1actors.tito.render.pieces import Writer

_LABEL = re.compile(r"[A-Za-z0-9]{9}")


class Mistral:
    """The later form. See the module."""

    traits = Traits(
        name="mistral",
        marks=(
            *("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]"),
            *("[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ),
        optional_marks=("[THINK]", "[/THINK]", "[CALL_ID]"),
        stops=("</s>",),
        end="</s>",
        call_format="mistral",
    )

    def __init__(self, options: Options) -> None:
        pass

    def opening(self, out: Writer, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        out.own("<s>")
        first = messages[0].role in ("system", "developer")
        self._turns(out, messages[:1] if first else [])
        if tools:
            out.own("[AVAILABLE_TOOLS]").text(as_json([described(tool) for tool in tools])).own("[/AVAILABLE_TOOLS]")
        self._turns(out, messages[1:] if first else messages)

    def extension(self, out: Writer, messages: Sequence[Message], last: str) -> None:
        self._turns(out, messages)

    def _turns(self, out: Writer, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.role == "assistant":
                if message.reasoning:
                    out.own("[THINK]").text(message.reasoning).own("[/THINK]")
                out.text(message.content)
                for call in message.tool_calls:
                    out.own("[TOOL_CALLS]").text(call.name).own("[ARGS]").text(call.arguments)
                out.own("</s>")
            else:
                mark = {"user": "INST", "tool": "TOOL_RESULTS"}.get(message.role, "SYSTEM_PROMPT")
                out.own(f"[{mark}]").text(message.content).own(f"[/{mark}]")

    def read(self, text: str, tools: Sequence[Tool]) -> Reading:
        reasoning, rest = split_thinking(text, "[THINK]", "[/THINK]")
        content, *written = rest.split("[TOOL_CALLS]")
        read = [_read_call(call) for call in written]
        return Reading(
            content,
            reasoning,
            tuple(call for call in read if isinstance(call, ReadCall)),
            tuple(call for call in read if isinstance(call, BrokenCall)),
        )

    def call_id(self, turn: str, place: int, call: ReadCall) -> str:
        return plain_call_id(turn, place)


def _read_call(text: str) -> ReadCall | BrokenCall:
    whole = f"[TOOL_CALLS]{text}"
    name, separated, arguments = text.partition("[ARGS]")
    if not separated:
        return BrokenCall(whole, "nothing stands between its name and its arguments")
    return checked_call(whole, name.partition("[CALL_ID]")[0].strip(), arguments.strip())


class MistralV3:
    """The form of version 3. See the module."""

    traits = Traits(
        name="mistral-v3",
        marks=(
            *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ),
        stops=("</s>",),
        end="</s>",
        call_format="mistral",
    )

    def __init__(self, options: Options) -> None:
        pass

    def opening(self, out: Writer, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        system, rest = leading_system(self.traits.name, messages)
        if not rest or rest[0].role != "user":
            raise RenderError(f"{self.traits.name} begins a conversation with a user's message")
        out.own("<s>")
        if tools:
            out.own("[AVAILABLE_TOOLS]").text(as_json([described(tool) for tool in tools])).own("[/AVAILABLE_TOOLS]")
        out.own("[INST]").text(f"{system}\n\n" if system else "").text(rest[0].content).own("[/INST]")
        self._turns(out, rest[1:])

    def extension(self, out: Writer, messages: Sequence[Message], last: str) -> None:
        refuse_system(self.traits.name, messages)
        self._turns(out, messages)

    def _turns(self, out: Writer, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.role == "user":
                out.own("[INST]").text(message.content).own("[/INST]")
            elif message.role == "tool":
                shown = f'{{"content": {message.content}, "call_id": "{_label_of(message.tool_call_id)}"}}'
                out.own("[TOOL_RESULTS]").text(shown).own("[/TOOL_RESULTS]")
            else:
                out.text(f"<think>\n{message.reasoning}\n</think>\n\n" if message.reasoning else "").text(
                    message.content
                )
                if message.tool_calls:
                    listed = ", ".join(
                        f'{{"name": "{call.name}", "arguments": {call.arguments}, "id": "{_label_of(call.id)}"}}'
                        for call in message.tool_calls
                    )
                    out.own("[TOOL_CALLS]").text(f"[{listed}]")
                out.own("</s>")

    def read(self, text: str, tools: Sequence[Tool]) -> Reading:
        reasoning, rest = split_thinking(text)
        content, called, written = rest.partition("[TOOL_CALLS]")
        if not called:
            return Reading(rest, reasoning)
        objects, left = leading_objects(written.strip().removeprefix("["), ",")
        read = [_read_object(whole) for whole in objects]
        broken = [call for call in read if isinstance(call, BrokenCall)]
        if left.strip() != "]":
            broken.append(BrokenCall(left, "the list of calls is not whole"))
        return Reading(content, reasoning, tuple(call for call in read if isinstance(call, ReadCall)), tuple(broken))

    def call_id(self, turn: str, place: int, call: ReadCall) -> str:
        return labelled_call_id(call.label or _made_label(f"{turn}_{place}"), turn, place)


class _Labelled(msgspec.Struct):
    id: str


def _read_object(text: str) -> ReadCall | BrokenCall:
    call = read_json_call(text)
    if isinstance(call, BrokenCall):
        return BrokenCall(text, call.reason)
    try:
        label = msgspec.json.decode(text, type=_Labelled).id
    except msgspec.DecodeError:  # it gives none
        return call
    return call._replace(label=label if _LABEL.fullmatch(label) else "")


def _label_of(call_id: str) -> str:
    """Nine letters and digits, as the template demands: the model's own, or made of another's id."""
    label = label_of(call_id)
    return label if _LABEL.fullmatch(label) else _made_label(label)


def _made_label(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:9]
