"""Turns to records: the four streams move together, and nothing malformed gets through (faults T2, T3, T7, R1, R3, R9)."""

from __future__ import annotations

from collections.abc import Sequence

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.events import TurnSampled, VersionSpan
from t1actors.payloads import digest_of, pack_array, unpack_array
from t1actors.tito import audit, record
from t1actors.tito.record import Geometry, RecordError, TokenSpan, TrajectoryRecord
from t1actors.tito.stitch import PathTurn, Stitched, StitchError, Turn, stitch
from t1actors.tito.stored import decode, digest, load, store

GEOMETRY = Geometry(layers=2, top_k=2, experts=8)


class DictBlobs:
    def __init__(self):
        self.stored: dict[str, bytes] = {}

    def put(self, data, *, volatile=False):
        self.stored[digest_of(data)] = bytes(data)
        return digest_of(data)

    def put_many(self, blobs):
        return [self.put(data) for data in blobs]

    def flush(self):
        pass

    def get(self, digest):
        return memoryview(self.stored[digest])

    def has(self, digest):
        return digest in self.stored

    def delete(self, digest):
        del self.stored[digest]


BLOBS = DictBlobs()


def rows_for(first_row: int, last_row: int, geometry: Geometry = GEOMETRY) -> np.ndarray:
    """Distinct experts that are a function of (row, layer): a shifted row differs from the right one."""
    r = np.arange(first_row, last_row)[:, None]
    layer = np.arange(geometry.layers)[None]
    first = (r * 3 + layer * 5 + r // 7) % geometry.experts
    step = 1 + (r + layer) % (geometry.experts - 1)
    return np.stack([first, (first + step) % geometry.experts], axis=-1).astype(geometry.dtype)


def turns_of(
    shape: Sequence[tuple[int, int]],
    *,
    geometry: Geometry = GEOMETRY,
    ids: Sequence[int] | None = None,
    versions: Sequence[tuple[VersionSpan, ...]] | None = None,
) -> list[TurnSampled]:
    """A trial whose turns have the given (context, sampled) lengths."""
    total = sum(c + s for c, s in shape)
    stream = list(ids) if ids is not None else [(j * 37 + 11) % 448 for j in range(total)]
    turns: list[TurnSampled] = []
    at, rows = 0, 0
    for number, (context, sampled) in enumerate(shape):
        middle, end = at + context, at + context + sampled
        turns.append(
            TurnSampled(
                trial="s0.t3",
                turn=number,
                context_ids=tuple(stream[at:middle]),
                sampled_ids=tuple(stream[middle:end]),
                logprobs=tuple(float(np.float32(-0.01 * (j + 1))) for j in range(middle, end)),
                routing=pack_array(BLOBS, rows_for(rows, end - 1, geometry)),
                versions=versions[number] if versions else (VersionSpan(version="v0", start=0, end=sampled),),
                temperature=1.0,
                finish="stop",
                command="",
                execute=True,
                canonical=True,
            )
        )
        at, rows = end, end - 1
    return turns


def stitched(turns: Sequence[TurnSampled], geometry: Geometry = GEOMETRY) -> Stitched:
    return stitch(turns, index=3, task="demo-1", geometry=geometry, blobs=BLOBS)


def on_one_path(turns: Sequence[TurnSampled]) -> list[list[PathTurn]]:
    """As the audit reads them."""
    plain = (
        Turn(
            context_ids=turn.context_ids,
            sampled_ids=turn.sampled_ids,
            logprobs=turn.logprobs,
            routing_RLK=unpack_array(BLOBS, turn.routing),
            versions=turn.versions,
        )
        for turn in turns
    )
    return [[PathTurn(turn=turn) for turn in plain]]


def changed(value: TrajectoryRecord, **fields) -> TrajectoryRecord:
    return msgspec.structs.replace(value, chunks=(msgspec.structs.replace(value.chunks[0], **fields),))


def test_a_two_turn_merge_masks_context_and_has_no_log_prob_there():
    arrays = stitched(turns_of([(3, 2), (2, 2)])).record.chunks[0].arrays()
    assert arrays.mask_N.tolist() == [0, 0, 0, 1, 1, 0, 0, 1, 1]
    assert (arrays.logprobs_N[arrays.mask_N == 0] == 0).all()
    assert (arrays.logprobs_N[arrays.mask_N == 1] < 0).all()


def test_the_row_of_a_turns_last_token_is_the_next_calls_record():
    first, second = turns_of([(3, 2), (2, 2)])
    routing = stitched([first, second]).record.chunks[0].arrays().routing_RLK
    assert routing.shape == (8, 2, 2)
    assert routing[4].tolist() == rows_for(4, 8)[0].tolist()  # row of the last token of turn 1, from turn 2's own rows
    assert routing[4].tolist() != routing[3].tolist()


def test_a_non_canonical_split_stays_as_it_was_sampled():
    split = [1, 70, 4, 2, 301, 302, 4, 3, 71, 4, 2, 300, 4]  # "he" + "llo" as 301, 302 though 300 is "hello"
    turns = turns_of([(4, 3), (4, 2)], ids=split)
    turns[0] = msgspec.structs.replace(turns[0], canonical=False)
    result = stitched(turns)
    assert result.record.chunks[0].arrays().ids_N.tolist() == split
    assert (result.non_canonical_turns, result.drift_in_loss) == (1, 0)


def test_a_truncated_turn_ends_the_stream_at_its_last_sampled_token_without_an_invented_end():
    turns = turns_of([(3, 4)])
    cut = msgspec.structs.replace(turns[0], finish="length")
    arrays = stitched([cut]).record.chunks[0].arrays()
    assert arrays.ids_N.tolist() == [*cut.context_ids, *cut.sampled_ids]
    assert arrays.mask_N.tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_every_token_knows_its_version_when_a_turn_spans_two():
    spans = (VersionSpan(version="v0", start=0, end=3), VersionSpan(version="v1", start=3, end=5))
    chunk = stitched(turns_of([(3, 5)], versions=[spans])).record.chunks[0]
    assert chunk.versions == (TokenSpan(version="v0", start=3, end=6), TokenSpan(version="v1", start=6, end=8))


def test_expert_300_survives_a_round_trip():
    wide = Geometry(layers=1, top_k=2, experts=512)
    turns = turns_of([(2, 2)], geometry=wide)
    routing = np.array([[[300, 1]], [[2, 300]], [[511, 0]]], dtype=np.uint16)
    turns[0] = msgspec.structs.replace(turns[0], routing=pack_array(BLOBS, routing))
    back = load(BLOBS, store(stitched(turns, wide).record, BLOBS).record)
    record.check(back, wide)
    assert back.chunks[0].arrays().routing_RLK.tolist() == routing.tolist()


def test_an_expert_named_twice_in_a_row_is_refused():
    turns = turns_of([(2, 2)])
    routing = rows_for(0, 3).copy()
    routing[1, 1] = [3, 3]
    turns[0] = msgspec.structs.replace(turns[0], routing=pack_array(BLOBS, routing))
    with pytest.raises(RecordError, match="row 1 names an expert twice"):
        stitched(turns)


def test_an_expert_outside_the_model_is_refused_not_cut_to_a_byte():
    turns = turns_of([(2, 2)])
    routing = rows_for(0, 3).astype(np.uint16)
    routing[2, 0, 0] = 256 + 3  # would be expert 3 after a careless cast
    turns[0] = msgspec.structs.replace(turns[0], routing=pack_array(BLOBS, routing))
    with pytest.raises(RecordError, match=r"outside \[0, 8\)"):
        stitched(turns)


def test_routing_of_another_width_than_configured_is_refused_even_when_its_size_fits():
    turns = turns_of([(3, 4)])
    eight_of_one = rows_for(0, 6).reshape(6, 4, 1)
    turns[0] = msgspec.structs.replace(turns[0], routing=pack_array(BLOBS, eight_of_one))
    with pytest.raises(StitchError, match=r"turn 0: routing is \[6, 4, 1\]"):
        stitched(turns)


def test_a_missing_row_aborts_the_trial_instead_of_becoming_zeros():
    turns = turns_of([(3, 2), (2, 2)])
    turns[1] = msgspec.structs.replace(turns[1], routing=pack_array(BLOBS, rows_for(5, 8)))
    with pytest.raises(StitchError, match="turn 1: routing is"):
        stitched(turns)


def test_a_record_whose_routing_bytes_are_short_is_refused():
    good = stitched(turns_of([(3, 2)])).record
    with pytest.raises(RecordError, match=r"chunk 0: routing has 15 bytes where uint8\[4, 2, 2\] takes 16"):
        record.check(changed(good, routing=good.chunks[0].routing[:-1]), GEOMETRY)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask": bytes([0, 0, 0, 1, 0, 0, 0, 1, 1])}, "mask differs from the turns at token 4"),
        ({"turns": ((3, 5),)}, "ends at token 9, but its last trained token is 4"),
        ({"turns": ((0, 5), (7, 9))}, "empty, out of order"),
        ({"versions": (TokenSpan(version="v0", start=3, end=5),)}, "version spans do not cover"),
        ({"logprobs": np.full(9, -1, "<f4").tobytes()}, "token 0 is context"),
        ({"logprobs": np.array([0, 0, 0, -1, np.nan, 0, 0, -1, -1], "<f4").tobytes()}, "token 4 is not finite"),
        ({"ids": np.arange(8, dtype="<i4").tobytes()}, "streams disagree"),
        ({"routing_dtype": "int64"}, "only uint8 and uint16"),
    ],
)
def test_a_record_that_breaks_a_guarantee_is_refused_by_name(fields, message):
    good = stitched(turns_of([(3, 2), (2, 2)])).record
    with pytest.raises(RecordError, match=message):
        record.check(changed(good, **fields), GEOMETRY)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("turn", 2, "found turn 2"),
        ("trial", "s0.t4", "of trial s0.t4"),
        ("logprobs", (-0.5,), "1 log-probs for 2 sampled"),
        ("sampled_ids", (), "both are needed"),
        ("temperature", 0.5, "began at 1.0"),
    ],
)
def test_turns_that_do_not_join_name_the_turn(field, value, message):
    first, second = turns_of([(3, 2), (2, 2)])
    with pytest.raises(StitchError, match=message):
        stitched([first, msgspec.structs.replace(second, **{field: value})])


