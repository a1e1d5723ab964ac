"""The machine's slots: never more than the cap over all pools; those of dead pools come back, not too early and not never."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.sandbox.admission import Admission, TokenBucket
from t1actors.sandbox.errors import SandboxUnavailable
from t1actors.sandbox.node_slots import LEASE_MARGIN_S, NodeSlots
from t1actors.sandbox.shared_file import NodeClock

ROOT = Path(__file__).parent.parent.parent
LEASE_S = 30.0


def in_simulated_time(main):
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def slots_of(directory, owner, *, max_live=3, boot="boot"):
    clock = NodeClock(trio.current_time, "here", boot)
    return NodeSlots(Path(directory), owner=owner, max_live=max_live, lease_s=LEASE_S, clock=clock)


def die(slots):
    """What a kill -9 does to it: the kernel closes its descriptor."""
    os.close(slots._fd)
    slots._fd = -1


class Node:
    """Pools, and which sandboxes really live: a dead pool's until their leases end."""

    def __init__(self, directory, max_live):
        self.directory, self.max_live = directory, max_live
        self.pools = {}
        self.living = {}
        """Pool to when each of its sandboxes ends; None while the pool renews it."""

    def check(self):
        now_s = trio.current_time()
        living = sum(ends_s is None or ends_s > now_s for ends in self.living.values() for ends_s in ends)
        assert living <= self.max_live

    async def pool(self, owner):
        if owner not in self.pools:
            slots = self.pools[owner] = slots_of(self.directory, owner, max_live=self.max_live)
            await slots.open()
            now_s = trio.current_time()
            self.living[owner] = [None for ends_s in self.living.get(owner, []) if ends_s > now_s]
            for _ in self.living[owner]:
                slots.adopt()
            slots.settle()
        return self.pools[owner]

    async def create(self, owner):
        slots = await self.pool(owner)
        with trio.move_on_after(1.0):
            await slots.take()
            self.living[owner].append(None)
        self.check()

    async def end_one(self, owner):
        slots = await self.pool(owner)
        if self.living[owner]:
            self.living[owner].pop()
            slots.give_back()

    async def kill(self, owner):
        if owner in self.pools:
            die(self.pools.pop(owner))
            self.living[owner] = [trio.current_time() + LEASE_S for _ in self.living[owner]]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["create", "create", "end_one", "kill", "wait"]), st.sampled_from("abc"), st.floats(0, 60)
        ),
        max_size=40,
    ),
    st.integers(1, 4),
)
@settings(max_examples=50, deadline=None)
def test_never_more_sandboxes_live_than_the_cap_whichever_pools_die(steps, max_live):
    async def main(directory):
        node = Node(directory, max_live)
        for what, owner, pause_s in steps:
            if what == "wait":
                await trio.sleep(pause_s)
            else:
                await getattr(node, what)(owner)
            node.check()
        for owner in "abc":
            await node.kill(owner)
        # Whatever happened: when all leases are over, all slots can be had.
        last = slots_of(directory, "last", max_live=max_live)
        with trio.fail_after(2 * (LEASE_S + LEASE_MARGIN_S)):
            for _ in range(max_live):
                await last.take()
        last.close()

    with tempfile.TemporaryDirectory() as directory:
        in_simulated_time(lambda: main(directory))


def test_after_a_reboot_nobody_holds_a_slot(tmp_path):
    async def main():
        before = slots_of(tmp_path, "a", max_live=1)
        await before.take()
        die(before)
        after = slots_of(tmp_path, "b", max_live=1, boot="another boot")
        with trio.fail_after(1):
            await after.take()
        after.close()

    in_simulated_time(main)


def test_a_file_that_cannot_be_read_counts_for_all_slots_and_for_a_time_only(tmp_path):
    async def main():
        (tmp_path / "pool-damaged").write_text("nonsense")
        slots = slots_of(tmp_path, "a")
        with trio.move_on_after(LEASE_S) as scope:
            await slots.take()
        assert scope.cancelled_caught
        with trio.fail_after(LEASE_MARGIN_S + 1):
            await slots.take()
        slots.close()

    in_simulated_time(main)


def test_two_pools_of_one_name_are_refused(tmp_path):
    async def main():
        first, second = slots_of(tmp_path, "a"), slots_of(tmp_path, "a")
        await first.open()
        with pytest.raises(SandboxUnavailable, match="another pool named a lives"):
            await second.open()
        first.close()

    in_simulated_time(main)


def test_admission_takes_a_slot_of_the_machine_for_each_key_and_gives_it_back(tmp_path):
    async def main():
        one, two = (
            Admission(TokenBucket(1000.0, 100), 10, node=slots_of(tmp_path, owner, max_live=2)) for owner in "ab"
        )
        await one.adopt_all(["old"])
        await two.admit("x")
        with trio.move_on_after(5) as scope:
            await two.admit("y")
        assert scope.cancelled_caught
        assert two.live == {"x"}
        assert two.waiting == 0
        one.release("old")
        one.release("old")
        with trio.fail_after(1):
            await two.admit("y")

    in_simulated_time(main)


TAKES = """
import sys
from pathlib import Path
import anyio
from t1actors.sandbox.node_slots import NodeSlots

async def main():
    slots = NodeSlots(Path(sys.argv[1]), owner=sys.argv[2], max_live=2, lease_s=0.5)
    await slots.take()
    await slots.take()
    print("taken", flush=True)
    await anyio.sleep_forever()

anyio.run(main)
"""


def test_the_slots_of_a_killed_process_are_taken_up_by_the_next_of_its_name(tmp_path):
    command = [sys.executable, "-c", TAKES, str(tmp_path), "pool"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "taken\n"
        process.kill()
    with pytest.raises(TimeoutError):
        anyio.run(_take_in_time, tmp_path, "stranger")
    anyio.run(_reattach, tmp_path)


async def _take_in_time(directory, owner):
    with anyio.fail_after(1.0):
        await NodeSlots(directory, owner=owner, max_live=2, lease_s=0.5).take()


async def _reattach(directory):
    slots = NodeSlots(directory, owner="pool", max_live=2, lease_s=0.5)
    await slots.open()
    slots.adopt()  # one of the two still lives
    slots.settle()
    with anyio.fail_after(5):
        await slots.take()
