"""The bucket that a machine's pools share: its bound holds whatever happens to the file, the clock and the processes."""

import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.sandbox.shared_bucket import SharedTokenBucket
from t1actors.sandbox.shared_file import NodeClock

ROOT = Path(__file__).parent.parent.parent


def in_simulated_time(main):
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def assert_bound_holds(times_s, rate_per_s, burst):
    times_s = sorted(times_s)
    for first, begin_s in enumerate(times_s):
        for last in range(first, len(times_s)):
            created, window_s = last - first + 1, times_s[last] - begin_s
            assert created <= burst + rate_per_s * window_s + 1e-6, f"{created} within {window_s:.4f} s"


class Machine:
    """Pools that share a bucket on virtual time, and what may happen to them."""

    def __init__(self, directory, rate_per_s, burst):
        self.path = Path(directory) / "bucket"
        self.rate_per_s, self.burst = rate_per_s, burst
        self.boot, self.back_s = 0, [0.0]
        self.pools = {}
        self.created_s = []

    def pool(self, number):
        if number not in self.pools:
            # Two of three see another clock, as in a time namespace of their own.
            clock = NodeClock(
                partial(self._now_s, number, self.boot), f"boot{self.boot} clock{number % 3}", f"boot{self.boot}"
            )
            self.pools[number] = SharedTokenBucket(self.path, rate_per_s=self.rate_per_s, burst=self.burst, clock=clock)
        return self.pools[number]

    def _now_s(self, number, boot):
        return trio.current_time() + 1000.0 * (number % 3) - self.back_s[boot]

    def happen(self, what, number):
        match what:
            case "kill":  # the next one of this number starts from the file
                self.pools.pop(number, None)
            case "reboot":
                self.pools.clear()
                self.boot += 1
                self.back_s.append(trio.current_time())
            case "clock goes back":
                self.back_s[self.boot] += 5.0
            case "damage" if self.path.exists():
                self.path.write_bytes(self.path.read_bytes()[:20])
            case "remove":
                self.path.unlink(missing_ok=True)
            case _:
                pass


HAPPENINGS = ("nothing", "nothing", "nothing", "kill", "reboot", "clock goes back", "damage", "remove")


@given(
    rate_per_s=st.floats(0.5, 100),
    burst=st.integers(1, 8),
    steps=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 4), st.sampled_from(HAPPENINGS), st.floats(0, 4)), max_size=25
    ),
)
@settings(max_examples=150, deadline=None)
def test_the_bound_holds_over_pools_kills_reboots_other_clocks_and_damage(rate_per_s, burst, steps):
    async def main(directory):
        machine = Machine(directory, rate_per_s, burst)

        async def create(bucket):
            await bucket.acquire()
            machine.created_s.append(trio.current_time())

        wanted = 0
        with trio.fail_after(10_000):  # every wait ends
            async with trio.open_nursery() as nursery:
                for number, creations, what, pause_s in steps:
                    for _ in range(creations):
                        nursery.start_soon(create, machine.pool(number))
                        wanted += 1
                    await trio.sleep(pause_s / rate_per_s)
                    machine.happen(what, number)
        assert len(machine.created_s) == wanted
        assert_bound_holds(machine.created_s, rate_per_s, burst)

    with tempfile.TemporaryDirectory() as directory:
        in_simulated_time(lambda: main(directory))


def test_a_new_file_begins_spent_and_fills_up(tmp_path):
    async def main():
        clock = NodeClock(trio.current_time, "here", "boot")
        bucket = SharedTokenBucket(tmp_path / "bucket", rate_per_s=10.0, burst=3, clock=clock)
        first = round(await bucket.acquire(), 6)
        await trio.sleep(10)
        return [first, *[round(await bucket.acquire(), 6) for _ in range(5)]]

    assert in_simulated_time(main) == [0.1, 0, 0, 0, 0.1, 0.1]


def test_a_wait_that_is_given_up_takes_nothing(tmp_path):
    async def main():
        clock = NodeClock(trio.current_time, "here", "boot")
        bucket = SharedTokenBucket(tmp_path / "bucket", rate_per_s=1.0, burst=1, clock=clock)
        began_s = trio.current_time()
        for _ in range(5):
            with trio.move_on_after(0.1):
                await bucket.acquire()
        await bucket.acquire()
        return trio.current_time() - began_s

    assert in_simulated_time(main) == pytest.approx(1.0)


@pytest.mark.parametrize(("rate", "burst"), [(0.0, 1), (float("nan"), 1), (1.0, 0)])
def test_numbers_that_admit_nobody_are_refused(tmp_path, rate, burst):
    with pytest.raises(ValueError, match="must be positive"):
        SharedTokenBucket(tmp_path / "bucket", rate_per_s=rate, burst=burst)


CREATES = """
import os, sys
from dataclasses import replace
from pathlib import Path
import anyio
from t1actors.sandbox.shared_bucket import SharedTokenBucket
from t1actors.sandbox.shared_file import boot_clock

async def main(path, log):
    looked_s = 0.0
    def now_s():
        nonlocal looked_s
        looked_s = clock.now_s()
        return looked_s
    clock = boot_clock()
    bucket = SharedTokenBucket(path, rate_per_s=200.0, burst=10, clock=replace(clock, now_s=now_s))
    await bucket._take()
    while True:
        if await bucket._take() == 0:  # the moment of the token itself: a process may be off the processor right after
            os.write(log, b"%.6f\\n" % looked_s)
        else:
            await anyio.sleep(0.002)

log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND)
anyio.run(main, Path(sys.argv[1]), log, backend=sys.argv[3])
"""


def test_the_bound_holds_over_real_processes_that_are_killed_and_started_again(tmp_path):
    log = tmp_path / "created"
    log.touch()

    def start(number):
        arguments = [str(tmp_path / "bucket"), str(log), ("trio", "asyncio")[number % 2]]
        return subprocess.Popen([sys.executable, "-c", CREATES, *arguments], cwd=ROOT)

    processes = [start(number) for number in range(3)]
    try:
        for victim in (0, 1, 2, 1):
            seen = log.stat().st_size
            while log.stat().st_size < seen + 100 * 14 and processes[victim].poll() is None:
                time.sleep(0.01)
            processes[victim].send_signal(signal.SIGKILL)
            processes[victim].wait()
            processes[victim] = start(victim)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    times_s = [float(line) for line in log.read_text().splitlines()]
    assert len(times_s) > 300
    assert_bound_holds(times_s, 200.0, 10)
