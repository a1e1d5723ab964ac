"""DeepSeek V3.1:

    <｜begin▁of▁sentence｜>system<｜User｜>text<｜Assistant｜><think>...</think>answer<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>run
    <｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜><｜tool▁output▁begin｜>out<｜tool▁output▁end｜>

Behind a tool's answer the model goes on at once: no mark begins that turn and it does not think. Pinned: the template drops
the thinking of earlier turns; here it stays. Tools are introduced as the model's card says; its template has no place
for them. An answer that was cut off while it thinks can't be told from one that does not think: it is content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from t1actors.tito.render.calls import ReadCall, Reading, as_json, checked_call, read_section
from t1actors.tito.render.family import Options, Traits, leading_system, plain_call_id, refuse_system
from t1actors.tito.render.interface import BrokenCall
from t1actors.tito.render.messages import Message, Tool
from t1actors.tito.render.pieces import Writer

_HOW = (
    "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name"
    "<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>{{additional_tool_calls}}<｜tool▁calls▁end｜>\n\nWhere:\n\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces"
)
_CALL = re.compile("<｜tool▁call▁begin｜>(.*?)(<｜tool▁call▁end｜>|(?=<｜tool▁call▁begin｜>)|\\Z)", re.DOTALL)


class Deepseek:
    """See the module. Without ``thinking`` an answer begins behind the end of its thinking."""

    traits = Traits(
        name="deepseek",
        marks=(
            *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
            *(
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁calls▁end｜>",
                "<｜tool▁call▁begin｜>",
                "<｜tool▁call▁end｜>",
                "<｜tool▁sep｜>",
            ),
            *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<think>", "</think>"),
        ),
        stops=("<｜end▁of▁sentence｜>",),
        end="<｜end▁of▁sentence｜>",
        call_format="deepseek",
    )

    def __init__(self, options: Options) -> None:
        self._thinks = "<think>" if options.thinking else "</think>"

    def opening(self, out: Writer, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        system, rest = leading_system(self.traits.name, messages)
        out.own("<｜begin▁of▁sentence｜>").text(system)
        if tools:
            out.own("\n\n" if system else "").own("## Tools\nYou have access to the following tools:\n\n")
            for tool in tools:
                out.text(
                    f"### {tool.name}\nDescription: {tool.description}\n\nParameters: {as_json(tool.parameters)}\n\n"
                )
            out.own(_HOW)
        self._turns(out, rest)

    def extension(self, out: Writer, messages: Sequence[Message], last: str) -> None:
        refuse_system(self.traits.name, messages)
        self._turns(out, messages)

    def _turns(self, out: Writer, messages: Sequence[Message]) -> None:
        before = ""
        for message in messages:
            if message.role == "user":
                out.own("<｜User｜>").text(message.content)
            elif message.role == "tool":
                out.own("<｜tool▁output▁begin｜>").text(message.content).own("<｜tool▁output▁end｜>")
            else:
                self._assistant(out, message, before)
            before = message.role
        if before != "tool":
            out.own("<｜Assistant｜>" + self._thinks)

    def _assistant(self, out: Writer, message: Message, before: str) -> None:
        if before != "tool":
            out.own("<｜Assistant｜>")
        if message.reasoning:
            out.own("<think>").text(message.reasoning).own("</think>")
        elif before != "tool":
            out.own("<think></think>" if self._thinks == "<think>" else "</think>")
        out.text(message.content)
        if message.tool_calls:
            out.own("<｜tool▁calls▁begin｜>")
            for call in message.tool_calls:
                out.own("<｜tool▁call▁begin｜>").text(call.name).own("<｜tool▁sep｜>").text(call.arguments)
                out.own("<｜tool▁call▁end｜>")
            out.own("<｜tool▁calls▁end｜>")
        out.own("<｜end▁of▁sentence｜>")

    def read(self, text: str, tools: Sequence[Tool]) -> Reading:
        thought, ended, rest = text.partition("</think>")
        reasoning, rest = (thought.removeprefix("<think>"), rest) if ended else ("", text)
        found = read_section(rest, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _CALL, _read_call)
        return found._replace(reasoning=reasoning)

    def call_id(self, turn: str, place: int, call: ReadCall) -> str:
        return plain_call_id(turn, place)


def _read_call(text: str) -> ReadCall | BrokenCall:
    name, separated, arguments = text.partition("<｜tool▁sep｜>")
    if not separated:
        return BrokenCall(text, "nothing stands between its name and its arguments")
    return checked_call(text, name.strip(), arguments.strip())
