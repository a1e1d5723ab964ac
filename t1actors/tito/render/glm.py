"""GLM: 4.5 and 4.6 (``glm4``), 4.7 and 5 (``glm5``), which leave out the line ends and open the thinking in the prompt.

    [gMASK]<sop><|user|>\\ntext<|assistant|>\\n<think>...</think>\\nanswer\\n<tool_call>run\\n<arg_key>command</arg_key>\\n
    <arg_value>ls</arg_value>\\n</tool_call><|observation|>\\n<tool_response>\\nout\\n</tool_response><|assistant|>

There is no end of a turn: the mark of who speaks next ends it, and is what the model samples last. Where it is the one that
the next message begins with, it is not written again. Pinned: the templates drop the thinking of turns before the last user
message and put an empty block there; here it stays, and ``glm5``'s turns always have their block.
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
from t1actors.tito.render.family import Options, Traits, plain_call_id, runs, split_thinking
from t1actors.tito.render.interface import BrokenCall
from t1actors.tito.render.messages import Message, Tool
from t1actors.tito.render.pieces import Writer

_TOOLS = """
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
_HOW = "\n</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_ENDS = ("<|user|>", "<|observation|>", "<|endoftext|>")


class Glm4:
    """See the module. Without ``thinking`` an answer begins behind an empty block, and users' texts say so."""

    traits = Traits(
        name="glm4",
        marks=("[gMASK]", "<sop>", "<|system|>", "<|assistant|>", *_ENDS),
        optional_marks=(
            *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
            *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        ),
        stops=_ENDS,
        end="",
        call_format="glm",
    )
    _line = "\n"
    """Behind marks and between the parts of a turn."""

    def __init__(self, options: Options) -> None:
        self._thinking = options.thinking
        self._begin = self._begins(options.thinking)

    def _begins(self, thinking: bool) -> str:
        return "" if thinking else "\n<think></think>"

    def opening(self, out: Writer, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        out.own("[gMASK]<sop>")
        if tools:
            listed = "\n".join(as_json(described(tool)) for tool in tools)
            n = self._line
            pairs = "".join(
                f"<arg_key>{{arg-key-{i}}}</arg_key>{n}<arg_value>{{arg-value-{i}}}</arg_value>{n}" for i in (1, 2)
            )
            out.own(f"<|system|>{_TOOLS}").text(listed).own(_HOW)
            out.own(f"<tool_call>{{function-name}}{n}{pairs}...{n}</tool_call>")
        self._turns(out, messages, "")

    def extension(self, out: Writer, messages: Sequence[Message], last: str) -> None:
        self._turns(out, messages, last)

    def _turns(self, out: Writer, messages: Sequence[Message], last: str) -> None:
        n = self._line
        for of_tools, run in runs(messages):
            mark = "<|observation|>" if of_tools else f"<|{run[0].role.replace('developer', 'system')}|>"
            out.own("" if mark == last else mark)
            last = ""
            if of_tools:
                for message in run:
                    out.own(f"{n}<tool_response>{n}").text(message.content).own(f"{n}</tool_response>")
            elif run[0].role == "assistant":
                self._assistant(out, run[0])
            else:
                out.own(n).text(run[0].content)
                out.text("/nothink" if run[0].role == "user" and self._says_nothink(run[0].content) else "")
        out.own("<|assistant|>" + self._begin).cut()

    def _says_nothink(self, content: str) -> bool:
        return not self._thinking and not content.endswith("/nothink")

    def _assistant(self, out: Writer, message: Message) -> None:
        """Behind the mark: what stands in the prompt of every answer, then the answer."""
        n, reasoning = self._line, message.reasoning.strip()
        if self._begin.endswith("</think>") and not reasoning:
            out.own(self._begin).cut()
        else:
            out.own(f"{n}<think>").cut()
            out.text(reasoning).own("</think>")
        if content := message.content.strip():
            out.own(n).text(content)
        for call in message.tool_calls:
            out.own(f"{n}<tool_call>").text(call.name).own(n)
            for key, value in arguments_of(call).items():
                shown = value if isinstance(value, str) else as_json(value)
                out.own("<arg_key>").text(key).own(f"</arg_key>{n}<arg_value>").text(shown).own(f"</arg_value>{n}")
            out.own("</tool_call>")

    def read(self, text: str, tools: Sequence[Tool]) -> Reading:
        reasoning, rest = split_thinking(text if self._begin.endswith("</think>") else self._begin + text)
        found = read_blocks(rest, TAGGED, lambda block: _read_call(block, tools))
        return found._replace(reasoning=reasoning)

    def call_id(self, turn: str, place: int, call: ReadCall) -> str:
        return plain_call_id(turn, place)


class Glm5(Glm4):
    """See the module. Without ``thinking`` an answer begins behind the end of its thinking."""

    traits = replace(Glm4.traits, name="glm5", marks=(*Glm4.traits.marks, "<think>", "</think>"))
    _line = ""

    def _begins(self, thinking: bool) -> str:
        return "<think>" if thinking else "</think>"

    def _says_nothink(self, content: str) -> bool:
        return False


def _read_call(block: str, tools: Sequence[Tool]) -> ReadCall | BrokenCall:
    name, argument, inside = block.partition("<arg_key>")
    name, inside = name.strip(), argument + inside
    if "<" in name or "{" in name:
        return BrokenCall(block, "it does not begin with a function's name")
    pairs = [(key.strip(), value) for key, value in _ARGUMENT.findall(inside)]
    if left := _ARGUMENT.sub("", inside).strip():
        return BrokenCall(block, f"between its arguments stands {left[:80]!r}")
    if len({key for key, _ in pairs}) < len(pairs):
        return BrokenCall(block, "it gives an argument twice")
    return checked_call(block, name, arguments_from_text(name, pairs, tools))
