"""Our own marks, which models made here are taught:

    <|user|> instruction <|end|> <|assistant|> command <|end|> <|tool|> observation <|end|> <|assistant|> ...

They have no role for a system's or developer's text, nor for tools: both are written as users' turns, and calls as JSON
between tags (``hermes``) in plain text.
"""

from __future__ import annotations

from collections.abc import Sequence

from t1actors.tito.render import hermes
from t1actors.tito.render.calls import ReadCall, Reading
from t1actors.tito.render.family import Options, Traits, plain_call_id, split_thinking
from t1actors.tito.render.messages import Message, Tool
from t1actors.tito.render.pieces import Writer


class T1:
    """See the module."""

    traits = Traits(
        name="t1",
        marks=("<|pad|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"),
        stops=("<|end|>",),
        end="<|end|>",
        call_format="qwen3",
    )

    def __init__(self, options: Options) -> None:
        pass

    def opening(self, out: Writer, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        if tools:
            out.own("<|user|>").text(hermes.tools_text(tools) + hermes.CALL_HOW).own("<|end|>")
        self._turns(out, messages)

    def extension(self, out: Writer, messages: Sequence[Message], last: str) -> None:
        self._turns(out, messages)

    def _turns(self, out: Writer, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.role == "assistant":
                self._assistant(out, message)
            else:
                out.own("<|tool|>" if message.role == "tool" else "<|user|>").text(message.content).own("<|end|>")
        out.own("<|assistant|>")

    def _assistant(self, out: Writer, message: Message) -> None:
        out.own("<|assistant|>")
        if message.reasoning:
            out.text(f"<think>\n{message.reasoning}\n</think>\n\n")
        out.text(message.content)
        for place, call in enumerate(message.tool_calls):
            out.text("\n" if place or message.content else "")
            out.text(f"<tool_call>{hermes.call_text(call)}</tool_call>")
        out.own("<|end|>")

    def read(self, text: str, tools: Sequence[Tool]) -> Reading:
        reasoning, rest = split_thinking(text)
        return hermes.read_calls(rest)._replace(reasoning=reasoning)

    def call_id(self, turn: str, place: int, call: ReadCall) -> str:
        return plain_call_id(turn, place)
