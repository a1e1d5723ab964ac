"""How one call's whole prompt continues the call before it: the cases of T1 section 3, the strongest that holds.

    p, a   ids of a call's prompt and of its answer        q   ids of the next call's prompt
    STRICT        p a is a prefix of q
    NORMALIZED    p without its last s ids, then a without its last u, is a prefix of q: s in [0, 96], u in [0, 16],
                  the smallest s + u, of several the smallest s
    RETOKENIZED   the text of a stands in q in other ids: q[start:end] decodes to what a decodes to, and begins where p
                  ends, or s ids before it
    SPLIT         none of these

T1 bounds its repairs to *edges*: ids of the generation prompt, stop ids. Taken as bare numbers the bounds would let any two
short calls join, because nothing at all is a prefix of everything. So here
- what is dropped of an answer is edge: a stop id, or an id whose text is blank. No word of an answer is ever dropped, so a
  history without it (a think block taken out) splits, and nothing is there twice;
- where s > 0, at least one id of the answer stands in q. A prompt that merely begins alike splits.
The text of an answer is compared only where its ids are text: one that decodes with U+FFFD has bytes that the text does not
show, so equal texts would prove nothing, and it splits.

The place of RETOKENIZED is found through offsets: the offset of an id's end is the length of what the ids up to it decode to.
That grows with every id in tokenizers whose text of a prefix is a prefix of the text, all that chat models have; with any
other an answer may be missed, and splits. ``end`` is the smallest that fits.

*Markers* are for families without an id that ends a turn: there the model ends its turn with the mark of the next role, which
is already the next message's. Where q goes on without the sampled mark, it stays out of the stream (``left_out``), and the
stream is what the model was shown; nowhere else is something left out of an answer.

Pure; needs no tokenizer library.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from t1actors.events import BoundaryCase
from t1actors.tito.record import Ids

MAX_S = 96
MAX_U = 16
NO_TEXT = "\N{REPLACEMENT CHARACTER}"
_GLANCE = 4
"""So many ids are decoded to see whether a place is worth a search."""


class Text(Protocol):
    """What boundaries need of a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens as they are written."""
        ...


@dataclass(frozen=True, kw_only=True)
class Edges:
    """What may stand at the end of an answer without being part of what it says. ``markers``: see the module."""

    text: Text
    stop_ids: Collection[int]
    markers: Collection[int] = ()

    def holds(self, token: int) -> bool:
        """Whether ``token`` may be dropped from the end of an answer."""
        return token in self.stop_ids or not self.text.decode([token]).strip()


@dataclass(frozen=True, kw_only=True)
class Join:
    """How q continues p a. ``q[rest:]`` is what the call added; ``start`` and ``end`` of RETOKENIZED; ``left_out`` ids at the
    end of the answer are in no stream."""

    case: BoundaryCase
    rest: int
    s: int = 0
    u: int = 0
    start: int = 0
    end: int = 0
    left_out: int = 0


SPLIT = Join(case="SPLIT", rest=0)


def join(prompt: Ids, answer: Ids, following: Ids, edges: Edges, *, repair: bool) -> Join:
    """How the prompt ``following`` continues ``prompt`` and its ``answer``. Without ``repair`` only STRICT or SPLIT."""
    common = agreeing(prompt, following)
    if common == len(prompt) and agreeing(answer, following[common:]) == len(answer):
        return Join(case="STRICT", rest=len(prompt) + len(answer))
    if not repair:
        return SPLIT
    return _normalized(prompt, answer, following, common, edges) or (
        _retokenized(prompt, answer, following, common, edges.text) or SPLIT
    )


def agreeing(a: Ids, b: Ids) -> int:
    """How many ids ``a`` and ``b`` begin with in common."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(np.argmax(differs)) if differs.any() else n


def _normalized(prompt: Ids, answer: Ids, following: Ids, common: int, edges: Edges) -> Join | None:
    found: list[tuple[int, int, int]] = []
    for s in _cuts(prompt, common):
        kept = agreeing(answer, following[len(prompt) - s :])
        u = len(answer) - kept
        # More could be dropped than this u, but never a word that this u would not drop too.
        if u <= MAX_U and (kept or s == 0) and all(edges.holds(int(token)) for token in answer[kept:]):
            found.append((s + u, s, u))
    if not found:
        return None
    _, s, u = min(found)
    # An answer that is nothing but the marker stays: every turn has a sampled id.
    left_out = int((s, u) == (0, 1) and int(answer[-1]) in edges.markers and len(answer) > 1)
    return Join(case="NORMALIZED", rest=len(prompt) - s + len(answer) - u, s=s, u=u, left_out=left_out)


def _retokenized(prompt: Ids, answer: Ids, following: Ids, common: int, text: Text) -> Join | None:
    said = text.decode(answer.tolist())
    if not said or NO_TEXT in said:
        return None
    for s in _cuts(prompt, common):
        start = len(prompt) - s
        end = _end_of(said, following, start, len(answer), text)
        if end is not None:
            return Join(case="RETOKENIZED", rest=end, s=s, start=start, end=end)
    return None


def _cuts(prompt: Ids, common: int) -> range:
    """The values of s with which what is left of ``prompt`` is a prefix of what it agrees with for ``common`` ids."""
    return range(len(prompt) - common, min(MAX_S, len(prompt)) + 1)


def _end_of(said: str, following: Ids, start: int, guess: int, text: Text) -> int | None:
    """The smallest end with which ``following[start:end]`` decodes to ``said``."""

    def offset(end: int) -> int:
        return len(text.decode(following[start:end].tolist()).rstrip(NO_TEXT))

    glance = text.decode(following[start : start + _GLANCE].tolist()).rstrip(NO_TEXT)
    seen = min(len(glance), len(said))
    if glance[:seen] != said[:seen]:
        return None
    short, far = start, min(start + guess, len(following))
    while far < len(following) and offset(far) < len(said):
        short, far = far, min(start + 2 * (far - start), len(following))
    while short + 1 < far:
        middle = (short + far) // 2
        short, far = (middle, far) if offset(middle) < len(said) else (short, middle)
    return far if far > start and text.decode(following[start:far].tolist()) == said else None
