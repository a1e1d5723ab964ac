"""Llama 3.1 to 3.3, whose calls are JSON in plain text:

    <|begin_of_text|><|start_header_id|>user<|end_header_id|>\\n\\ntext<|eot_id|><|start_header_id|>assistant<|end_header_id|>\\n\\n
    {"name": "run", "parameters": {...}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\\n\\n"out"<|eot_id|>

White space around texts is not shown. Tools are introduced in the first user message, and a date in the system's: a fixed
one where none is given, so that a conversation is the same the next day. Pinned: the template leaves out what is said beside
a call and knows one call a turn; here the text stands before a <|python_tag|> and several are apart by semicolons.
Thinking, for which it has no form, is text between <think> and </think>.
"""

from __future__ import annotations

from collections.abc import Sequence

from t1actors.tito.render.calls import (
    FOREIGN,
    ReadCall,
    Reading,
    as_json,
    described,
    leading_objects,
    read_json_call,
)
from t1actors.tito.render.family import Options, Traits, plain_call_id, split_thinking
from t1actors.tito.render.interface import BrokenCall, RenderError
from t1actors.tito.render.messages import Message, Tool
from t1actors.tito.render.pieces import Writer

_HOW = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    'answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": dictionary of argument name '
    "and its value}.Do not use variables.\n\n"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Llama3:
    """See the module."""

    traits = Traits(
        name="llama3",
        marks=(
            "<|begin_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|eom_id|>",
            "<|python_tag|>",
        ),
        optional_marks=("<|end_of_text|>",),
        stops=("<|eot_id|>", "<|eom_id|>"),
        end="<|eot_id|>",
        call_format="llama3",
    )

    def __init__(self, options: Options) -> None:
        day = options.today
        self._date = f"{day.day:02} {_MONTHS[day.month - 1]} {day.year}" if day else "26 Jul 2024"

    def opening(self, out: Writer, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        first = messages[0].role in ("system", "developer")
        out.own("<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n")
        out.own("Environment: ipython\n" if tools else "")
        out.own(f"Cutting Knowledge Date: December 2023\nToday Date: {self._date}\n\n")
        out.text(messages[0].content.strip() if first else "").own("<|eot_id|>")
        rest = messages[1:] if first else messages
        if tools:
            if not rest or rest[0].role != "user":
                raise RenderError(
                    "llama3 introduces tools in the first user message, and the conversation does not begin with one"
                )
            out.own("<|start_header_id|>user<|end_header_id|>\n\n" + _HOW)
            out.text("".join(as_json(described(tool), indent=4) + "\n\n" for tool in tools))
            out.text(rest[0].content.strip()).own("<|eot_id|>")
            rest = rest[1:]
        self._turns(out, rest)

    def extension(self, out: Writer, messages: Sequence[Message], last: str) -> None:
        self._turns(out, messages)

    def _turns(self, out: Writer, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.role == "assistant":
                self._assistant(out, message)
            elif message.role == "tool":
                out.own("<|start_header_id|>ipython<|end_header_id|>\n\n").text(as_json(message.content)).own(
                    "<|eot_id|>"
                )
            else:
                role = "user" if message.role == "user" else "system"
                out.own(f"<|start_header_id|>{role}<|end_header_id|>\n\n").text(message.content.strip()).own(
                    "<|eot_id|>"
                )
        out.own("<|start_header_id|>assistant<|end_header_id|>\n\n").cut()

    def _assistant(self, out: Writer, message: Message) -> None:
        out.own("<|start_header_id|>assistant<|end_header_id|>\n\n").cut()
        if message.reasoning:
            out.text(f"<think>\n{message.reasoning}\n</think>\n\n")
        calls = "; ".join(f'{{"name": "{call.name}", "parameters": {call.arguments}}}' for call in message.tool_calls)
        content = message.content.strip()
        out.text(content).own("<|python_tag|>" if content and calls else "").text(calls).own("<|eot_id|>")

    def read(self, text: str, tools: Sequence[Tool]) -> Reading:
        reasoning, rest = split_thinking(text)
        if not FOREIGN["llama3"].search(rest):
            return Reading(rest, reasoning)
        content, tagged, written = rest.rpartition("<|python_tag|>")
        objects, left = leading_objects(written, ";")
        read = [(written, read_json_call(written, parameters=True)) for written in objects]
        broken = [BrokenCall(whole, call.reason) for whole, call in read if isinstance(call, BrokenCall)]
        if left.strip():
            broken.append(BrokenCall(left, "no JSON object" if objects or tagged else "no whole JSON object"))
        return Reading(content, reasoning, tuple(call for _, call in read if isinstance(call, ReadCall)), tuple(broken))

    def call_id(self, turn: str, place: int, call: ReadCall) -> str:
        return plain_call_id(turn, place)
