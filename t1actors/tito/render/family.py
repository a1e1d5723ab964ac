"""What one family of chat templates says, and the renderer that any of them makes with a tokenizer.

A family writes whole conversations and what is added to them, and reads an answer's text; ids, the closing of a turn that
was cut off and another family's calls are ``FamilyRenderer``'s business. Nothing is rendered twice: a family writes a
message the same whatever comes after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from typing import Protocol

from t1actors.tito.render.calls import ReadCall, Reading, foreign_format
from t1actors.tito.render.interface import Answer, BrokenCall, RenderError
from t1actors.tito.render.messages import Message, Tool, ToolCall
from t1actors.tito.render.pieces import Marks, TextTokenizer, Writer


@dataclass(frozen=True, kw_only=True)
class Options:
    """What templates leave to the caller, fixed for a trial. ``thinking``: whether a model that can do both thinks before it
    answers. ``today``: the date that some families are told; None says none, or what their template says then."""

    thinking: bool = True
    today: date | None = None


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a family is known by. ``marks`` are those that its tokenizers have, ``optional_marks`` those that only some have.
    ``stops`` end a turn; ``end`` closes one that was cut off (empty where the next role's mark does). ``call_format`` is
    the key of its tool calls in ``calls.FOREIGN``."""

    name: str
    marks: tuple[str, ...]
    optional_marks: tuple[str, ...] = ()
    stops: tuple[str, ...]
    end: str
    call_format: str


class Family(Protocol):
    """One family."""

    traits: Traits

    def opening(self, out: Writer, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """Write a whole conversation, up to where the next answer begins."""
        ...

    def extension(self, out: Writer, messages: Sequence[Message], last: str) -> None:
        """Write what follows a turn that ended with the stop ``last`` (empty: it was cut off, and ``end`` is written)."""
        ...

    def read(self, text: str, tools: Sequence[Tool]) -> Reading:
        """Take apart what was sampled, without the stop."""
        ...

    def call_id(self, turn: str, place: int, call: ReadCall) -> str:
        """The name of a call that a turn makes in that place, from 0 on."""
        ...


class FamilyRenderer:
    """A family over one tokenizer: a ``Renderer``. Raises ``RenderError`` where the tokenizer lacks a mark."""

    def __init__(self, family: Family, tokenizer: TextTokenizer) -> None:
        self._family = family
        self._traits = family.traits
        self._marks = Marks(tokenizer, family.traits.name, family.traits.marks, family.traits.optional_marks)
        self._stop_ids = tuple(self._marks.id_of(mark) for mark in family.traits.stops)

    @property
    def family(self) -> str:
        return self._traits.name

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stop_ids

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        if not messages:
            raise RenderError(f"{self.family}: a conversation without a message")
        out = Writer(self._marks)
        self._family.opening(out, messages, tools)
        return out.ids()

    def extension(self, messages: Sequence[Message], *, last_sampled: int) -> tuple[int, ...]:
        if not messages or any(message.role == "assistant" for message in messages):
            raise RenderError(f"{self.family}: a turn is extended by messages that are not an assistant's, one or more")
        out = Writer(self._marks)
        last = self._marks.mark_of(last_sampled) if last_sampled in self._stop_ids else ""
        if not last:
            out.own(self._traits.end)
        self._family.extension(out, messages, last)
        return out.ids()

    def answer(self, sampled_ids: Sequence[int], *, turn: str, tools: Sequence[Tool] = ()) -> Answer:
        closed = bool(sampled_ids) and sampled_ids[-1] in self._stop_ids
        body = list(sampled_ids[:-1] if closed else sampled_ids)
        text = self._marks.decode(body)
        reading = self._family.read(text, tools)
        content, broken, foreign = self._without_foreign(reading)
        return Answer(
            content=content,
            reasoning=reading.reasoning,
            calls=tuple(
                ToolCall(id=self._family.call_id(turn, place, call), name=call.name, arguments=call.arguments)
                for place, call in enumerate(reading.calls)
            ),
            broken=broken,
            foreign=foreign,
            canonical=self._marks.encode_written(text) == body,
            closed=closed,
        )

    def _without_foreign(self, reading: Reading) -> tuple[str, tuple[BrokenCall, ...], str]:
        """Content, broken calls and foreign format. What is in another family's format is content, broken or not."""
        own = self._traits.call_format
        foreign = foreign_format(reading.content, own)
        content, broken = reading.content, list[BrokenCall]()
        for call in reading.broken:
            if found := foreign_format(call.text, own):
                foreign = foreign or found
                content = "\n".join(filter(None, (content, call.text)))
            else:
                broken.append(call)
        return content, tuple(broken), foreign


def plain_call_id(turn: str, place: int) -> str:
    """How most families' calls are named: their templates show no name."""
    return f"call_{turn}_{place}"


def labelled_call_id(label: str, turn: str, place: int) -> str:
    """For families that show the model its own name for a call again: ``label_of`` gives it back."""
    return f"{label}@{turn}_{place}"


def label_of(call_id: str) -> str:
    """The model's name for the call; of a call that another made, the whole of its id."""
    return call_id.partition("@")[0]


def leading_system(family: str, messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """(what the first system or developer message says, the others), for families that have a place for one only."""
    first = messages[0].role in ("system", "developer")
    rest = messages[1:] if first else messages
    refuse_system(family, rest)
    return (messages[0].content if first else ""), rest


def refuse_system(family: str, messages: Sequence[Message]) -> None:
    """Raise ``RenderError`` for a system or developer message where the family has no place for one."""
    if any(message.role in ("system", "developer") for message in messages):
        raise RenderError(f"{family} has no form for a system or developer message behind the first message")


def runs(messages: Sequence[Message]) -> Iterator[tuple[bool, list[Message]]]:
    """Messages with the answers of tools that stand together taken together: (whether they are that, messages)."""
    for tools, found in groupby(messages, key=lambda message: message.role == "tool"):
        if tools:
            yield True, list(found)
        else:
            for message in found:
                yield False, [message]


def split_thinking(text: str, start: str = "<think>", end: str = "</think>") -> tuple[str, str]:
    """(reasoning, the rest) of a turn that begins by thinking; thinking that was not ended is all there is."""
    opened = text.lstrip().startswith(start)
    inside = text.lstrip()[len(start) :] if opened else text
    thought, ended, rest = inside.partition(end)
    if ended:
        return thought.strip("\n"), rest.lstrip("\n")
    return (inside.strip("\n"), "") if opened else ("", text)
