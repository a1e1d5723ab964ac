"""The engine behind its protocol, under trio and asyncio."""

import anyio
import pytest

from t1actors.engine.interface import (
    EngineError,
    EngineStopped,
    GenerateRequest,
    RequestRefused,
    SequenceBusy,
)
from t1actors.engine.torch_engine import TorchEngine
from t1actors.models.checkpoint import CheckpointError, weights_to_bytes
from tests.engine.streams import Stream
from tests.engine.test_core import ALONE, assert_same_record
from tests.models.small import small_policy

BACKENDS = ["trio", "asyncio"]


def engine(**changes):
    return TorchEngine(small_policy(), **({"max_live_sequences": 4, "max_ids": 200} | changes))


def request(sequence="a", *, ids=(20, 21, 22), max_new_tokens=5, **changes):
    values = {"temperature": 1.0, "seed": 3, "stop_ids": (), "request_id": f"{sequence}/0"}
    return GenerateRequest(sequence=sequence, ids=ids, max_new_tokens=max_new_tokens, **(values | changes))


@pytest.mark.parametrize("backend", BACKENDS)
def test_streams_generated_at_once_equal_streams_generated_alone(backend):
    streams = [Stream(name=f"s{i}", seed=i) for i in range(6)]

    async def main():
        replica = engine()
        async with replica.running(), anyio.create_task_group() as tasks:
            for stream in streams:
                tasks.start_soon(stream.run, replica)

    anyio.run(main, backend=backend)
    for stream, alone in zip(streams, ALONE, strict=True):
        assert_same_record(stream, alone)


@pytest.mark.parametrize("backend", BACKENDS)
def test_load_waits_for_live_requests_and_later_ones_use_the_new_weights(backend):
    other = small_policy(seed=5)

    async def main():
        replica = engine()
        before = replica.version
        order = []

        async def generate(name, **changes):
            result = await replica.generate(request(name, **changes))
            order.append((name, result.versions[0].version))

        async def load():
            data, told = weights_to_bytes(other.weights()), []
            await replica.load(other.digest(), data, progress=lambda *far: told.append(far))
            assert [done for done, total in told if done == total] == [told[-1][0]]
            order.append(("load", replica.version))

        async with replica.running(), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: generate("a", max_new_tokens=60))
            tasks.start_soon(lambda: generate("short", max_new_tokens=20))
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(load)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(generate, "b")
        assert order == [("short", before), ("a", before), ("load", other.digest()), ("b", other.digest())]

    anyio.run(main, backend=backend)


def test_weights_that_are_not_what_their_version_names_leave_the_old_ones():
    async def main():
        replica = engine()
        before = replica.version
        async with replica.running():
            wanted = await replica.generate(request("a"))
            with pytest.raises(CheckpointError, match="digest"):
                await replica.load("0" * 64, weights_to_bytes(small_policy(seed=5).weights()))
            assert replica.version == before
            again = await replica.generate(request("b"))
            assert again.sampled_ids == wanted.sampled_ids

    anyio.run(main, backend="trio")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cancelled_request_frees_its_sequence(backend):
    async def main():
        replica = engine(max_live_sequences=1)
        async with replica.running():
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(lambda: replica.generate(request("a", max_new_tokens=190)))
                    await anyio.wait_all_tasks_blocked()
                    scope.cancel()
            await replica.quiesced()
            result = await replica.generate(request("a"))
            assert len(result.sampled_ids) == 5

    anyio.run(main, backend=backend)


def test_a_second_request_of_a_live_sequence_is_refused_and_the_first_unharmed():
    async def main():
        replica = engine()
        results = []

        async def first():
            results.append(await replica.generate(request("a", max_new_tokens=50)))

        async with replica.running(), anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(SequenceBusy, match="a/0 live"):
                await replica.generate(request("a", request_id="a/1"))
        assert len(results[0].sampled_ids) == 50

    anyio.run(main, backend="trio")


def test_the_same_request_sent_again_gives_the_same_answer():
    async def main():
        replica = engine()
        async with replica.running():
            first = await replica.generate(request("a", max_new_tokens=20))
            second = await replica.generate(request("a", max_new_tokens=20))
            await replica.release("a")
            await replica.release("never seen")
            third = await replica.generate(request("a", max_new_tokens=20))
        assert first.sampled_ids == second.sampled_ids == third.sampled_ids
        assert first.routing_RLK.tolist() == second.routing_RLK.tolist() == third.routing_RLK.tolist()

    anyio.run(main, backend="trio")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": ()}, "no ids"),
        ({"ids": (1, 61)}, "vocabulary of 61"),
        ({"ids": (-1,)}, "vocabulary"),
        ({"max_new_tokens": 0}, "at least 1"),
        ({"ids": (5,) * 200}, "no room below max_ids = 200"),
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"known_rows": 3}, "at most 2"),
        ({"known_rows": -1}, "known_rows"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_with_the_reason(changes, message):
    async def main():
        replica = engine()
        async with replica.running():
            with pytest.raises(RequestRefused, match=message):
                await replica.generate(request(**changes))

    anyio.run(main, backend="trio")


def test_an_engine_that_is_not_running_says_so():
    async def main():
        replica = engine()
        with pytest.raises(EngineStopped, match="not running"):
            await replica.generate(request())
        with pytest.raises(EngineStopped, match="not running"):
            await replica.load(replica.version, b"")
        stopped = []

        async def interrupted():
            try:
                await replica.generate(request("a", max_new_tokens=190))
            except EngineStopped:
                stopped.append(True)

        async with anyio.create_task_group() as tasks, replica.running():
            tasks.start_soon(interrupted)
            await anyio.wait_all_tasks_blocked()
        assert stopped == [True]

    anyio.run(main, backend="trio")


def test_streams_longer_than_the_models_positions_are_refused_when_the_engine_is_built():
    with pytest.raises(EngineError, match=r"lower rollout\.max_ids"):
        engine(max_ids=257)


def test_a_bfloat16_sampler_takes_float32_weights_by_their_digest():
    import torch

    trained = small_policy(seed=5)

    async def main():
        replica = TorchEngine(small_policy(dtype=torch.bfloat16), max_live_sequences=2, max_ids=100)
        async with replica.running():
            await replica.load(trained.digest(), weights_to_bytes(trained.weights()))
            result = await replica.generate(request("a"))
        assert result.versions[0].version == trained.digest()
        assert len(result.sampled_ids) == 5

    anyio.run(main, backend="trio")
