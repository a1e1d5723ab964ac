"""A Docker daemon that dies under sandboxes: they go on, what is asked meanwhile waits, and afterwards all is in order."""

import itertools
from functools import partial

import anyio
import pytest

from t1actors.sandbox.admission import Admission, TokenBucket
from t1actors.sandbox.archive import find_file
from t1actors.sandbox.errors import SandboxDied, SandboxGone, SandboxUnavailable
from t1actors.sandbox.interface import RunRequest, SandboxSpec
from t1actors.sandbox.pool import SandboxPool
from t1actors.sandbox.retries import RetryPolicy
from tests.docker_daemon import own_daemon
from tests.sandbox.conftest import Live

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("docker_daemon")]


@pytest.fixture
def live(tmp_path):
    """With a daemon that the test may kill."""
    with own_daemon() as daemon:
        yield Live(tmp_path / "sandboxes", daemon)


def request(key, command, limit_s=20.0):
    return RunRequest(key=key, command=command, limit_s=limit_s)


async def started_after(daemon, seconds):
    await anyio.sleep(seconds)
    await anyio.to_thread.run_sync(daemon.start)


def test_a_sandbox_outlives_a_crash_of_the_daemon_and_what_could_not_be_removed_is_at_the_next_start(live):
    async def without_a_daemon(backend):
        await backend.create(SandboxSpec(key="one", lease_s=60.0))
        await backend.run("one", request("1", "echo work >f; sleep 1000 &"))
        live.daemon.kill()
        assert (await backend.run("one", request("2", "cat f"))).text == "work\n"
        assert find_file(await backend.seal("one"), "/app/f") == b"work\n"
        with pytest.raises(SandboxUnavailable, match="removing container"):
            await backend.kill("one")
        with pytest.raises(SandboxGone):
            await backend.run("one", request("3", "echo"))
        live.daemon.start()

    async def afterwards(backend):
        assert await backend.list() == []
        await backend.create(SandboxSpec(key="one"))

    live(without_a_daemon, expect_left=True)
    assert len(live.containers()) == 1
    live(afterwards)


async def run_until_it_fails(backend):
    with anyio.fail_after(30):
        for number in itertools.count():
            await backend.run("one", request(f"look {number}", "cat f"))
            await anyio.sleep(0.1)


def test_what_is_asked_while_the_daemon_is_away_is_done_when_it_is_back(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        live.daemon.kill()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(started_after, live.daemon, 1.0)
            tasks.start_soon(backend.kill, "one")
            tasks.start_soon(backend.create, SandboxSpec(key="two"))
        assert await backend.list() == ["two"]
        assert len(live.containers()) == 1
        assert (await backend.run("two", request("1", "echo works"))).text == "works\n"

    live(body)


@pytest.mark.parametrize("after_s", [0.1, 0.5, 0.9])
def test_creations_that_a_crash_of_the_daemon_cut_off_are_made_again_and_none_twice(live, after_s):
    keys = [f"s0.t{number}" for number in range(6)]

    async def body(backend):
        pool = SandboxPool(backend, Admission(TokenBucket(100, 32), max_live=8), RetryPolicy(pause_s=1.0))
        async with anyio.create_task_group() as tasks:
            for key in keys:
                tasks.start_soon(partial(pool.create, SandboxSpec(key=key), deadline_s=30.0))
            await anyio.sleep(after_s)
            live.daemon.kill()
            await started_after(live.daemon, 0.5)
        assert await backend.list() == keys
        for key in keys:
            await pool.kill(key)
        await pool.reap()

    live(body)


def test_a_daemon_that_starts_ends_the_containers_it_finds_which_are_then_sandboxes_that_died(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        await backend.run("one", request("1", "echo work >f"))
        live.daemon.kill()
        await started_after(live.daemon, 0.0)
        with pytest.raises(SandboxDied) as caught:
            await run_until_it_fails(backend)
        assert caught.value.cause == "killed"
        assert find_file(await backend.seal("one"), "/app/f") == b"work\n"

    live(body)