def test_the_audit_finds_one_changed_id_in_the_loss_region():
    turns = turns_of([(3, 2), (2, 2)])
    good = stitched(turns).record
    ids = good.chunks[0].arrays().ids_N.copy()
    ids[7] += 1
    with pytest.raises(audit.AuditError, match="turn 1, token 7"):
        audit.audit(changed(good, ids=ids.astype("<i4").tobytes()), on_one_path(turns))


def test_the_audit_finds_log_probs_that_slid_by_one():
    turns = turns_of([(3, 3)])
    good = stitched(turns).record
    q = good.chunks[0].arrays().logprobs_N.copy()
    q[3:] = np.roll(q[3:], 1)
    with pytest.raises(audit.AuditError, match="token 3"):
        audit.audit(changed(good, logprobs=q.astype("<f4").tobytes()), on_one_path(turns))


def test_records_are_plain_messagepack_and_their_digest_is_of_the_bytes():
    good = stitched(turns_of([(3, 2)])).record
    kept = store(good, BLOBS).record
    plain = msgpack.unpackb(kept.inline)
    assert (plain["trial"], plain["index"], plain["kind"]) == ("s0.t3", 3, "TrajectoryRecord")
    assert digest(load(BLOBS, kept)) == digest_of(kept.inline) == kept.digest


