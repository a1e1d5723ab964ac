"""Ids in the making: a family's marks by id, and the text between two marks encoded as one piece.

Guarantees:
- text never becomes a mark. ``Tokenizer.encode`` gives no special ids; tokens that are added but not special (``<think>`` in
  Qwen's tokenizers) would be found in text, so such text is encoded in two parts, cut behind the mark's first character;
- what stands between two marks is encoded as one piece, as in one render of the whole conversation, so the ids are that
  render's. The one exception is where an answer begins (``Writer.cut``): what the model is given ends there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from t1actors.tito.render.interface import RenderError


class TextTokenizer(Protocol):
    """What rendering needs of a tokenizer; ``models.tokenizer.Tokenizer`` is one."""

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``; never a special id."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens included as they are written."""
        ...

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as it is written, special or not; None where there is none."""
        ...


class Marks:
    """A family's marks in one tokenizer. ``needed`` must be there; of ``optional`` those that are not are plain text."""

    def __init__(self, tokenizer: TextTokenizer, family: str, needed: Sequence[str], optional: Sequence[str]) -> None:
        found = {mark: tokenizer.token_to_id(mark) for mark in (*needed, *optional)}
        if lacks := [mark for mark in needed if found[mark] is None]:
            raise RenderError(
                f"the tokenizer has not all marks of the chat format {family}: it lacks {', '.join(lacks)}"
            )
        self._tokenizer = tokenizer
        self._id_of = {mark: number for mark, number in found.items() if number is not None}
        self._mark_of = {number: mark for mark, number in self._id_of.items()}
        longest_first = sorted(self._id_of, key=len, reverse=True)
        self._written = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def id_of(self, mark: str) -> int:
        """The id of a mark that is there."""
        return self._id_of[mark]

    def mark_of(self, number: int) -> str:
        """The mark with that id; empty where it is none."""
        return self._mark_of.get(number, "")

    def split(self, text: str) -> list[str]:
        """``text`` cut at the marks written in it: text, mark, text, ..., text."""
        return self._written.split(text)

    def encode(self, text: str) -> list[int]:
        """The ids of one piece of text; never a mark's."""
        ids = self._tokenizer.encode(text)
        if self._mark_of.keys().isdisjoint(ids):
            return ids
        parts = [0, *(found.start() + 1 for found in self._written.finditer(text)), len(text)]
        ids = [i for start, end in pairwise(parts) for i in self._tokenizer.encode(text[start:end])]
        if not self._mark_of.keys().isdisjoint(ids):
            raise RenderError(f"the tokenizer makes a mark of text that does not write one: {text[:200]!r}")
        return ids

    def encode_written(self, text: str) -> list[int]:
        """The ids of ``text`` with the marks written in it as marks."""
        ids: list[int] = []
        for place, part in enumerate(self.split(text)):
            ids += [self._id_of[part]] if place % 2 else self.encode(part) if part else []
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, marks as they are written; what is decoded never runs across a mark."""
        parts: list[str] = []
        plain: list[int] = []
        for number in ids:
            if mark := self._mark_of.get(number):
                parts += [self._tokenizer.decode(plain), mark]
                plain = []
            else:
                plain.append(number)
        return "".join([*parts, self._tokenizer.decode(plain)])


class Writer:
    """Collects what a family writes; ``ids`` is all of it."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._ids: list[int] = []
        self._pending: list[str] = []

    def own(self, text: str) -> Writer:
        """The family's own text: marks in it are marks."""
        for place, part in enumerate(self._marks.split(text)):
            if place % 2:
                self.cut()
                self._ids.append(self._marks.id_of(part))
            else:
                self._pending.append(part)
        return self

    def text(self, text: str) -> Writer:
        """Text from outside: no mark, whatever it says."""
        self._pending.append(text)
        return self

    def cut(self) -> None:
        """What follows is encoded apart from what stands here: a mark, or an answer that a model begins."""
        if piece := "".join(self._pending):
            self._ids += self._marks.encode(piece)
        self._pending = []

    def ids(self) -> tuple[int, ...]:
        """All of it so far."""
        self.cut()
        return tuple(self._ids)
