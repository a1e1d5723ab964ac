"""The pool and the engine inside a plain asyncio program, whose own cancellation knows nothing of anyio's shields."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

import anyio
import pytest

from t1actors.engine.interface import GenerateRequest
from t1actors.engine.torch_engine import TorchEngine
from t1actors.models.checkpoint import weights_digest, weights_to_bytes
from t1actors.nursery import apart, task_group
from t1actors.sandbox.admission import Admission, TokenBucket
from t1actors.sandbox.errors import SandboxError, SandboxGone
from t1actors.sandbox.interface import SandboxSpec
from t1actors.sandbox.pool import SandboxPool
from tests.train.tiny_batches import tiny_policy


def pool_over(backend, *, max_live=4):
    return SandboxPool(backend, Admission(TokenBucket(1000, 100), max_live=max_live))


@contextlib.asynccontextmanager
async def running_pool(live, **admission):
    backend = live.backend()
    pool = pool_over(backend, **admission)
    async with backend.running(), pool.running():
        yield pool


async def cancel(task, times=1):
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.001)
    with contextlib.suppress(asyncio.CancelledError):
        await task


# --- what leaves a block ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_a_single_error_leaves_a_task_group_bare_and_two_as_a_group(loop):
    async def fail(error):
        raise error

    async def one():
        async with task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            raise KeyError("mine")

    async def two():
        async with task_group() as tasks:
            tasks.start_soon(fail, ValueError())
            tasks.start_soon(fail, ValueError())

    with pytest.raises(KeyError) as raised:
        anyio.run(one, backend=loop)
    assert raised.value.__context__ is None
    with pytest.raises(ExceptionGroup):
        anyio.run(two, backend=loop)


def test_a_call_apart_runs_its_cleanup_to_the_end_however_often_its_caller_is_cancelled():
    log = []

    async def call():
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.02)
                log.append("undone")

    async def main():
        task = asyncio.create_task(apart(call))
        await asyncio.sleep(0.001)
        await cancel(task, times=4)
        return list(log)

    assert asyncio.run(main()) == ["undone"]


# --- sandboxes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("after_s", [0.0, 0.003, 0.02])
def test_a_task_cancelled_while_it_creates_leaves_nothing_and_the_next_one_gets_its_own_answer(live, after_s, times):
    async def main():
        async with running_pool(live, max_live=1) as pool:
            await pool.reattach()
            task = asyncio.create_task(pool.create(SandboxSpec(key="one")))
            await asyncio.sleep(after_s)
            await cancel(task, times)
            if task.cancelled():
                assert await pool.reattach() == []
            else:
                await pool.kill("one")
            async with pool.sandbox(SandboxSpec(key="two")) as sandbox:  # the one slot is free again
                assert not sandbox.made.created.existed
                assert (await sandbox.run("echo $((6 * 7))", limit_s=20)).text == "42\n"

    asyncio.run(main())
    live.assert_nothing_left()


def test_a_timeout_of_asyncio_in_the_middle_of_a_command_kills_the_sandbox_at_the_end_of_its_block(live):
    async def main():
        async with running_pool(live) as pool:
            with pytest.raises(TimeoutError):
                async with pool.sandbox(SandboxSpec(key="one")) as sandbox, asyncio.timeout(0.3):
                    await sandbox.run("sleep 1000", limit_s=100)
            assert await pool.reattach() == []
            with pytest.raises(SandboxGone):
                await sandbox.run("true", limit_s=1)

    asyncio.run(main())
    live.assert_nothing_left()


def test_one_agent_that_raises_ends_the_others_and_its_own_error_is_what_the_program_sees(live):
    async def agent(pool, number):
        async with pool.sandbox(SandboxSpec(key=f"agent{number}")) as sandbox:
            await sandbox.run("echo ready", limit_s=20)
            if number == 3:
                raise LookupError("the model said something odd")
            await sandbox.run("sleep 1000", limit_s=100)

    async def main():
        async with running_pool(live) as pool, asyncio.TaskGroup() as agents:
            for number in range(6):  # two of them wait for a slot
                agents.create_task(agent(pool, number))

    with pytest.raises(ExceptionGroup) as raised:  # asyncio's own group, with one error
        asyncio.run(main())
    assert [str(error) for error in raised.value.exceptions] == ["the model said something odd"]
    live.assert_nothing_left()


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_what_a_program_created_and_forgot_is_killed_when_its_block_ends_also_by_an_error(live, loop):
    async def main():
        async with running_pool(live) as pool:
            for key in ("a", "b"):
                await pool.create(SandboxSpec(key=key))
            raise KeyError("forgotten")

    with pytest.raises(KeyError):
        anyio.run(main, backend=loop)
    live.assert_nothing_left()


def test_a_sandbox_that_cannot_be_killed_is_named_and_the_others_are_killed_all_the_same():
    class Stuck:
        def __init__(self):
            self.killed = []

        async def list(self):
            return ["a", "b", "c"]

        async def reap(self):
            return []

        async def kill(self, key):
            if key == "b":
                raise SandboxError("b does not answer")
            self.killed.append(key)

    async def main():
        backend = Stuck()
        with pytest.raises(SandboxError, match=r"sandboxes b could not be killed \(b does not answer\)") as raised:
            async with pool_over(backend).running():
                pass
        assert raised.value.__context__ is None
        return sorted(backend.killed)

    assert asyncio.run(main()) == ["a", "c"]


def test_a_sandbox_outlives_its_lease_while_the_pool_runs_though_nobody_calls_it(live):
    async def main():
        backend = live.backend()
        pool = pool_over(backend)
        spec = SandboxSpec(key="one", lease_s=2.0)
        async with backend.running(), pool.running(renew_every_s=0.2), pool.sandbox(spec) as sandbox:
            await asyncio.sleep(3.0)
            assert (await sandbox.run("echo here", limit_s=20)).text == "here\n"

    asyncio.run(main())
    live.assert_nothing_left()


CRASHES = """
import asyncio, os, signal, sys
from pathlib import Path
from t1actors.sandbox.admission import Admission, TokenBucket
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.interface import SandboxSpec
from t1actors.sandbox.pool import SandboxPool

