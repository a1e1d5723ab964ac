"""Qwen3.5 and 3.6 (Qwen3-Coder writes its calls the same way): ChatML with tool calls whose arguments are text between tags.

    <|im_start|>assistant\\n<think>\\n...\\n</think>\\n\\nanswer\\n\\n<tool_call>\\n<function=run>\\n<parameter=command>\\n
    ls\\n</parameter>\\n</function>\\n</tool_call><|im_end|>\\n

An answer begins inside its thinking, which the prompt has opened. White space around texts is not shown. Pinned: the template
drops the thinking of turns before the last user message; here it stays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from t1actors.tito.render.calls import (
    TAGGED,
    ReadCall,
    Reading,
    arguments_from_text,
    arguments_of,
    as_json,
    checked_call,
    described,
    read_blocks,
)
from t1actors.tito.render.family import (
    Options,
    Traits,
    leading_system,
    plain_call_id,
    refuse_system,
    runs,
    split_thinking,
)
from t1actors.tito.render.interface import BrokenCall
from t1actors.tito.render.messages import Message, Tool, ToolCall
from t1actors.tito.render.pieces import Writer

_HOW = """

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within \
<tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell the \
user about function calls
</IMPORTANT>"""
"""What the model was trained to be told."""
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


class Qwen35:
    """See the module. Without ``thinking`` an answer begins behind an empty block."""

    traits = Traits(
        name="qwen3.5",
        marks=("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>"),
        optional_marks=("<tool_response>", "</tool_response>"),
        stops=("<|im_end|>", "<|endoftext|>"),
        end="<|im_end|>",
        call_format="qwen3.5",
    )
    _plain: tuple[type, ...] = (str, int, float, type(None))
    """Values that are written as Python does (``True``); others are JSON."""

    def __init__(self, options: Options) -> None:
        self._thinks = "<think>\n" if options.thinking else "<think>\n\n</think>\n\n"

    def opening(self, out: Writer, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        system, rest = leading_system(self.traits.name, messages)
        if tools:
            listed = "".join("\n" + as_json(described(tool)) for tool in tools)
            out.own("<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>")
            out.text(listed).own("\n</tools>" + _HOW)
            out.text("\n\n" + system.strip() if system.strip() else "").own("<|im_end|>\n")
        elif len(rest) < len(messages):
            out.own("<|im_start|>system\n").text(system.strip()).own("<|im_end|>\n")
        self._turns(out, rest)

    def extension(self, out: Writer, messages: Sequence[Message], last: str) -> None:
        refuse_system(self.traits.name, messages)
        out.own("\n")
        self._turns(out, messages)

    def _turns(self, out: Writer, messages: Sequence[Message]) -> None:
        for of_tools, run in runs(messages):
            if of_tools:
                out.own("<|im_start|>user")
                for message in run:
                    out.own("\n<tool_response>\n").text(message.content.strip()).own("\n</tool_response>")
                out.own("<|im_end|>\n")
            elif run[0].role == "assistant":
                self._assistant(out, run[0])
            else:
                out.own("<|im_start|>user\n").text(run[0].content.strip()).own("<|im_end|>\n")
        out.own("<|im_start|>assistant\n" + self._thinks).cut()

    def _assistant(self, out: Writer, message: Message) -> None:
        out.own("<|im_start|>assistant\n")
        reasoning = message.reasoning.strip()
        if self._thinks == "<think>\n" or reasoning:
            out.own("<think>\n").cut()
            out.text(reasoning).own("\n</think>\n\n")
        else:
            out.own(self._thinks).cut()
        content = message.content.strip()
        out.text(content)
        for place, call in enumerate(message.tool_calls):
            out.own("\n" if place else "\n\n" if content else "")
            out.own("<tool_call>").text(_call_text(call, self._plain)).own("</tool_call>")
        out.own("<|im_end|>\n")

    def read(self, text: str, tools: Sequence[Tool]) -> Reading:
        reasoning, rest = split_thinking(self._thinks + text if self._thinks == "<think>\n" else text)
        found = read_blocks(rest, TAGGED, lambda block: _read_call(block, tools))
        return found._replace(reasoning=reasoning)

    def call_id(self, turn: str, place: int, call: ReadCall) -> str:
        return plain_call_id(turn, place)


class Qwen36(Qwen35):
    """As Qwen3.5, but for values that are not text: they are JSON (``true``)."""

    traits = replace(Qwen35.traits, name="qwen3.6")
    _plain = (str,)


def _call_text(call: ToolCall, plain: tuple[type, ...]) -> str:
    text = f"\n<function={call.name}>\n"
    for key, value in arguments_of(call).items():
        shown = str(value) if isinstance(value, plain) else as_json(value)
        text += f"<parameter={key}>\n{shown}\n</parameter>\n"
    return text + "</function>\n"


def _read_call(block: str, tools: Sequence[Tool]) -> ReadCall | BrokenCall:
    found = _FUNCTION.fullmatch(block)
    if found is None:
        return BrokenCall(block, "no <function=...> ... </function> stands between its tags")
    name, inside = found[1].strip(), found[2]
    pairs: list[tuple[str, str]] = _PARAMETER.findall(inside)
    if left := _PARAMETER.sub("", inside).strip():
        return BrokenCall(block, f"between its parameters stands {left[:80]!r}")
    if len({key for key, _ in pairs}) < len(pairs):
        return BrokenCall(block, "it gives a parameter twice")
    return checked_call(block, name, arguments_from_text(name, pairs, tools))