def test_a_damaged_record_says_so():
    with pytest.raises(RecordError, match="not a trajectory record"):
        decode(b"\x81\xa1x", BLOBS)


def test_geometry_counts_only_mixture_of_experts_layers():
    config = '{"num_hidden_layers": 4, "num_experts": 512, "num_experts_per_tok": 8, "mlp_only_layers": [0]}'
    assert Geometry.of_model_config(config) == Geometry(layers=3, top_k=8, experts=512)
    assert Geometry.of_model_config(config).dtype == "uint16"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6))
def test_the_streams_of_any_trial_equal_a_walk_over_its_turns(shape):
    turns = turns_of(shape)
    result = stitched(turns)
    arrays = result.record.chunks[0].arrays()
    total = sum(c + s for c, s in shape)
    assert (result.ids, result.sampled) == (total, sum(s for _, s in shape))
    assert len(arrays.routing_RLK) == total - 1
    assert np.array_equal(arrays.routing_RLK, rows_for(0, total - 1))
    assert arrays.ids_N.tolist() == [t for turn in turns for t in (*turn.context_ids, *turn.sampled_ids)]
    assert arrays.mask_N.tolist() == [m for c, s in shape for m in [0] * c + [1] * s]
    assert [b.case for b in result.boundaries] == ["STRICT"] * (len(shape) - 1)
    assert load(BLOBS, store(result.record, BLOBS).record) == result.record