async def main():
    backend = NamespaceBackend(Path(sys.argv[1]), name="test")
    pool = SandboxPool(backend, Admission(TokenBucket(100, 10), max_live=4))
    async with backend.running(), pool.running(), pool.sandbox(SandboxSpec(key="one")) as sandbox:
        await sandbox.run("echo begun > work", limit_s=20, key="1")
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_program_that_was_killed_finds_its_sandbox_again_with_all_its_work(namespaces):
    done = subprocess.run([sys.executable, "-c", CRASHES, str(namespaces.root)], check=False)
    assert done.returncode == -signal.SIGKILL

    async def main():
        backend = namespaces.backend()
        pool = pool_over(backend)
        async with backend.running(), pool.running() as found:
            assert found == ["one"]
            async with pool.sandbox(SandboxSpec(key="one")) as sandbox:
                assert sandbox.made.created.existed
                assert (await sandbox.run("asked again, answered from store", limit_s=20, key="1")).exit_code == 0
                assert await sandbox.read_file("/app/work") == b"begun\n"

    asyncio.run(main())
    namespaces.assert_nothing_left()


def test_ctrl_c_ends_an_asyncio_program_with_nothing_left(namespaces):
    code = CRASHES.replace("os.kill(os.getpid(), signal.SIGKILL)", "print('up', flush=True); await asyncio.sleep(600)")
    program = subprocess.Popen(
        [sys.executable, "-c", code, str(namespaces.root)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert program.stdout.readline() == "up\n"
    os.killpg(program.pid, signal.SIGINT)
    assert program.wait() != 0
    program.stdout.close()
    namespaces.assert_nothing_left()


# --- the engine ---------------------------------------------------------------------------------------------------------


def test_an_engine_whose_caller_is_cancelled_while_it_loads_finishes_loading_before_it_goes_on():
    policy, other = tiny_policy(), tiny_policy(5)
    weights = weights_to_bytes(other.weights())
    version = weights_digest(other.weights())

    async def main():
        engine = TorchEngine(policy, max_live_sequences=2, max_ids=64)
        async with engine.running():
            task = asyncio.create_task(engine.load(version, weights))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await cancel(task, times=2)
            assert engine.version in (version, tiny_policy().digest())
            request = GenerateRequest(
                request_id="r", sequence="s", ids=(1, 2, 3), max_new_tokens=4, temperature=1.0, seed=7, stop_ids=()
            )
            result = await engine.generate(request)
            assert {span.version for span in result.versions} == {engine.version}

    asyncio.run(main())
