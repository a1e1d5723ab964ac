"""A renderer small enough to check by eye, for tests of what stands above renderers: a letter is its byte, marks lie below 8.

<user> text <end> newline <assistant> text <call> {"name": ..., "arguments": {...}} </call> <end> newline <assistant>
"""

import json
from collections.abc import Sequence

from t1actors.tito.render.interface import Answer, BrokenCall, RenderError
from t1actors.tito.render.messages import Message, Tool, ToolCall

END, SYSTEM, USER, ASSISTANT, TOOL, CALL, CALL_END, END_TOO = range(8)
LETTERS = 8
VOCABULARY = LETTERS + 256
ROLES = {"system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}
GLUE = (LETTERS + ord("\n"),)


def letters(text: str) -> tuple[int, ...]:
    return tuple(LETTERS + byte for byte in text.encode())


def text_of(ids: Sequence[int]) -> str:
    return bytes(i - LETTERS for i in ids if i >= LETTERS).decode(errors="replace")


def call_ids(name: str, arguments: str) -> tuple[int, ...]:
    return (CALL, *letters(f'{{"name": "{name}", "arguments": {arguments}}}'), CALL_END)


class PlainRenderer:
    """Keeps the whole interface of ``t1actors.tito.render``. No message of a system may stand behind an answer."""

    family = "plain"
    stop_ids = (END, END_TOO)

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        ids: list[int] = []
        if tools:
            shown = json.dumps([[tool.name, tool.description, tool.parameters] for tool in tools])
            ids += [SYSTEM, *letters(shown), END, *GLUE]
        for message in messages:
            ids += self._message(message)
        return (*ids, ASSISTANT)

    def extension(self, messages: Sequence[Message], *, last_sampled: int) -> tuple[int, ...]:
        closing = () if last_sampled in self.stop_ids else (END,)
        ids: list[int] = [*closing, *GLUE]
        for message in messages:
            assert message.role != "assistant"
            if message.role == "system":
                raise RenderError("a system message behind an answer: the template has no form for it")
            ids += self._message(message)
        return (*ids, ASSISTANT)

    def answer(self, sampled_ids: Sequence[int], *, turn: str, tools: Sequence[Tool] = ()) -> Answer:
        body = list(sampled_ids)
        closed = bool(body) and body[-1] in self.stop_ids
        if closed:
            body.pop()
        text: list[int] = []
        calls: list[ToolCall] = []
        broken: list[BrokenCall] = []
        while body:
            if body[0] != CALL or CALL_END not in body:
                text.append(body.pop(0))
                continue
            end = body.index(CALL_END)
            source, body = text_of(body[1:end]), body[end + 1 :]
            try:
                read = json.loads(source)
                arguments = source.partition('"arguments": ')[2][:-1]
                calls.append(ToolCall(id=f"call_{turn}_{len(calls)}", name=read["name"], arguments=arguments))
            except (ValueError, KeyError, TypeError) as error:
                broken.append(BrokenCall(source, str(error)))
        content = text_of(text)
        foreign = "qwen3" if "<tool_call>" in content else ""
        canonical = letters(content) == tuple(text)
        return Answer(content, "", tuple(calls), tuple(broken), foreign, canonical, closed)

    def _message(self, message: Message) -> tuple[int, ...]:
        calls = [i for call in message.tool_calls for i in call_ids(call.name, call.arguments)]
        return (ROLES[message.role], *letters(message.content), *calls, END, *GLUE)
