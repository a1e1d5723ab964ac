"""Random tokenizers and random conversations as foreign harnesses leave them: whole prompts, rendered from text again and
again, with everything that goes wrong on the way."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.tito.oracle import Call

SYSTEM, USER, ASSISTANT, TOOL, END, END2, THINK, END_THINK = (
    "<s>",
    "<u>",
    "<a>",
    "<t>",
    "<e>",
    "<f>",
    "<think>",
    "</think>",
)
SPECIAL = (SYSTEM, USER, ASSISTANT, TOOL, END, END2, THINK, END_THINK)
ALPHABET = "abcde é\n漢"
SYLLABLES = ("ab", "abc", "de", "c", " a", " de", "é", "\n", "漢", "\n ")


@dataclass(frozen=True)
class Words:
    """A tokenizer as the boundaries see it."""

    raw: Tokenizer

    def decode(self, ids: Sequence[int]) -> str:
        return self.raw.decode(list(ids), skip_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        """Marks in ``text`` become their ids."""
        return self.raw.encode(text, add_special_tokens=False).ids

    def mark(self, text: str) -> int:
        found = self.raw.token_to_id(text)
        assert found is not None
        return found


@lru_cache(maxsize=64)
def words(seed: int) -> Words:
    """A small tokenizer: two of three byte-level, the others with pieces that begin with a blank."""
    draw = random.Random(seed)
    raw = Tokenizer(models.BPE())
    special = [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    corpus = ["".join(draw.choice(SYLLABLES) for _ in range(30)) for _ in range(20)]
    alphabet: list[str] = []
    if seed % 3:
        raw.pre_tokenizer = cast(Any, pre_tokenizers).ByteLevel(add_prefix_space=False, use_regex=draw.random() < 0.5)
        raw.decoder = cast(Any, decoders).ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        raw.pre_tokenizer = cast(Any, pre_tokenizers).Metaspace(prepend_scheme=draw.choice(["first", "never"]))
        raw.decoder = cast(Any, decoders).Metaspace(prepend_scheme="never")
        alphabet = [c for c in ALPHABET if c != " "]
    size = len(SPECIAL) + len(alphabet) + draw.randint(0, 60)
    raw.train_from_iterator(
        corpus,
        trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return Words(raw)


@dataclass(frozen=True)
class Conversation:
    words: Words
    calls: list[Call]
    stops: frozenset[int]
    markers: frozenset[int]


def conversation(seed: int) -> Conversation:
    """Two to four calls of a harness that keeps text and renders it for each call, badly in one way or another."""
    draw = random.Random(seed)
    w = words(draw.randrange(40))
    marks = w.mark
    no_end = draw.random() < 0.15  # a family whose turns end with the next role's mark
    stops = {marks(TOOL), marks(USER)} if no_end else {marks(END), marks(END2)}
    suffix = draw.choice(["", "", "", "\n", f"{THINK}\n\n{END_THINK}", f"{THINK}\n"])
    history_has_suffix = draw.random() < 0.7
    system = _text(draw, 6)
    turns: list[tuple[str, str]] = []  # what the history shows of each turn: the answer, and what followed it
    calls: list[Call] = []
    for number in range(draw.randint(2, 4)):
        if number and draw.random() < 0.08:
            system = _text(draw, 6)  # another list of tools
        if number and draw.random() < 0.05:
            turns = turns[: draw.randrange(len(turns))]  # the harness forgets turns, or compacts
        shown = f"{SYSTEM}{system}{END}{USER}begin"
        for answer, observation in turns:
            shown += f"{'' if no_end else END}{ASSISTANT}{suffix if history_has_suffix else ''}{answer}{observation}"
        prompt = w.encode(shown + ("" if no_end else END) + ASSISTANT + suffix)
        if calls and draw.random() < 0.3:  # a harness that appends ids, edges or not
            ids = calls[-1].prompt + calls[-1].answer
            cut = draw.choice([0, 0, 0, 1, 2, 3])
            prompt = (
                ids[: len(ids) - cut]
                + w.encode(_text(draw, 3) * draw.randint(0, 1))
                + [token for token in [marks(draw.choice(SPECIAL))] if draw.random() < 0.5]
            )
        if calls and draw.random() < 0.06 and prompt:
            prompt[draw.randrange(len(prompt))] = draw.randrange(w.raw.get_vocab_size())
        answer, text = _answer(draw, w, stops)
        calls.append(Call(prompt, answer, [-(1 + n + 100 * number) / 64 for n in range(len(answer))]))
        turns.append((_edited(draw, text), _observation(draw, no_end)))
    return Conversation(w, calls, frozenset(stops), frozenset(stops) if no_end and draw.random() < 0.7 else frozenset())


def _text(draw: random.Random, most: int) -> str:
    pieces = ALPHABET if draw.random() < 0.3 else SYLLABLES
    return "".join(draw.choice(pieces) for _ in range(draw.randint(1, most)))


def _answer(draw: random.Random, w: Words, stops: set[int]) -> tuple[list[int], str]:
    """Ids as a model may sample them, canonical or cut otherwise, and their text without the id that ended the turn."""
    text = _text(draw, 8)
    if draw.random() < 0.12:
        text = f"{THINK}{_text(draw, 4)}{END_THINK}{text}"
    if draw.random() < 0.2:
        ids = w.encode(text)
    else:
        places = sorted(draw.randrange(len(text) + 1) for _ in range(draw.randint(1, 3)))
        pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
        ids = [token for piece in pieces for token in w.encode(piece)]
    if draw.random() < 0.05:  # bytes that are no text, words of another language
        ids.insert(draw.randrange(len(ids) + 1), draw.randrange(w.raw.get_vocab_size()))
    text = w.decode(ids)
    if draw.random() < 0.85 or not ids:
        ids = [*ids, draw.choice([*sorted(stops), min(stops)])]
    return ids, text


def _edited(draw: random.Random, text: str) -> str:
    """What a harness keeps of an answer."""
    match draw.randrange(12):
        case 0 if END_THINK in text:
            return text.split(END_THINK)[-1]
        case 1:
            return text.strip()
        case 2:
            return " ".join(text.split())
        case 3:
            return text + "\n"
        case _:
            return text


def _observation(draw: random.Random, no_end: bool) -> str:
    ends = "" if no_end else draw.choice([END, END, END, END, END2, "", END2 + END])
    return f"{ends}{draw.choice([TOOL, TOOL, USER])}{_text(draw, 4)}"
