"""What the paper says a trial's stream is, by trying everything: slow, and without one line of the stitcher.

A stream is a list of ``Position``: id, m, q, and which call's forward its routing row is from, as (call, position in what
that call ran). A copied row is that of the position before it, and is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """``markers`` and ``stops`` are ids; ``repair``: T1's cases, or only STRICT and SPLIT."""

    decode: Callable[[Sequence[int]], str]
    stops: frozenset[int]
    markers: frozenset[int]
    repair: bool


@dataclass(frozen=True)
class Case:
    """A boundary. ``at``: where in the prompt what it added begins."""

    name: str
    at: int
    s: int = 0
    u: int = 0
    span: tuple[int, int] = (0, 0)
    left_out: int = 0


@dataclass(frozen=True)
class Call:
    prompt: list[int]
    answer: list[int]
    logprobs: list[float]


@dataclass
class Position:
    id: int
    m: int
    q: float
    row: tuple[int, int] | None = None
    copied: bool = False


class NoRow(Exception):
    """The stream needs a row that no call has."""


def case_of(before: Call, prompt: list[int], rules: Rules) -> Case:
    """How ``prompt`` continues the call ``before``."""
    p, a = before.prompt, before.answer
    if prompt[: len(p) + len(a)] == p + a:
        return Case("STRICT", len(p) + len(a))
    if not rules.repair:
        return Case("SPLIT", 0)
    pairs = [(s, u) for s in range(min(96, len(p)) + 1) for u in range(min(16, len(a)) + 1)]
    for s, u in sorted(pairs, key=lambda pair: (sum(pair), pair[0])):
        kept = p[: len(p) - s] + a[: len(a) - u]
        dropped = a[len(a) - u :]
        edge = all(token in rules.stops or rules.decode([token]).strip() == "" for token in dropped)
        anything_of_the_answer = s == 0 or u < len(a)
        if prompt[: len(kept)] == kept and edge and anything_of_the_answer:
            marker = (s, u) == (0, 1) and a[-1] in rules.markers and len(a) > 1
            return Case("NORMALIZED", len(kept), s=s, u=u, left_out=1 if marker else 0)
    said = rules.decode(a)
    if said and "\ufffd" not in said:
        for s in range(min(96, len(p)) + 1):
            b = len(p) - s
            if prompt[:b] != p[:b]:
                continue
            for e in range(b + 1, len(prompt) + 1):
                if rules.decode(prompt[b:e]) == said:
                    return Case("RETOKENIZED", e, s=s, span=(b, e))
    return Case("SPLIT", 0)


@dataclass(frozen=True)
class Streams:
    """The chunks; how each call from the second on was joined; ids that were sampled after another history than theirs."""

    chunks: list[list[Position]]
    cases: list[Case]
    altered: int


def streams_of(calls: Sequence[Call], rules: Rules) -> Streams:
    """What the calls amount to. Raises ``NoRow``."""
    cases = [case_of(calls[n - 1], calls[n].prompt, rules) for n in range(1, len(calls))]
    chunks: list[list[Position]] = []
    altered = 0
    for number, call in enumerate(calls):
        case = cases[number - 1] if number else Case("SPLIT", 0)
        left_out = cases[number].left_out if number < len(cases) else 0
        if case.name == "SPLIT":
            chunks.append([])
        stream = chunks[-1]
        if stream:
            _row_of_the_last(stream, calls, number, case)
        for place in range(case.at, len(call.prompt)):
            stream.append(Position(call.prompt[place], 0, 0.0, (number, place)))
        if [at.id for at in stream] != call.prompt:
            altered += len(call.answer) - left_out
        for place in range(len(call.answer) - left_out):
            stream.append(Position(call.answer[place], 1, call.logprobs[place], (number, len(call.prompt) + place)))
        stream[-1].row = None  # its own call never ran it
    return Streams(chunks, cases, altered)


def _row_of_the_last(stream: list[Position], calls: Sequence[Call], number: int, case: Case) -> None:
    """Who ran the id that the stream ended with: the call that goes on from it, unless its history ends otherwise."""
    last, prompt = stream[-1], calls[number].prompt
    same_place = case.name == "STRICT" or case.left_out == 1 or (case.name == "NORMALIZED" and case.u == 0)
    if same_place or (case.name == "RETOKENIZED" and prompt[case.at - 1] == last.id):
        last.row = (number, case.at - 1)
    elif case.at < len(prompt):  # what it predicts is context
        last.row, last.copied = stream[-2].row, True
    else:
        raise NoRow(f"call {number}")
