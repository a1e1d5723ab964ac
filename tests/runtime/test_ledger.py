"""The ledger: what was applied in which order can be read from the frames again, however it was cut."""

from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.log.frame import HEADER_BYTES, CommitHead, encode_frame
from t1actors.log.interface import MAX_FRAME_BYTES
from t1actors.runtime.ledger import MAX_IDLE_INPUTS, MAX_RUNS, Ledger

# A step is (journal or None for an own result, sizes of emitted events, whether the committer takes a frame afterwards).
steps = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None]),
        st.lists(st.sampled_from([3, 50, 60_000, 200_000]), max_size=2),
        st.booleans(),
    ),
    max_size=40,
)


def event(number, size):
    """A MessagePack value of ``size`` bytes that begins with ``number``."""
    return b"\xc6" + (size - 5).to_bytes(4, "big") + number.to_bytes(4, "big")[-(size - 5) :].ljust(size - 5, b".")


@settings(max_examples=150, deadline=None)
@given(steps)
def test_frames_tell_the_order_of_inputs_and_outputs(steps):
    ledger = Ledger("me", next_sequence=0, vector={})
    positions = dict.fromkeys("abc", 0)
    happened, batches, count = [], [], 0
    for source, sizes, takes in steps:
        sizes = [max(size, 9) for size in sizes]
        emitted = [event(count + i, size) for i, size in enumerate(sizes)]
        if source is None:
            result = event(1_000_000 + count, 9)
            ledger.room_for(len(result) + sum(sizes))
            assert ledger.next_sequence == count
            ledger.own([result], emitted)
            happened += [result, *emitted]
            count += 1 + len(sizes)
        else:
            happened += [(source, positions[source]), *emitted]
            if emitted:
                ledger.room_for(sum(sizes))
                ledger.emitted(source, positions[source], emitted)
            else:
                ledger.consumed(source, positions[source])
            positions[source] += 1
            count += len(sizes)
        if takes and (batch := ledger.take()):
            batches.append(batch)
    while batch := ledger.take(all_of_it=True):
        batches.append(batch)

    told = []
    sequence = 0
    for batch in batches:
        assert batch.base_sequence == sequence
        head = CommitHead(inputs=batch.inputs(), vector=dict(batch.vector))
        data = encode_frame(head, batch.events, base_sequence=sequence, epoch=1)
        assert len(data) <= MAX_FRAME_BYTES
        assert len(data) > HEADER_BYTES
        own = iter(batch.events)
        for run in batch.inputs():
            for number in range(run.first, run.last + 1):
                told.append(next(own) if run.journal == "me" else (run.journal, number))
            told += [next(own) for _ in range(run.emitted)]
        assert next(own, None) is None
        sequence += len(batch.events)
    assert told == happened
    for journal, position in positions.items():
        assert batches[-1].vector.get(journal, -1) == position - 1 if batches else position == 0


def test_inputs_from_one_journal_are_one_run_until_something_is_emitted():
    ledger = Ledger("me", next_sequence=0, vector={})
    for sequence in range(10):
        if sequence == 4:
            ledger.emitted("a", sequence, [b"\x01"])
        else:
            ledger.consumed("a", sequence)
    batch = ledger.take()
    assert [(run.first, run.last, run.emitted) for run in batch.inputs()] == [(0, 4, 1), (5, 9, 0)]


def test_idle_inputs_are_kept_back_but_not_for_ever():
    ledger = Ledger("me", next_sequence=0, vector={})
    for sequence in range(MAX_IDLE_INPUTS - 1):
        ledger.consumed("a", sequence)
    assert not ledger.due
    assert ledger.take() is None
    ledger.consumed("a", MAX_IDLE_INPUTS - 1)
    assert ledger.due
    assert ledger.take().inputs()[0].last == MAX_IDLE_INPUTS - 1
    for sequence in range(MAX_RUNS + 1):
        ledger.consumed("ab"[sequence % 2], MAX_IDLE_INPUTS + sequence)
    assert len(ledger.take().inputs()) == MAX_RUNS
