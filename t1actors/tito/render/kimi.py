"""Kimi K2, whose marks say who speaks and whose calls have names of their own:

    <|im_user|>user<|im_middle|>text<|im_end|><|im_assistant|>assistant<|im_middle|>answer<|tool_calls_section_begin|>
    <|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{...}<|tool_call_end|><|tool_calls_section_end|><|im_end|>
    <|im_system|>tool<|im_middle|>## Return of functions.run:0\\nout<|im_end|>

A call's id begins with the name that the model gave it, so that its answer can be shown under that name. Pinned: K2
Thinking's template drops the thinking of turns before the last answer without calls and puts an empty block into turns
that have none; here thinking stays where it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from t1actors.tito.render.calls import ReadCall, Reading, checked_call, described, read_section
from t1actors.tito.render.family import Options, Traits, label_of, labelled_call_id, split_thinking
from t1actors.tito.render.interface import BrokenCall
from t1actors.tito.render.messages import Message, Tool
from t1actors.tito.render.pieces import Writer

_SYSTEM = "You are Kimi, an AI assistant created by Moonshot AI."
_CALL = re.compile(r"<\|tool_call_begin\|>(.*?)(<\|tool_call_end\|>|(?=<\|tool_call_begin\|>)|\Z)", re.DOTALL)
_LABEL = re.compile(r"functions\.(?P<name>[^\s:]+):\d+")


class Kimi:
    """See the module."""

    traits = Traits(
        name="kimi",
        marks=(
            *("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"),
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
            *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        ),
        optional_marks=("<think>", "</think>", "[EOS]"),
        stops=("<|im_end|>",),
        end="<|im_end|>",
        call_format="kimi",
    )

    def __init__(self, options: Options) -> None:
        pass

    def opening(self, out: Writer, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        if tools:
            out.own("<|im_system|>tool_declare<|im_middle|>")
            out.text(declared(tools)).own("<|im_end|>")
        if messages[0].role not in ("system", "developer"):
            out.own(f"<|im_system|>system<|im_middle|>{_SYSTEM}<|im_end|>")
        self._turns(out, messages)

    def extension(self, out: Writer, messages: Sequence[Message], last: str) -> None:
        self._turns(out, messages)

    def _turns(self, out: Writer, messages: Sequence[Message]) -> None:
        labels: dict[str, str] = {}
        for message in messages:
            if message.role == "assistant":
                self._assistant(out, message, labels)
            elif message.role == "tool":
                label = labels.get(message.tool_call_id, label_of(message.tool_call_id))
                out.own("<|im_system|>tool<|im_middle|>").text(f"## Return of {label}\n{message.content}")
                out.own("<|im_end|>")
            else:
                role = "user" if message.role == "user" else "system"
                out.own(f"<|im_{role}|>").text(message.name or role).own("<|im_middle|>").text(message.content)
                out.own("<|im_end|>")
        out.own("<|im_assistant|>assistant<|im_middle|>")

    def _assistant(self, out: Writer, message: Message, labels: dict[str, str]) -> None:
        out.own("<|im_assistant|>assistant<|im_middle|>")
        if message.reasoning:
            out.own("<think>").text(message.reasoning).own("</think>")
        out.text(message.content)
        if message.tool_calls:
            out.own("<|tool_calls_section_begin|>")
            for call in message.tool_calls:
                label = label_of(call.id)
                if not _LABEL.fullmatch(label):  # another's id: named as the model would have
                    label = f"functions.{call.name}:{len(labels)}"
                labels[call.id] = label
                out.own("<|tool_call_begin|>").text(label).own("<|tool_call_argument_begin|>").text(call.arguments)
                out.own("<|tool_call_end|>")
            out.own("<|tool_calls_section_end|>")
        out.own("<|im_end|>")

    def read(self, text: str, tools: Sequence[Tool]) -> Reading:
        reasoning, rest = split_thinking(text)
        found = read_section(rest, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", _CALL, _read_call)
        return found._replace(reasoning=reasoning)

    def call_id(self, turn: str, place: int, call: ReadCall) -> str:
        return labelled_call_id(call.label, turn, place)


def declared(tools: Sequence[Tool]) -> str:
    """Tools as Kimi's own tokenizer shows them to its template: keys sorted, no spaces."""
    return json.dumps([described(tool) for tool in tools], ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _read_call(text: str) -> ReadCall | BrokenCall:
    label, found, arguments = text.partition("<|tool_call_argument_begin|>")
    named = _LABEL.fullmatch(label.strip())
    if not found or named is None:
        return BrokenCall(text, "it does not begin as functions.NAME:NUMBER")
    return checked_call(text, named["name"], arguments.strip(), label.strip())
