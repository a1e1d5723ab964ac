"""Random conversations over random tokenizers: the stitcher and an oracle that tries everything agree on every boundary,
every id, and on which forward every routing row is from."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest

from t1actors.events import VersionSpan
from t1actors.tito.boundary import Edges
from t1actors.tito.foreign import Foreign, ForeignCall, Shares, stitch_foreign
from t1actors.tito.record import Geometry
from t1actors.tito.stitch import StitchError
from tests.tito.conversations import Conversation, conversation
from tests.tito.oracle import NoRow, Rules, streams_of

GEOMETRY = Geometry(layers=1, top_k=2, experts=1 << 16)
MOST = 4096
"""Ids of one call, at the most."""


def row(made: Conversation, place: tuple[int, int], *, by_ids: bool) -> list[list[int]]:
    """Routing that names the call and the position whose forward it is from; ``by_ids``: that names the ids up to there, as
    they decide a forward."""
    number, position = place
    call = made.calls[number]
    name = number * MOST + position
    if by_ids:
        name = int.from_bytes(hashlib.blake2b(repr((call.prompt + call.answer)[: position + 1]).encode()).digest()[:2])
        name //= 2
    return [[2 * name, 2 * name + 1]]


def foreign_calls(made: Conversation, *, by_ids: bool) -> list[ForeignCall]:
    """``by_ids``: of calls that have no rows for what an earlier one ran."""
    calls: list[ForeignCall] = []
    for number, call in enumerate(made.calls):
        ids = call.prompt + call.answer
        known = 0
        if by_ids:
            shared = [common(ids, before.prompt + before.answer) for before in made.calls[:number]]
            known = min(max(shared, default=0), len(call.prompt) - 1)
        rows = [row(made, (number, j), by_ids=by_ids) for j in range(known, len(ids) - 1)]
        calls.append(
            ForeignCall(
                prompt_ids=call.prompt,
                sampled_ids=call.answer,
                logprobs=call.logprobs,
                routing_RLK=np.array(rows),
                versions=(VersionSpan(version=f"v{number}", start=0, end=len(call.answer)),),
                known_rows=known,
            )
        )
    return calls


def common(ids: list[int], before: list[int]) -> int:
    """How many rows of ``before`` are those of ``ids`` too."""
    n = 0
    while n < min(len(ids), len(before) - 1) and ids[n] == before[n]:
        n += 1
    return n


def compare(seed: int, counts: Counter[str]) -> None:
    made = conversation(seed)
    repair, by_ids = seed % 4 != 0, seed % 3 == 0
    rules = Rules(made.words.decode, made.stops, made.markers, repair)

    def stitched() -> Foreign:
        return stitch_foreign(
            foreign_calls(made, by_ids=by_ids),
            edges=Edges(text=made.words, stop_ids=made.stops, markers=made.markers),
            rule="t1" if repair else "strict",
            trial=f"seed {seed}",
            index=0,
            task="",
            temperature=1.0,
            geometry=GEOMETRY,
        )

    try:
        expected = streams_of(made.calls, rules)
    except NoRow:
        counts["no row"] += 1
        with pytest.raises(StitchError, match="would be a copy"):
            stitched()
        return
    found = stitched()
    record, shares = found.stitched.record, found.shares
    assert [(b.case, b.s, b.u, (b.start, b.end), b.left_out) for b in found.stitched.boundaries] == [
        (case.name, case.s, case.u, case.span, case.left_out) for case in expected.cases
    ], seed
    assert len(record.chunks) == len(expected.chunks), seed
    for chunk, stream in zip(record.chunks, expected.chunks, strict=True):
        arrays = chunk.arrays()
        assert arrays.ids_N.tolist() == [at.id for at in stream], seed
        assert arrays.mask_N.tolist() == [at.m for at in stream], seed
        assert arrays.logprobs_N.tolist() == [at.q for at in stream], seed
        rows = [row(made, at.row, by_ids=by_ids) for at in stream[:-1] if at.row is not None]
        assert arrays.routing_RLK.tolist() == rows, seed
    positions = [at for stream in expected.chunks for at in stream]
    retokenized = [n for n, case in enumerate(expected.cases) if case.name == "RETOKENIZED"]
    assert shares == Shares(
        sampled=sum(at.m for at in positions),
        ids=len(positions),
        retokenized=sum(len(made.calls[n].answer) for n in retokenized),
        altered=expected.altered,
        placeholders=sum(at.copied for at in positions),
        left_out=sum(case.left_out for case in expected.cases),
    ), seed
    counts.update(case.name for case in expected.cases)
    counts.update({"left out": shares.left_out, "copied": shares.placeholders, "altered": shares.altered > 0})


def test_stitcher_and_oracle_agree_on_some_hundred_conversations():
    counts: Counter[str] = Counter()
    for seed in range(400):
        compare(seed, counts)
    assert min(counts[case] for case in ("STRICT", "NORMALIZED", "RETOKENIZED", "SPLIT")) >= 20, counts


@pytest.mark.slow
def test_stitcher_and_oracle_agree_on_ten_thousand_conversations():
    counts: Counter[str] = Counter()
    for seed in range(1000, 11_000):
        compare(seed, counts)
    assert min(counts[case] for case in ("STRICT", "NORMALIZED", "RETOKENIZED", "SPLIT")) >= 500, counts
    assert min(counts[what] for what in ("left out", "copied", "altered", "no row")) >= 100, counts
