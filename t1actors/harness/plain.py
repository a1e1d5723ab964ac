"""Plain conversations for the two formats that the shell harness writes, as a ``Renderer``: our own marks, and ChatML.

    <|user|> text <|end|> <|assistant|> answer <|end|> <|tool|> text <|end|> <|assistant|> ...
    <|im_start|>user\\ntext<|im_end|>\\n<|im_start|>assistant\\n answer<|im_end|> \\n<|im_start|>user\\n...

Guarantees: those of ``tito.render.interface``. There are no tool calls: tools are refused, and an answer is its text. Our own
marks have no system turn: what a system message says stands before the first user's text.
"""

from __future__ import annotations

from collections.abc import Sequence

from t1actors.models.tokenizer import ChatmlIds, SpecialIds, Tokenizer
from t1actors.tito.render.interface import Answer, RenderError
from t1actors.tito.render.messages import Message, Tool


class PlainRenderer:
    """The tokenizer's marks decide which of the two formats it is."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        marks = tokenizer.marks
        self._turns: _OwnTurns | _ChatmlTurns = (
            _OwnTurns(tokenizer, marks) if isinstance(marks, SpecialIds) else _ChatmlTurns(tokenizer, marks)
        )

    @property
    def family(self) -> str:
        return self._turns.family

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (self._turns.end,)

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        if tools:
            raise RenderError(f"the format {self.family} has no form for tools")
        return (*self._turns.written(messages), *self._turns.answer)

    def extension(self, messages: Sequence[Message], *, last_sampled: int) -> tuple[int, ...]:
        if any(message.role == "assistant" for message in messages):
            raise RenderError("an assistant's message can't extend a turn that was sampled")
        closing = () if last_sampled == self._turns.end else (self._turns.end,)
        return (*closing, *self._turns.glue, *self._turns.written(messages), *self._turns.answer)

    def answer(self, sampled_ids: Sequence[int], *, turn: str) -> Answer:
        body = list(sampled_ids)
        closed = bool(body) and body[-1] == self._turns.end
        if closed:
            body.pop()
        text = self._tokenizer.decode(body)
        canonical = self._tokenizer.encode(text) == body
        content, reasoning = text, ""
        if (end_think := self._turns.end_think) in body:
            at = len(body) - body[::-1].index(end_think)
            content = self._tokenizer.decode(body[at:]).lstrip("\n")
            reasoning = self._tokenizer.decode(body[: at - 1]).removeprefix("<think>").strip("\n")
        return Answer(
            content=content,
            reasoning=reasoning,
            calls=(),
            broken=(),
            foreign="",
            canonical=canonical,
            closed=closed,
        )


class _OwnTurns:
    family = "t1"
    end_think: int | None = None
    glue: tuple[int, ...] = ()

    def __init__(self, tokenizer: Tokenizer, marks: SpecialIds) -> None:
        self._encode = tokenizer.encode
        self._marks = marks
        self.end = marks.end
        self.answer: tuple[int, ...] = (marks.assistant,)

    def written(self, messages: Sequence[Message]) -> list[int]:
        marks = {"user": self._marks.user, "tool": self._marks.tool, "assistant": self._marks.assistant}
        ids: list[int] = []
        told = ""
        for message in messages:
            if message.role not in marks:  # system, developer
                told += message.content + "\n\n"
                continue
            text = message.content
            if message.role == "user":
                text, told = told + text, ""
            ids += [marks[message.role], *self._encode(text), self.end]
        if told:
            raise RenderError(f"the format {self.family} has no system turn: a user's message must follow")
        return ids


class _ChatmlTurns:
    """Role and text are encoded as one piece, as in a full render."""

    family = "chatml"

    def __init__(self, tokenizer: Tokenizer, marks: ChatmlIds) -> None:
        self._encode = tokenizer.encode
        self._start = marks.start
        self.end = marks.end
        self.end_think = marks.end_think
        self.glue = tuple(tokenizer.encode("\n"))
        self.answer: tuple[int, ...] = (marks.start, *tokenizer.encode("assistant\n"))

    def written(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            role = "user" if message.role == "tool" else message.role
            ids += [self._start, *self._encode(f"{role}\n{message.content}"), self.end, *self.glue]
        return ids
