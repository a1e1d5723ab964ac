"""Admission: rate and slots hold in every window, in order, and whoever gives up takes nothing."""

import anyio
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.events import Isolation
from t1actors.sandbox.admission import Admission, Admitted, TokenBucket
from t1actors.sandbox.interface import Created, SandboxSpec
from t1actors.sandbox.pool import SandboxPool


def in_simulated_time(main):
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@given(
    rate_per_s=st.floats(0.1, 1000),
    burst=st.integers(1, 20),
    gaps_s=st.lists(st.one_of(st.just(0.0), st.floats(0, 5)), min_size=1, max_size=60),
)
@settings(max_examples=60, deadline=None)
def test_in_any_window_at_most_burst_plus_rate_times_window_are_admitted(rate_per_s, burst, gaps_s):
    async def main():
        bucket = TokenBucket(rate_per_s, burst)
        times = []

        async def one():
            await bucket.acquire()
            times.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for gap_s in gaps_s:
                await trio.sleep(gap_s)
                nursery.start_soon(one)
        return times

    times = in_simulated_time(main)
    assert len(times) == len(gaps_s)
    for first in range(len(times)):
        for last in range(first, len(times)):
            window_s = times[last] - times[first]
            assert last - first + 1 <= burst + rate_per_s * window_s + 1e-6


def test_a_full_bucket_makes_nobody_wait_and_an_empty_one_the_right_time():
    async def main():
        bucket = TokenBucket(10.0, 3)
        return [round(await bucket.acquire(), 6) for _ in range(5)]

    assert in_simulated_time(main) == [0, 0, 0, 0.1, 0.1]


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=40), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_slots_are_never_exceeded_and_are_given_in_order_whoever_gives_up(steps, max_live):
    async def main():
        admission = Admission(TokenBucket(1e6, 1000), max_live)
        order = []
        scopes = {}

        async def one(key):
            with trio.CancelScope() as scopes[key]:
                await admission.admit(key)
                order.append(key)
            assert len(admission.live) <= max_live

        async with trio.open_nursery() as nursery:
            for number, (which, cancel) in enumerate(steps):
                key = f"k{number}"
                nursery.start_soon(one, key)
                await trio.testing.wait_all_tasks_blocked()
                if cancel and key not in admission.live:
                    scopes[key].cancel()
                elif len(admission.live) > which:
                    admission.release(sorted(admission.live)[which])
                await trio.testing.wait_all_tasks_blocked()
                assert len(admission.live) <= max_live
                assert not admission.waiting or len(admission.live) == max_live
            while admission.live:
                admission.release(min(admission.live))
                await trio.testing.wait_all_tasks_blocked()
        assert order == sorted(order, key=lambda key: int(key[1:]))
        cancelled = [key for key, scope in scopes.items() if scope.cancelled_caught]
        assert len(order) + len(cancelled) == len(steps)

    in_simulated_time(main)


def test_adopted_sandboxes_hold_slots_and_a_held_key_passes_at_once():
    async def main():
        admission = Admission(TokenBucket(1.0, 1), 2)
        for key in ("a", "b", "c"):
            admission.adopt(key)
        assert await admission.admit("a") == Admitted(0.0, 0.0)
        with trio.move_on_after(5) as scope:
            await admission.admit("d")
        assert scope.cancelled_caught
        admission.release("a")
        admission.release("b")
        assert (await admission.admit("d")).slot_wait_s == 0
        assert admission.live == {"c", "d"}

    in_simulated_time(main)


def test_waits_are_reported_apart_slot_first():
    async def main():
        admission = Admission(TokenBucket(0.5, 1), 1)
        await admission.admit("a")
        results = []

        async def second():
            results.append(await admission.admit("b"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(second)
            await trio.sleep(1.5)
            admission.release("a")
        return results[0]

    admitted = in_simulated_time(main)
    assert (round(admitted.slot_wait_s, 6), round(admitted.token_wait_s, 6)) == (1.5, 0.5)


@pytest.mark.parametrize(("rate", "burst", "live"), [(0.0, 1, 1), (1.0, 0, 1), (1.0, 1, 0)])
def test_limits_that_admit_nobody_are_refused(rate, burst, live):
    with pytest.raises(ValueError, match="must be"):
        Admission(TokenBucket(rate, burst), live)


class FailingBackend:
    """Fails or hangs as told; counts what lives."""

    def __init__(self):
        self.alive = {"old"}
        self.mode = "fine"

    async def create(self, spec):
        if self.mode == "hang":
            await anyio.sleep_forever()
        if self.mode == "fail":
            raise RuntimeError("no")
        self.alive.add(spec.key)
        return Created(isolation=Isolation(backend="fake"), phases={}, existed=False)

    async def kill(self, sandbox):
        self.alive.discard(sandbox)

    async def list(self):
        return sorted(self.alive)

    async def reap(self, *, dry_run=False):
        return []


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_the_pool_gives_a_slot_back_when_creation_fails_or_is_cancelled_and_after_a_kill(loop):
    async def main():
        backend = FailingBackend()
        admission = Admission(TokenBucket(1000.0, 10), 2)
        pool = SandboxPool(backend, admission)
        assert await pool.reattach() == ["old"]
        backend.mode = "fail"
        with pytest.raises(RuntimeError):
            await pool.create(SandboxSpec(key="x"))
        backend.mode = "hang"
        with anyio.move_on_after(0.05):
            await pool.create(SandboxSpec(key="y"))
        assert admission.live == {"old"}
        backend.mode = "fine"
        made = await pool.create(SandboxSpec(key="z"))
        assert made.created.isolation.backend == "fake"
        assert admission.live == {"old", "z"}
        await pool.kill("old")
        await pool.kill("z")
        assert admission.live == frozenset()

    anyio.run(main, backend=loop)


def test_the_pool_drives_real_sandboxes(live):
    async def body(backend):
        pool = SandboxPool(backend, Admission(TokenBucket(100.0, 4), 2))
        keys = [f"s0.t{number}" for number in range(5)]

        async def trial(key):
            await pool.create(SandboxSpec(key=key))
            assert len(await backend.list()) <= 2
            await pool.kill(key)

        async with anyio.create_task_group() as group:
            for key in keys:
                group.start_soon(trial, key)

    live(body)
