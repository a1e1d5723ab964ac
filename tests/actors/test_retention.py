"""Which states and weights the trainers keep, and that what is noted of them does not grow with the run."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t1actors.actors.training import KEPT_LATEST, SWEEPS, Retention, Written
from t1actors.events import Payload
from t1actors.log.blobs import MemoryBlobs
from t1actors.payloads import digest_of, payload_of

BYTES = {digest_of(data): data for data in (str(number).encode() for number in range(1000))}
DIGESTS = list(BYTES)


class Blobs(MemoryBlobs):
    """Counts what it is asked."""

    looks = 0

    def has(self, digest: str) -> bool:
        self.looks += 1
        return super().has(digest)

    def hold(self, one: Written) -> None:
        for wanted in one.payloads():
            self.put(BYTES[wanted.digest])


def payload(number: int) -> Payload:
    return Payload(digest=DIGESTS[number], size_bytes=len(BYTES[DIGESTS[number]]))


def those_to_keep(written: list[Written]) -> set[str]:
    """The rule, said of everything that was ever written."""
    kept: set[str] = set()
    for n, one in enumerate(written):
        if one.snapshot or n >= len(written) - KEPT_LATEST:
            kept |= {p.digest for p in one.payloads()}
        elif written[n + 1].snapshot and one.weights is not None:
            kept.add(one.weights.digest)
    return kept


def again(retention: Retention) -> Retention:
    """As a snapshot holds it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(retention), type=Retention)


numbers = st.integers(0, 7)  # few: an update may leave the weights as they were, at any distance
steps = st.lists(
    st.builds(
        Written, numbers.map(payload), st.one_of(st.none(), numbers.map(lambda n: payload(100 + n))), st.booleans()
    ),
    max_size=25,
)


@given(steps)
def test_after_every_sweep_exactly_that_is_there_which_the_rule_names(history: list[Written]):
    blobs, retention = Blobs(), Retention()
    for n, one in enumerate(history):
        retention.sweep(blobs)
        assert set(blobs.digests()) == those_to_keep(history[:n])
        blobs.hold(one)
        retention.add(one.state, one.weights, snapshot=one.snapshot)
        retention = again(retention)


def swept(count: int, *, every: int) -> tuple[Retention, Blobs]:
    """After ``count`` steps, each swept before it was noted."""
    blobs, retention = Blobs(), Retention()
    for n in range(count):
        retention.sweep(blobs)
        one = Written(payload(2 * n), payload(2 * n + 1), n % every == 0)
        blobs.hold(one)
        retention.add(one.state, one.weights, snapshot=one.snapshot)
    return retention, blobs


@pytest.mark.parametrize("count", [20, 200])
def test_however_long_the_run_a_sweep_looks_at_the_last_few_steps_only(count: int):
    retention, blobs = swept(count, every=100)
    assert len(retention.written) == KEPT_LATEST + SWEEPS
    before = blobs.looks
    retention.sweep(blobs)
    assert blobs.looks - before <= 2 * SWEEPS


def test_what_is_noted_for_ever_is_what_stays_for_ever():
    retention, blobs = swept(40, every=10)
    wanted = {payload(n).digest for step in (0, 10, 20, 30) for n in (2 * step - 1, 2 * step, 2 * step + 1) if n >= 0}
    assert retention.stays == wanted
    assert retention.stays <= set(blobs.digests())


def test_what_a_lost_machine_brought_back_is_deleted_again():
    retention, blobs = swept(12, every=100)
    retention.sweep(blobs)
    one = retention.written[1]
    assert not any(blobs.has(p.digest) for p in one.payloads())
    retention.add(payload(500), payload(501), snapshot=False)
    blobs.hold(one)
    retention.sweep(blobs)
    assert not any(blobs.has(p.digest) for p in one.payloads())


@given(steps)
def test_a_state_that_noted_every_step_comes_to_the_same_at_the_next_one(history: list[Written]):
    """As versions before this one kept it."""
    folded = Retention()
    for one in history:
        folded.add(one.state, one.weights, snapshot=one.snapshot)
    old = msgspec.msgpack.decode(msgspec.msgpack.encode({"written": history}), type=Retention)
    for retention in (folded, old):
        retention.add(payload(500), snapshot=False)
    assert old == folded


def test_what_rides_in_its_event_is_no_blob():
    retention, small = Retention(), payload_of(b"small")
    for _ in range(6):
        retention.add(small, small, snapshot=True)
    assert retention.stays == set()
    retention.sweep(Blobs())
