"""Whole prompts joined into a stream: T1's four cases, by their smallest inputs (faults T4 to T9)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from t1actors.events import Boundary, VersionSpan
from t1actors.tito.audit import AuditError
from t1actors.tito.boundary import Edges
from t1actors.tito.foreign import Foreign, ForeignCall, stitch_foreign
from t1actors.tito.foreign_audit import audit_boundaries
from t1actors.tito.record import Geometry, RecordError
from t1actors.tito.stitch import StitchError, StitchRule

GEOMETRY = Geometry(layers=1, top_k=2, experts=1 << 16)
END, END2 = 90, 91
HALF, OTHER_HALF = 51, 52
"""Bytes that are no text."""
WORDS = {0: "hello", 1: "he", 2: "llo", 50: "\n", HALF: "\ufffd", OTHER_HALF: "\ufffd"}


class Letters:
    """Every id is a word of its own, but for a few."""

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(WORDS.get(token, f"<{token}>") for token in ids)


EDGES = Edges(text=Letters(), stop_ids=(END, END2))


def rows(call: int, first: int, last: int) -> np.ndarray:
    """Rows that name the call and the position that they are from."""
    names = 1000 * call + np.arange(first, last)
    return np.stack([2 * names, 2 * names + 1], axis=-1)[:, None]


def calls_of(*pairs: tuple[list[int], list[int]], known_rows: Sequence[int] = ()) -> list[ForeignCall]:
    known = [*known_rows, *[0] * (len(pairs) - len(known_rows))]
    return [
        ForeignCall(
            prompt_ids=prompt,
            sampled_ids=answer,
            logprobs=[-(number + 1) / 8] * len(answer),
            routing_RLK=rows(number, known[number], len(prompt) + len(answer) - 1),
            versions=(VersionSpan(version="v", start=0, end=len(answer)),),
            known_rows=known[number],
        )
        for number, (prompt, answer) in enumerate(pairs)
    ]


def stitched(calls: Sequence[ForeignCall], *, rule: StitchRule = "t1", edges: Edges = EDGES) -> Foreign:
    return stitch_foreign(
        calls, edges=edges, rule=rule, trial="t", index=0, task="", temperature=1.0, geometry=GEOMETRY
    )


def streams(found: Foreign) -> list[tuple[list[int], list[int]]]:
    """Ids and mask of each chunk."""
    arrays = [chunk.arrays() for chunk in found.stitched.record.chunks]
    return [(a.ids_N.tolist(), a.mask_N.tolist()) for a in arrays]


def origins(found: Foreign, chunk: int = 0) -> list[tuple[int, int]]:
    """(call, position) of each routing row."""
    names = found.stitched.record.chunks[chunk].arrays().routing_RLK[:, 0, 0] // 2
    return [divmod(int(name), 1000) for name in names]


def response_lengths(found: Foreign) -> list[int]:
    return [end - start for chunk in found.stitched.record.chunks for start, end in chunk.turns]


def test_whole_prompts_that_append_are_strict_and_each_row_is_from_the_first_call_that_ran_it():
    found = stitched(calls_of(([10, 11], [1, END]), ([10, 11, 1, END, 12], [2, END])))
    assert streams(found) == [([10, 11, 1, END, 12, 2, END], [0, 0, 1, 1, 0, 1, 1])]
    assert found.stitched.boundaries == (Boundary(turn=1, case="STRICT"),)
    assert origins(found) == [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5)]
    assert (found.shares.altered, found.shares.placeholders, found.shares.retokenized) == (0, 0, 0)


def test_a_prompt_may_add_nothing_to_an_answer_that_was_cut_off():
    found = stitched(calls_of(([10], [1, 2]), ([10, 1, 2], [0, END])))
    assert streams(found) == [([10, 1, 2, 0, END], [0, 1, 1, 1, 1])]
    assert origins(found) == [(0, 0), (0, 1), (1, 2), (1, 3)]


# --- T5 ------------------------------------------------------------------------------------------------------------------


def test_a_role_mark_that_ends_a_turn_is_not_counted_twice():
    mark = 92
    calls = calls_of(
        ([1, 2, 3], [10, mark]), ([1, 2, 3, 10, 4, 5, 6], [20, mark]), ([1, 2, 3, 10, 4, 5, 6, 20, 7, 8, 9], [30, mark])
    )
    found = stitched(calls, edges=Edges(text=Letters(), stop_ids=(mark,), markers=(mark,)))
    assert response_lengths(found) == [1, 1, 2]
    ((ids, mask),) = streams(found)
    assert ids == [1, 2, 3, 10, 4, 5, 6, 20, 7, 8, 9, 30, mark]
    assert mask == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 1]
    assert [(b.case, b.u, b.left_out) for b in found.stitched.boundaries] == [("NORMALIZED", 1, 1)] * 2
    # The stream is what the model was shown, so nothing is altered and no row is made up.
    assert (found.shares.altered, found.shares.placeholders, found.shares.left_out) == (0, 0, 2)
    assert origins(found) == [(0, 0), (0, 1), (0, 2), *((1, j) for j in range(3, 7)), *((2, j) for j in range(7, 12))]


def test_a_role_mark_that_the_next_prompt_goes_on_with_stays_as_it_was_sampled():
    mark = 92
    calls = calls_of(([1, 2], [10, mark]), ([1, 2, 10, mark, 5], [20, mark]))
    found = stitched(calls, edges=Edges(text=Letters(), stop_ids=(mark,), markers=(mark,)))
    assert streams(found) == [([1, 2, 10, mark, 5, 20, mark], [0, 0, 1, 1, 0, 1, 1])]


# --- T6 ------------------------------------------------------------------------------------------------------------------


def test_another_end_in_the_history_is_a_repair_of_one_token_that_is_reported():
    found = stitched(calls_of(([10, 11], [1, END2]), ([10, 11, 1, END, 12], [2, END])))
    assert found.stitched.boundaries == (Boundary(turn=1, case="NORMALIZED", s=0, u=1),)
    assert streams(found) == [([10, 11, 1, END2, END, 12, 2, END], [0, 0, 1, 1, 0, 0, 1, 1])]
    # Nobody ran END2. Its row is a copy, and predicts context.
    assert origins(found) == [(0, 0), (0, 1), (0, 2), (0, 2), (1, 3), (1, 4), (1, 5)]
    assert (found.shares.placeholders, found.shares.altered, found.shares.left_out) == (1, 2, 0)


def test_a_row_that_predicts_a_sampled_token_is_never_a_copy():
    with pytest.raises(StitchError, match="turn 1: the row that predicts its first sampled id would be a copy"):
        stitched(calls_of(([10, 11], [1, END2]), ([10, 11, 1], [2, END])))


# --- T4, T8, T9 -----------------------------------------------------------------------------------------------------------


def test_a_think_block_that_the_history_drops_splits_and_nothing_is_there_twice():
    think, end_think = 93, 94
    found = stitched(calls_of(([10, 11], [think, 7, end_think, 1, END]), ([10, 11, 1, END, 12], [2, END])))
    assert found.stitched.boundaries == (Boundary(turn=1, case="SPLIT"),)
    assert [ids for ids, _ in streams(found)] == [[10, 11, think, 7, end_think, 1, END], [10, 11, 1, END, 12, 2, END]]
    assert origins(found, 1) == [(1, j) for j in range(6)]


def test_one_early_id_that_differs_splits_off_what_is_broken_and_no_more():
    first, second = ([1, 2, 3], [4, END]), ([1, 9, 3, 4, END, 5], [6, END])
    third = ([1, 9, 3, 4, END, 5, 6, END, 7], [8, END])
    found = stitched(calls_of(first, second, third))
    assert [b.case for b in found.stitched.boundaries] == ["SPLIT", "STRICT"]
    assert streams(found) == [
        ([1, 2, 3, 4, END], [0, 0, 0, 1, 1]),
        ([1, 9, 3, 4, END, 5, 6, END, 7, 8, END], [0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1]),
    ]
    assert (found.stitched.sampled, found.shares.altered) == (6, 0)


def test_after_another_list_of_tools_no_prefix_is_reused():
    tools, others = [70, 71], [72]
    calls = calls_of(([*tools, 10], [1, END]), ([*others, 10, 1, END, 12], [2, END]))
    found = stitched(calls)
    assert [b.case for b in found.stitched.boundaries] == ["SPLIT"]
    assert origins(found, 1) == [(1, j) for j in range(6)]
    with pytest.raises(
        StitchError, match=r"turn 1: rows \[0, 3\) are said to be known, but no earlier call ran those ids"
    ):
        stitched(calls_of(*[(c.prompt_ids, c.sampled_ids) for c in calls], known_rows=(0, 3)))


def test_prompts_that_begin_alike_do_not_join_without_the_answer():
    found = stitched(calls_of(([10, 11, 12], [1, END]), ([10, 11, 13], [2, END])))
    assert [b.case for b in found.stitched.boundaries] == ["SPLIT"]


# --- repairs --------------------------------------------------------------------------------------------------------------


def test_a_generation_prompt_that_the_history_lacks_is_dropped_from_the_prompts_end():
    found = stitched(calls_of(([10, 11, 50, 93], [1, END]), ([10, 11, 1, END, 12], [2, END])))
    assert found.stitched.boundaries == (Boundary(turn=1, case="NORMALIZED", s=2, u=0),)
    assert streams(found) == [([10, 11, 50, 93, 1, END, 12, 2, END], [0, 0, 0, 0, 1, 1, 0, 1, 1])]
    # END was run by the second call, though elsewhere.
    assert origins(found) == [*((0, j) for j in range(5)), (1, 3), (1, 4), (1, 5)]
    assert (found.shares.placeholders, found.shares.altered) == (0, 2)


def test_of_two_smallest_repairs_the_one_that_drops_less_of_the_prompt_is_taken():
    found = stitched(calls_of(([10, 50], [50, 1, 50]), ([10, 50, 1, 50, 12], [2, END])))
    assert [(b.s, b.u) for b in found.stitched.boundaries] == [(1, 0)]
    found = stitched(calls_of(([10, 50, 50], [50, 50]), ([10, 50, 50, 50, 12], [2, END])))
    assert [(b.s, b.u) for b in found.stitched.boundaries] == [(0, 1)]


def test_an_answer_that_is_nothing_but_a_mark_stays():
    mark = 92
    calls = calls_of(([1, 2], [mark]), ([1, 2, 5], [20, mark]))
    found = stitched(calls, edges=Edges(text=Letters(), stop_ids=(mark,), markers=(mark,)))
    assert streams(found) == [([1, 2, mark, 5, 20, mark], [0, 0, 1, 0, 1, 1])]


@pytest.mark.parametrize(
    ("s", "u", "case"), [(96, 0, "NORMALIZED"), (97, 0, "SPLIT"), (0, 16, "NORMALIZED"), (0, 17, "SPLIT")]
)
def test_repairs_are_bounded(s, u, case):
    found = stitched(calls_of(([10, *[11] * s], [7, *[50] * u]), ([10, 7, 12], [8])))
    assert [(b.case, b.s, b.u) for b in found.stitched.boundaries] == [(case, *((s, u) if case != "SPLIT" else (0, 0)))]


def test_white_space_that_the_history_strips_is_edge_and_a_word_is_not():
    ends = ([10, 11, 1, END, 12], [2, END])
    assert stitched(calls_of(([10, 11], [1, 50, END]), ends)).stitched.boundaries[0].u == 2
    assert stitched(calls_of(([10, 11], [1, 7, END]), ends)).stitched.boundaries[0].case == "SPLIT"


def test_an_answer_that_the_history_cuts_otherwise_stays_as_sampled_and_its_copy_never_enters():
    found = stitched(
        calls_of(([10], [1, 2, END]), ([10, 0, END, 12], [7, END]), ([10, 0, END, 12, 7, END, 13], [8, END]))
    )
    assert found.stitched.boundaries == (
        Boundary(turn=1, case="RETOKENIZED", start=1, end=3),
        Boundary(turn=2, case="STRICT"),
    )
    ((ids, mask),) = streams(found)
    assert ids == [10, 1, 2, END, 12, 7, END, 13, 8, END]
    assert mask == [0, 1, 1, 1, 0, 1, 1, 0, 1, 1]
    # END is the same id at the span's end, so its row is there.
    assert origins(found) == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6), (2, 7)]
    assert (found.shares.retokenized, found.shares.placeholders, found.shares.altered) == (3, 0, 4)
    assert (found.stitched.drift_in_loss, found.stitched.sampled) == (0, 7)


def test_a_retokenised_answer_whose_last_id_nobody_ran_has_a_copied_row_before_context():
    found = stitched(calls_of(([10], [1, 2]), ([10, 0, 12], [7, END])))
    assert origins(found) == [(0, 0), (0, 1), (0, 1), (1, 2), (1, 3)]
    assert found.shares.placeholders == 1


def test_bytes_that_are_no_text_prove_nothing():
    found = stitched(calls_of(([10], [HALF, END]), ([10, OTHER_HALF, END, 12], [7, END])))
    assert [b.case for b in found.stitched.boundaries] == ["SPLIT"]


def test_the_strict_rule_repairs_nothing_and_alters_nothing():
    found = stitched(calls_of(([10, 11], [1, END2]), ([10, 11, 1, END, 12], [2, END])), rule="strict")
    assert [b.case for b in found.stitched.boundaries] == ["SPLIT"]
    assert (found.shares.altered, found.shares.placeholders, found.shares.ids) == (0, 0, 11)


# --- routing and audit ----------------------------------------------------------------------------------------------------


def test_rows_that_a_call_reused_are_those_of_the_call_that_ran_the_same_ids():
    pairs = (([10, 11], [1, END]), ([10, 11, 1, END, 12], [2, END]), ([10, 11, 13], [3, END]))
    found = stitched(calls_of(*pairs, known_rows=(0, 3, 2)))
    assert origins(found) == [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5)]
    assert [b.case for b in found.stitched.boundaries] == ["STRICT", "SPLIT"]
    assert origins(found, 1) == [(0, 0), (0, 1), (2, 2), (2, 3)]


def test_routing_of_another_shape_or_type_is_refused():
    (call,) = calls_of(([10, 11], [1, END]))
    for routing in (call.routing_RLK[:-1], call.routing_RLK.reshape(3, 2, 1), call.routing_RLK.astype(float)):
        odd = ForeignCall(
            prompt_ids=call.prompt_ids,
            sampled_ids=call.sampled_ids,
            logprobs=call.logprobs,
            routing_RLK=routing,
            versions=call.versions,
        )
        with pytest.raises(StitchError, match="turn 0: routing is"):
            stitched([odd])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"case": "STRICT"}, "turn 1: a boundary of case STRICT: its prompt is not made of"),
        ({"case": "NORMALIZED", "u": 1}, r"drops \[90\]|not made of the parts"),
        ({"end": 2}, "turn 1: a boundary of case RETOKENIZED: ids .1, 2. of its prompt are another text"),
        ({"s": 97}, "with s = 97"),
        ({"case": "SPLIT"}, "disagree on where a chunk begins"),
        ({"turn": 2}, "1 boundaries for 2 calls"),
    ],
)
def test_the_audit_refuses_a_boundary_that_is_not_as_it_says(changes, message):
    calls = calls_of(([10], [1, 2, END]), ([10, 0, END, 12], [7, END]))
    found = stitched(calls)
    (boundary,) = found.stitched.boundaries
    with pytest.raises(AuditError, match=message):
        audit_boundaries(found.stitched.record, calls, [msgspec.structs.replace(boundary, **changes)], EDGES)


def test_the_audit_refuses_a_dropped_word_and_a_row_of_another_call():
    calls = calls_of(([10, 11], [1, END2]), ([10, 11, 1, END, 12], [2, END]))
    found = stitched(calls)
    with pytest.raises(AuditError, match=r"drops \[91\] of the answer before, which are more than its edge"):
        audit_boundaries(
            found.stitched.record, calls, found.stitched.boundaries, Edges(text=Letters(), stop_ids=(END,))
        )
    (chunk,) = found.stitched.record.chunks
    routing = chunk.arrays().routing_RLK.copy()
    routing[-1] = routing[-2]
    edited = msgspec.structs.replace(chunk, routing=routing.tobytes())
    with pytest.raises(AuditError, match="turn 1: routing rows before 7 of its chunk are not the call's own"):
        audit_boundaries(
            msgspec.structs.replace(found.stitched.record, chunks=(edited,)), calls, found.stitched.boundaries, EDGES
        )


def test_an_expert_outside_the_model_is_refused():
    (call,) = calls_of(([10, 11], [1, END]))
    with pytest.raises(RecordError, match=r"outside \[0, 4\)"):
        stitch_foreign([call], edges=EDGES, trial="t", index=0, task="", temperature=1.0, geometry=Geometry(1, 2, 4))
