"""Trials of several chunks: what forks have in common is context in all but the first, and every token is trained once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.events import Boundary, VersionSpan
from t1actors.tito import record
from t1actors.tito.audit import AuditError, audit
from t1actors.tito.record import Geometry
from t1actors.tito.stitch import PathTurn, Stitched, StitchError, StitchRule, Turn, stitch_paths, stitch_turns
from t1actors.train.batch import Batch
from t1actors.train.packing import pack
from tests.tito.test_records import rows_for

GEOMETRY = Geometry(layers=2, top_k=2, experts=8)


def turn(context: list[int], sampled: list[int], *, after: Sequence[Turn] = (), version: str = "v0") -> Turn:
    """What a call added to the path ``after``."""
    before = sum(len(t.context_ids) + len(t.sampled_ids) for t in after)
    last = before + len(context) + len(sampled) - 1
    return Turn(
        context_ids=context,
        sampled_ids=sampled,
        logprobs=[-token / 64 for token in sampled],
        routing_RLK=rows_for(max(before - 1, 0), last, GEOMETRY),
        versions=(VersionSpan(version=version, start=0, end=len(sampled)),),
    )


FIRST = turn([1, 2], [3, 4])
LEFT = turn([5], [6], after=[FIRST])
RIGHT = turn([7, 8], [9, 10], after=[FIRST])
FORK = [[PathTurn(turn=FIRST), PathTurn(turn=LEFT)], [PathTurn(turn=FIRST, trained=False), PathTurn(turn=RIGHT)]]


def stitched(paths: Sequence[Sequence[PathTurn]], *, rule: StitchRule = "strict") -> Stitched:
    return stitch_paths(paths, trial="s0.t3", index=3, task="demo", temperature=1.0, geometry=GEOMETRY, rule=rule)


def test_what_a_fork_has_in_common_is_trained_by_its_first_chunk_and_context_in_the_others():
    found = stitched(FORK)
    one, two = (chunk.arrays() for chunk in found.record.chunks)
    assert one.ids_N.tolist() == [1, 2, 3, 4, 5, 6]
    assert one.mask_N.tolist() == [0, 0, 1, 1, 0, 1]
    assert two.ids_N.tolist() == [1, 2, 3, 4, 7, 8, 9, 10]
    assert two.mask_N.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert two.logprobs_N.tolist() == [0, 0, 0, 0, 0, 0, -9 / 64, -10 / 64]
    assert found.record.chunks[1].turns == ((6, 8),)
    assert [span.start for span in found.record.chunks[1].versions] == [6]
    assert (found.ids, found.sampled, found.drift_in_loss) == (14, 5, 0)


def test_a_chunk_has_the_rows_of_its_whole_path():
    for chunk in stitched(FORK).record.chunks:
        arrays = chunk.arrays()
        assert np.array_equal(arrays.routing_RLK, rows_for(0, len(arrays.ids_N) - 1, GEOMETRY))


def test_a_later_chunk_splits_off_with_its_first_trained_turn():
    assert stitched(FORK).boundaries == (Boundary(turn=1, case="STRICT"), Boundary(turn=2, case="SPLIT"))


def test_turns_keep_the_numbers_that_their_boundaries_have():
    third = turn([11], [12], after=[FIRST, LEFT])
    left = [*FORK[0], PathTurn(turn=third, boundary=Boundary(turn=3, case="STRICT"))]
    right = [FORK[1][0], PathTurn(turn=RIGHT, boundary=Boundary(turn=2, case="SPLIT"))]
    found = stitched([left, right])
    assert [(b.turn, b.case) for b in found.boundaries] == [(1, "STRICT"), (2, "SPLIT"), (3, "STRICT")]
    with pytest.raises(StitchError, match="path 1: a second turn 3"):
        stitched([left, [FORK[1][0], PathTurn(turn=RIGHT)]])


def test_one_path_is_what_its_turns_are():
    path = FORK[0]
    alone = stitch_turns(
        [step.turn for step in path], trial="s0.t3", index=3, task="demo", temperature=1.0, geometry=GEOMETRY
    )
    assert stitched([path]) == alone


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "no turns"),
        ([FORK[0], []], "path 1: has no turns"),
        ([FORK[0], [FORK[0][0], FORK[1][1]]], "path 1, turn 0: it is trained a second time"),
        ([FORK[1]], "path 0, turn 0: it is on no earlier path, and not trained"),
        ([FORK[0], [FORK[1][0]]], "path 1: ends with a turn that it does not train"),
        (
            [[FORK[0][0], PathTurn(turn=LEFT, boundary=Boundary(turn=1, case="SPLIT"))]],
            "turn 1: SPLIT inside a path",
        ),
        ([[PathTurn(turn=FIRST), PathTurn(turn=turn([5], [6]))]], "turn 1: routing is"),
        ([[PathTurn(turn=turn([], [6, 7]))]], "turn 0: 0 context ids and 2 sampled"),
    ],
)
def test_paths_that_do_not_train_every_turn_exactly_once_are_refused(paths, message):
    with pytest.raises(StitchError, match=message):
        stitched(paths)


def test_a_repaired_boundary_needs_the_rule_that_allows_it():
    path = [FORK[0][0], PathTurn(turn=LEFT, boundary=Boundary(turn=1, case="NORMALIZED", u=1))]
    with pytest.raises(StitchError, match="turn 1: a boundary of case NORMALIZED; only STRICT and SPLIT are allowed"):
        stitched([path])
    assert [b.case for b in stitched([path], rule="t1").boundaries] == ["NORMALIZED"]


def test_the_audit_counts_what_is_trained_and_reads_every_row():
    made = stitched(FORK).record
    with pytest.raises(AuditError, match="chunk 0, turn 0: trained 2 times"):
        audit(trained_everywhere(made), [[PathTurn(turn=step.turn) for step in path] for path in FORK])
    with pytest.raises(AuditError, match="chunk 1, turn 0, token 2: the record has m 1, the turn has 0"):
        audit(trained_everywhere(made), FORK)
    routing = made.chunks[1].arrays().routing_RLK.copy()
    routing[4] = routing[3]
    edited = msgspec.structs.replace(made.chunks[1], routing=routing.tobytes())
    with pytest.raises(AuditError, match="chunk 1, turn 1, routing row 4"):
        audit(msgspec.structs.replace(made, chunks=(made.chunks[0], edited)), FORK)
    with pytest.raises(AuditError, match="1 chunks recorded of 2 paths"):
        audit(msgspec.structs.replace(made, chunks=made.chunks[:1]), FORK)


def trained_everywhere(made: record.TrajectoryRecord) -> record.TrajectoryRecord:
    """As if the second chunk trained what it has in common with the first."""
    chunk = made.chunks[1]
    mask, logprobs = chunk.arrays().mask_N.copy(), chunk.arrays().logprobs_N.copy()
    mask[2:4] = 1
    logprobs[2:4] = [-3 / 64, -4 / 64]
    edited = msgspec.structs.replace(chunk, mask=mask.tobytes(), logprobs=logprobs.tobytes())
    return msgspec.structs.replace(made, chunks=(made.chunks[0], edited))


def test_every_chunk_of_a_fork_gets_the_trials_reward_and_each_sampled_token_is_in_the_batch_once():
    batch = Batch.of([(stitched(FORK).record, 0.75)], GEOMETRY)
    assert batch.chunk_rewards == [0.75, 0.75]
    assert batch.chunk_sampled == [3, 2]
    assert (batch.sampler_logprobs_T * -64).tolist() == [3, 4, 6, 9, 10]
    assert [batch.place_of_token(n).chunk for n in range(5)] == [0, 0, 0, 1, 1]
    packed = pack(batch, [0])
    assert packed.targets_n.tolist() == [3, 4, 6, 9, 10]
    assert packed.lengths == (5, 7)
    assert packed.rows_n.tolist() == [1, 2, 4, 5 + 5, 5 + 6]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_chunks_of_any_tree_of_turns_equal_a_walk_over_its_branches(data):
    parents = [
        data.draw(st.integers(-1 if n == 0 else 0, n - 1), label=f"parent of {n}")
        for n in range(data.draw(st.integers(1, 7)))
    ]
    branch: list[list[int]] = []  # of each turn, the turns from the root down to it
    turns: list[Turn] = []
    for n, parent in enumerate(parents):
        above = branch[parent] if n else []
        context = [100 * n + j for j in range(data.draw(st.integers(0 if n else 1, 3), label="context"))]
        sampled = [100 * n + 50 + j for j in range(data.draw(st.integers(1, 3), label="sampled"))]
        if not n:
            context.append(99)
        turns.append(turn(context, sampled, after=[turns[k] for k in above], version=f"v{n}"))
        branch.append([*above, n])
    leaves = [n for n in range(len(turns)) if n not in parents]
    seen: set[int] = set()
    paths: list[list[PathTurn]] = []
    for leaf in leaves:
        boundary = {n: Boundary(turn=n, case="STRICT") for n in branch[leaf]}
        paths.append([PathTurn(turn=turns[n], trained=n not in seen, boundary=boundary[n]) for n in branch[leaf]])
        seen.update(branch[leaf])
    found = stitched(paths)
    trained: list[int] = []
    for leaf, path, chunk in zip(leaves, paths, found.record.chunks, strict=True):
        arrays = chunk.arrays()
        walk = [
            (token, int(sampled and step.trained), -token / 64 if sampled and step.trained else 0.0)
            for step in path
            for tokens, sampled in ((step.turn.context_ids, False), (step.turn.sampled_ids, True))
            for token in tokens
        ]
        assert list(zip(*(a.tolist() for a in (arrays.ids_N, arrays.mask_N, arrays.logprobs_N)), strict=True)) == walk
        assert np.array_equal(arrays.routing_RLK, rows_for(0, len(walk) - 1, GEOMETRY)), leaf
        trained += [token for token, m, _ in walk if m]
    assert sorted(trained) == sorted(token for t in turns for token in t.sampled_ids)
    assert [b.turn for b in found.boundaries] == list(range(1, len(turns)))
    assert sum(b.case == "SPLIT" for b in found.boundaries) == len(leaves) - 1
