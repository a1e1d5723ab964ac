"""ChatML as Qwen3 writes it (Qwen2.5 and others without thinking too), with tool calls as JSON between tags (``hermes``):

    <|im_start|>user\\ntext<|im_end|>\\n<|im_start|>assistant\\n<think>\\n...\\n</think>\\n\\nanswer<|im_end|>\\n

Pinned: Qwen3's own template drops the thinking of turns before the last user message and may put an empty block in
later ones. Here a turn's thinking stays, and no block is added to a turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from t1actors.tito.render import hermes
from t1actors.tito.render.calls import ReadCall, Reading
from t1actors.tito.render.family import Options, Traits, plain_call_id, runs, split_thinking
from t1actors.tito.render.messages import Message, Tool
from t1actors.tito.render.pieces import Writer


class Qwen3:
    """See the module. Without ``thinking`` an answer begins behind an empty block."""

    traits = Traits(
        name="qwen3",
        marks=("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
        optional_marks=("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
        stops=("<|im_end|>", "<|endoftext|>"),
        end="<|im_end|>",
        call_format="qwen3",
    )

    def __init__(self, options: Options) -> None:
        self._empty = "" if options.thinking else "<think>\n\n</think>\n\n"

    def opening(self, out: Writer, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        system = messages[0].role in ("system", "developer")
        if tools:
            out.own("<|im_start|>system\n").text(messages[0].content + "\n\n" if system else "")
            out.own(hermes.tools_text(tools) + hermes.CALL_HOW + "<|im_end|>\n")
            messages = messages[1:] if system else messages
        self._turns(out, messages)

    def extension(self, out: Writer, messages: Sequence[Message], last: str) -> None:
        out.own("\n")
        self._turns(out, messages)

    def _turns(self, out: Writer, messages: Sequence[Message]) -> None:
        for of_tools, run in runs(messages):
            if of_tools:
                out.own("<|im_start|>user")
                for message in run:
                    out.own("\n<tool_response>\n").text(message.content).own("\n</tool_response>")
                out.own("<|im_end|>\n")
            elif run[0].role == "assistant":
                self._assistant(out, run[0])
            else:
                role = "user" if run[0].role == "user" else "system"
                out.own(f"<|im_start|>{role}\n").text(run[0].content).own("<|im_end|>\n")
        out.own("<|im_start|>assistant\n" + self._empty).cut()

    def _assistant(self, out: Writer, message: Message) -> None:
        out.own("<|im_start|>assistant\n" + ("" if message.reasoning else self._empty)).cut()
        if message.reasoning:
            out.own("<think>\n").text(message.reasoning.strip("\n")).own("\n</think>\n\n")
        out.text(message.content)
        for place, call in enumerate(message.tool_calls):
            out.own("\n" if place or message.content else "")
            out.own("<tool_call>").text(hermes.call_text(call)).own("</tool_call>")
        out.own("<|im_end|>\n")

    def read(self, text: str, tools: Sequence[Tool]) -> Reading:
        reasoning, rest = split_thinking(text)
        return hermes.read_calls(rest)._replace(reasoning=reasoning)

    def call_id(self, turn: str, place: int, call: ReadCall) -> str:
        return plain_call_id(turn, place)
