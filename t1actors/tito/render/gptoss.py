"""GPT-OSS (harmony): a turn is several messages, each on a channel.

    <|start|>user<|message|>text<|end|><|start|>assistant<|channel|>analysis<|message|>...<|end|>
    <|start|>assistant to=functions.run<|channel|>commentary json<|message|>{...}<|call|>
    <|start|>functions.run to=assistant<|channel|>commentary<|message|>"out"<|end|>

``analysis`` is reasoning, ``final`` and ``commentary`` to nobody are content, and what is addressed to a function is a call.
A call's id begins with the function's name, under which its answer is shown. Without a date the system message names none.

Pinned: the template drops the analysis of turns that are followed by a final answer, and ends such an answer with <|end|> in
later prompts; here analysis stays, and a sampled answer keeps the <|return|> that it was sampled with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from t1actors.tito.render.calls import ReadCall, Reading, as_json, checked_call
from t1actors.tito.render.family import Options, Traits, label_of, labelled_call_id, leading_system, refuse_system
from t1actors.tito.render.harmony_tools import tools_text
from t1actors.tito.render.interface import BrokenCall, RenderError
from t1actors.tito.render.messages import Message, Tool
from t1actors.tito.render.pieces import Writer

_ENDS = re.compile(r"<\|(?:end|call|return)\|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_FUNCTION = "functions."


class GptOss:
    """See the module."""

    traits = Traits(
        name="gptoss",
        marks=("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
        stops=("<|return|>", "<|call|>"),
        end="<|return|>",
        call_format="gptoss",
    )

    def __init__(self, options: Options) -> None:
        day = options.today
        self._system = (
            "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
            + (f"Current date: {day.isoformat()}\n" if day else "")
            + "\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. "
            + "Channel must be included for every message."
        )

    def opening(self, out: Writer, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        system, rest = leading_system(self.traits.name, messages)
        out.own("<|start|>system<|message|>" + self._system)
        out.own("\nCalls to these tools must go to the commentary channel: 'functions'." if tools else "").own(
            "<|end|>"
        )
        if system or tools:
            out.own("<|start|>developer<|message|>")
            if system:
                out.own("# Instructions\n\n").text(system).own("\n\n")
            if tools:
                out.own("# Tools\n\n").text(tools_text(tools))
            out.own("<|end|>")
        self._turns(out, rest)

    def extension(self, out: Writer, messages: Sequence[Message], last: str) -> None:
        refuse_system(self.traits.name, messages)
        self._turns(out, messages)

    def _turns(self, out: Writer, messages: Sequence[Message]) -> None:
        callers: dict[str, str] = {}
        for message in messages:
            if message.role == "assistant":
                callers |= {call.id: _FUNCTION + call.name for call in message.tool_calls}
                self._assistant(out, message)
            elif message.role == "tool":
                out.own("<|start|>").text(_answers(message, callers))
                out.own(" to=assistant<|channel|>commentary<|message|>").text(as_json(message.content)).own("<|end|>")
            else:
                out.own("<|start|>user<|message|>").text(message.content).own("<|end|>")
        out.own("<|start|>assistant").cut()

    def _assistant(self, out: Writer, message: Message) -> None:
        out.own("<|start|>assistant").cut()
        parts: list[tuple[str, str, str]] = []
        if message.reasoning:
            parts.append(("<|channel|>analysis", message.reasoning, "<|end|>"))
        if message.content and message.tool_calls:
            parts.append(("<|channel|>commentary", message.content, "<|end|>"))
        elif message.content or not message.tool_calls:
            parts.append(("<|channel|>final", message.content, "<|end|>"))
        parts += [
            (f" to={_FUNCTION}{call.name}<|channel|>commentary json", call.arguments, "<|call|>")
            for call in message.tool_calls
        ]
        for place, (header, text, end) in enumerate(parts):
            out.own("<|start|>assistant" if place else "").own(header).own("<|message|>").text(text).own(end)

    def read(self, text: str, tools: Sequence[Tool]) -> Reading:
        thoughts: list[str] = []
        said: list[str] = []
        calls: list[ReadCall] = []
        broken: list[BrokenCall] = []
        for written in filter(None, _ENDS.split(text)):
            header, begun, body = written.removeprefix("<|start|>assistant").partition("<|message|>")
            channel = _CHANNEL.search(header)
            if recipient := _RECIPIENT.search(header):
                call = _read_call(written, recipient[1], body)
                calls += [call] if isinstance(call, ReadCall) else []
                broken += [call] if isinstance(call, BrokenCall) else []
            elif channel and channel[1] == "analysis":
                thoughts.append(body)
            else:
                said.append(body if begun else written)
        return Reading("\n".join(said), "\n".join(thoughts), tuple(calls), tuple(broken))

    def call_id(self, turn: str, place: int, call: ReadCall) -> str:
        return labelled_call_id(call.label, turn, place)


def _read_call(text: str, recipient: str, body: str) -> ReadCall | BrokenCall:
    if not recipient.startswith(_FUNCTION):
        return BrokenCall(text, f"it is addressed to {recipient}, not to one of {_FUNCTION}")
    return checked_call(text, recipient.removeprefix(_FUNCTION), body.strip(), recipient)


def _answers(message: Message, callers: dict[str, str]) -> str:
    """The function whose answer it is."""
    label = callers.get(message.tool_call_id) or label_of(message.tool_call_id)
    if label.startswith(_FUNCTION):
        return label
    if message.name:
        return _FUNCTION + message.name
    raise RenderError(
        f"gptoss: the answer to {message.tool_call_id!r} names no function, and no call of that id is there"
    )
