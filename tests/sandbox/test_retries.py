"""Faults of the infrastructure are tried again, within a bound, each time for a token; the trial's and the task's never."""

import anyio
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from t1actors.events import Isolation
from t1actors.sandbox.admission import Admission, TokenBucket
from t1actors.sandbox.errors import (
    ArchiveError,
    SandboxDied,
    SandboxError,
    SandboxGone,
    SandboxRefused,
    SandboxUnavailable,
)
from t1actors.sandbox.interface import Created, Leftover, SandboxSpec
from t1actors.sandbox.pool import PoolMetrics, SandboxPool
from t1actors.sandbox.retries import RetryPolicy, is_infrastructure

HOST = SandboxUnavailable("forking", "no memory", "free some")
FAULTS = (SandboxError("?"), SandboxGone("killed meanwhile"), SandboxDied("dead", "killed"), HOST, TimeoutError())
NOT_WORTH_A_TRY = (SandboxRefused("no sense"), ArchiveError("damaged"), SandboxDied("too much", "memory"), ValueError())


class Flaky:
    """A backend whose creations end as told, one after the other; then they succeed."""

    def __init__(self, *ends):
        self.ends = list(ends)
        self.created_s = []
        self.leftovers = []

    async def create(self, spec):
        self.created_s.append(anyio.current_time())
        end = self.ends.pop(0) if self.ends else None
        if end == "hang":
            await anyio.sleep_forever()
        if end is not None:
            raise end
        return Created(isolation=Isolation(backend="flaky"), phases={}, existed=False)

    async def kill(self, sandbox):
        pass

    async def list(self):
        return []

    async def reap(self, *, dry_run=False):
        found, self.leftovers = self.leftovers, []
        return found


def in_simulated_time(main):
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def pool_of(backend, bucket=None, **policy):
    return SandboxPool(backend, Admission(bucket or TokenBucket(1000.0, 100), 2), RetryPolicy(**policy))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_fault_of_the_infrastructure_is_made_good_by_another_try(fault):
    async def main():
        backend = Flaky(fault, fault)
        pool = pool_of(backend)
        heard = []
        made = await pool.create(SandboxSpec(key="one"), on_retry=heard.append)
        assert [retry.attempt for retry in heard] == [1, 2]
        assert {(retry.key, retry.cause) for retry in heard} == {("one", type(fault).__name__)}
        assert made.retried == tuple(heard)
        waited_s = [later - first for first, later in zip(backend.created_s, backend.created_s[1:], strict=False)]
        assert waited_s == pytest.approx([retry.pause_s for retry in heard])
        assert pool.metrics == PoolMetrics(waiting=0, live=1, created=1, reclaimed=0, leaked=0, retries=2, failed=0)

    in_simulated_time(main)


@pytest.mark.parametrize("fault", NOT_WORTH_A_TRY, ids=lambda fault: f"{type(fault).__name__}{fault}")
def test_what_would_be_wrong_again_is_not_tried_again(fault):
    async def main():
        backend = Flaky(fault)
        pool = pool_of(backend)
        with pytest.raises(type(fault)):
            await pool.create(SandboxSpec(key="one"))
        assert len(backend.created_s) == 1
        assert pool.metrics.live == 0

    in_simulated_time(main)
    assert not is_infrastructure(fault)


def test_tries_have_a_bound_and_the_last_error_is_the_callers():
    async def main():
        backend = Flaky(*FAULTS, *FAULTS)
        pool = pool_of(backend, most=3)
        with pytest.raises(SandboxUnavailable):
            await pool.create(SandboxSpec(key="one"))
        assert len(backend.created_s) == 4
        assert (pool.metrics.retries, pool.metrics.failed, pool.metrics.live) == (3, 1, 0)

    in_simulated_time(main)


def test_every_try_has_the_whole_deadline_and_takes_a_token():
    async def main():
        backend = Flaky("hang", "hang")
        pool = pool_of(backend, TokenBucket(0.01, 1))
        made = await pool.create(SandboxSpec(key="one"), deadline_s=5.0)
        assert backend.created_s[1] - backend.created_s[0] == pytest.approx(100.0)
        assert made.token_wait_s > 180.0

    in_simulated_time(main)


def test_a_creation_that_is_given_up_between_two_tries_gives_its_slot_back():
    async def main():
        pool = pool_of(Flaky(HOST, HOST), pause_s=9.0)
        with trio.move_on_after(2.0) as scope:
            await pool.create(SandboxSpec(key="one"))
        assert scope.cancelled_caught
        assert pool.metrics.live == 0

    in_simulated_time(main)


def test_the_pool_counts_what_is_left_of_dead_sandboxes():
    async def main():
        backend = Flaky()
        backend.leftovers = [Leftover(kind="directory", name="one"), Leftover(kind="control group", name="one")]
        pool = pool_of(backend)
        async with pool.running() as found:
            assert found == []
            await pool.create(SandboxSpec(key="two"))
        assert (pool.metrics.leaked, pool.metrics.created, pool.metrics.reclaimed, pool.metrics.live) == (2, 1, 1, 0)

    in_simulated_time(main)


@given(st.integers(0, 2**32), st.text(max_size=9), st.integers(1, 20), st.floats(0.01, 1), st.floats(1, 30))
def test_pauses_double_up_to_the_longest_spread_by_half_and_are_the_same_every_time(
    seed, key, attempt, pause_s, longest_s
):
    policy = RetryPolicy(most=20, pause_s=pause_s, longest_s=longest_s, seed=seed)
    retry = policy.after(SandboxError("?"), key, attempt)
    middle_s = min(longest_s, pause_s * 2 ** (attempt - 1))
    assert 0.5 * middle_s <= retry.pause_s <= 1.5 * middle_s
    assert retry == policy.after(SandboxError("?"), key, attempt)


def test_those_that_failed_together_are_not_tried_again_together():
    policy = RetryPolicy()
    assert len({policy.after(HOST, f"s0.t{number}", 1).pause_s for number in range(100)}) == 100


def test_a_policy_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="must not be negative"):
        RetryPolicy(most=-1)
