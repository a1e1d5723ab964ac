"""The sampler's decisions: when a trial goes on, when it ends and why, and when the barrier is answered."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
import pytest
import trio
import trio.testing

from t1actors import config as cfg
from t1actors.actors.sampler import Load, Sample, Sampler, SamplerState, turn_seed
from t1actors.engine.interface import Engine, GenerateRequest, GenerateResult
from t1actors.events import (
    AnyEvent,
    BarrierOpened,
    EffectFinished,
    EpisodeEnded,
    GenerationQuiesced,
    Isolation,
    Payload,
    SandboxReady,
    StepOpened,
    Tensor,
    TimerFired,
    TrialCancelled,
    TrialFailed,
    TrialSpec,
    TurnExecuted,
    TurnSampled,
    WeightsLoaded,
    WeightsOffered,
)
from t1actors.log.blobs import MemoryBlobs
from t1actors.payloads import digest_of, payload_of
from t1actors.runtime.actor import ActorContext, Decision, Effect, Performing, Unrecoverable
from t1actors.runtime.clock import run_virtual

EMPTY = Payload(digest="00", size_bytes=0, inline=b"")


class Bench:
    def __init__(
        self, tmp_path: Path, *, name: str = "sampler", replicas: int = 1, engine: Engine | None = None
    ) -> None:
        config = cfg.resolve(preset="smoke", sets=[f"rollout.sampler_replicas={replicas}"]).config
        context = ActorContext(name, tmp_path, config, MemoryBlobs(), 1, lambda: 0.0)
        self.sampler = Sampler(context, (lambda context: engine) if engine is not None else None)
        self.state: SamplerState = self.sampler.initial()
        trials = tuple(
            TrialSpec(trial=f"s0.t{n}", index=n, task="l1-100000000", seed=n, turn_limit=2) for n in range(2)
        )
        self.send(
            StepOpened(
                step=0, purpose="train", version="v", version_index=0, batch_size=2, temperature=1.0, trials=trials
            )
        )

    def send(self, event: AnyEvent) -> Decision:
        self.state = self.sampler.fold(self.state, event)
        decision = self.sampler.decide(self.state, event)
        for out in decision.events:
            self.state = self.sampler.fold(self.state, out)
        return decision

    def ready(self, trial: str) -> Decision:
        return self.send(
            SandboxReady(
                trial=trial,
                task_digest="d",
                instruction="1 make dir a",
                isolation=Isolation(backend="test"),
                token_wait_s=0,
                slot_wait_s=0,
                image_wait_s=0,
                create_s=0,
            )
        )

    def sampled(self, trial: str, turn: int) -> Decision:
        own = TurnSampled(
            trial=trial,
            turn=turn,
            context_ids=(1, 2),
            sampled_ids=(3, 4),
            logprobs=(-0.1, -0.2),
            routing=Tensor(dtype="uint8", shape=(3 if turn == 0 else 4, 2, 2), data=EMPTY),
            versions=(),
            temperature=1.0,
            finish="stop",
            command="ls",
            execute=True,
            canonical=True,
        )
        self.state = self.sampler.fold(self.state, own)
        return self.finished(trial, turn)

    def finished(self, trial: str, turn: int) -> Decision:
        return self.send(EffectFinished(key=f"{trial}/{turn}/sample", status="done", seconds=0.0))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def executed(trial: str, turn: int, *, died: bool = False) -> TurnExecuted:
    return TurnExecuted(trial=trial, turn=turn, observation="rc 0", exit_code=0, seconds=0.0, sandbox_died=died)


def test_a_trial_is_sampled_turn_by_turn_until_its_limit(bench: Bench) -> None:
    first, deadline = bench.ready("s0.t0").effects
    assert isinstance(first, Sample)
    assert (first.key, deadline.key) == ("s0.t0/0/sample", "s0.t0/deadline")
    bench.sampled("s0.t0", 0)
    [second] = bench.send(executed("s0.t0", 0)).effects
    assert second.key == "s0.t0/1/sample"
    bench.sampled("s0.t0", 1)
    ended = bench.send(executed("s0.t0", 1))
    assert list(ended.events) == [EpisodeEnded(trial="s0.t0", reason="turn_limit", turns=2)]
    assert list(ended.cancels) == ["s0.t0/deadline"]


def test_the_stream_and_its_rows_grow_together(bench: Bench) -> None:
    bench.ready("s0.t0")
    for turn in range(2):
        bench.sampled("s0.t0", turn)
        trial = bench.state.trials["s0.t0"]
        assert trial.rows == len(trial.ids) - 1
        bench.send(executed("s0.t0", turn)) if turn == 0 else None


def test_a_sandbox_that_died_within_its_limits_ends_the_episode(bench: Bench) -> None:
    bench.ready("s0.t0")
    bench.sampled("s0.t0", 0)
    ended = bench.send(executed("s0.t0", 0, died=True))
    assert list(ended.events) == [EpisodeEnded(trial="s0.t0", reason="sandbox_limit", turns=1)]


def test_out_of_time_after_a_turn_is_graded_and_before_any_is_unmeasured(bench: Bench) -> None:
    bench.ready("s0.t0")
    [failed] = bench.send(TimerFired(key="s0.t0/deadline", due_s=1.0)).events
    assert isinstance(failed, TrialFailed)
    bench.ready("s0.t1")
    bench.sampled("s0.t1", 0)
    [ended] = bench.send(TimerFired(key="s0.t1/deadline", due_s=1.0)).events
    assert isinstance(ended, EpisodeEnded)
    assert ended.reason == "deadline"


def test_a_turn_that_was_still_being_sampled_when_its_episode_ended_is_not_recorded(bench: Bench) -> None:
    """Else the trial would have a turn after its end, or end twice."""

    async def no_report(done: float, total: float, unit: str) -> None:
        raise AssertionError("the sampler reports no progress")

    async def main() -> None:
        [sample, _] = bench.ready("s0.t0").effects
        results: list[AnyEvent] = []

        async def generate() -> None:
            results.extend(await bench.sampler.perform(sample, Performing(attempt=1, report=no_report)))

        async with bench.sampler.running(), trio.open_nursery() as nursery:
            nursery.start_soon(generate)
            await trio.testing.wait_all_tasks_blocked()
            bench.send(TimerFired(key="s0.t0/deadline", due_s=1.0))
        assert results == []

    trio.run(main)


def test_a_cancelled_trial_stops_the_generation_it_is_in(bench: Bench) -> None:
    bench.ready("s0.t0")
    cancelled = bench.send(TrialCancelled(trial="s0.t0", step=0, cause="batch complete"))
    assert set(cancelled.cancels) == {"s0.t0/0/sample", "s0.t0/deadline"}


def test_late_answers_of_a_trial_that_is_gone_start_nothing(bench: Bench) -> None:
    bench.send(TrialCancelled(trial="s0.t0", step=0, cause="batch complete"))
    assert not bench.ready("s0.t0").effects
    assert not bench.send(executed("s0.t0", 0)).effects


def test_the_barrier_is_answered_when_nothing_is_being_generated(bench: Bench) -> None:
    bench.ready("s0.t0")
    assert not bench.send(BarrierOpened(step=0)).events
    answer = bench.sampled("s0.t0", 0)
    assert list(answer.events) == [GenerationQuiesced(step=0, replica="sampler")]


def test_an_idle_replica_answers_the_barrier_at_once_and_loads_what_is_offered(bench: Bench) -> None:
    assert list(bench.send(BarrierOpened(step=3)).events) == [GenerationQuiesced(step=3, replica="sampler")]
    [load] = bench.send(WeightsOffered(step=3, digest="w", weights=EMPTY)).effects
    assert isinstance(load, Load)
    assert (load.key, load.digest) == ("barrier/3/load", "w")
    assert load.deadline_s is None
    assert load.stall_s == 600.0


class LoadingEngine:
    """An engine that generates nothing and says which weights it loaded."""

    name = "engine"
    version = "initial"

    def __init__(self) -> None:
        self.loaded: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        raise AssertionError(f"{request.request_id} is sampled by the weights {self.version}")

    async def load(
        self, version: str, weights: bytes | memoryview, *, progress: Callable[[int, int], None] | None = None
    ) -> None:
        assert bytes(weights) == version.encode()
        self.version = version
        self.loaded.append(version)

    async def release(self, sequence: str) -> None:
        raise AssertionError("nothing was generated")

    async def quiesced(self) -> None:
        raise AssertionError("the sampler counts for itself")


def offered(step: int, *, gone: bool = False) -> WeightsOffered:
    name = f"w{step}"
    weights = Payload(digest=digest_of(name.encode()), size_bytes=len(name), inline=None if gone else name.encode())
    return WeightsOffered(step=step, digest=name, weights=weights)


async def performed(bench: Bench, effect: Effect) -> list[AnyEvent]:
    async def no_report(done: float, total: float, unit: str) -> None:
        raise AssertionError("the sampler reports no progress")

    return list(await bench.sampler.perform(effect, Performing(attempt=1, report=no_report)))


class SlowEngine(LoadingEngine):
    """Loads three parts, of which the second takes longer."""

    async def load(
        self, version: str, weights: bytes | memoryview, *, progress: Callable[[int, int], None] | None = None
    ) -> None:
        assert progress is not None
        for done, seconds in enumerate([61.0, 183.0, 61.0], 1):
            await anyio.sleep(seconds)
            progress(done, 3)


def test_a_load_that_takes_long_says_how_far_it_is_and_only_when_it_got_further(tmp_path: Path) -> None:
    bench = Bench(tmp_path, engine=SlowEngine())
    said: list[tuple[float, ...]] = []

    async def report(done: float, total: float, unit: str) -> None:
        assert unit == "bytes"
        said.append((anyio.current_time(), done, total))

    async def main() -> None:
        start_s = anyio.current_time()
        async with bench.sampler.running():
            [load] = bench.send(WeightsOffered(step=3, digest="w", weights=payload_of(b""))).effects
            [loaded] = await bench.sampler.perform(load, Performing(attempt=1, report=report))
        assert loaded == WeightsLoaded(step=3, replica="sampler", digest="w", seconds=305.0)
        assert said == [(start_s + 65.0, 1, 3), (start_s + 245.0, 2, 3)]

    run_virtual(main)


def test_a_replica_that_missed_weights_loads_only_those_that_were_offered_last(tmp_path: Path) -> None:
    engine = LoadingEngine()
    bench = Bench(tmp_path, engine=engine)
    loads = [load for step in range(3) for load in bench.send(offered(step)).effects]

    async def main() -> None:
        async with bench.sampler.running():
            answers = [event for load in loads for event in await performed(bench, load)]
        assert [(type(event), event.step) for event in answers] == [(WeightsLoaded, 2)]  # pyright: ignore

    trio.run(main)
    assert engine.loaded == ["w2"]


def test_a_replica_whose_weights_are_gone_samples_nothing_before_it_has_others(tmp_path: Path) -> None:
    engine = LoadingEngine()
    bench = Bench(tmp_path, engine=engine)
    [lost] = bench.send(offered(1, gone=True)).effects
    [sample, _] = bench.ready("s0.t0").effects

    async def main() -> None:
        async with bench.sampler.running():
            assert engine.loaded == []
            assert await performed(bench, lost) == []
            assert await performed(bench, sample) == []
            [load] = bench.send(offered(2)).effects
            assert len(await performed(bench, load)) == 1
            with pytest.raises(AssertionError, match="is sampled by the weights w2"):
                await performed(bench, sample)

    trio.run(main)
    assert engine.loaded == ["w2"]


def test_replicas_share_the_trials_by_index(tmp_path: Path) -> None:
    shares = [set(Bench(tmp_path, name=n, replicas=2).state.trials) for n in ("sampler", "sampler1")]
    assert shares == [{"s0.t0"}, {"s0.t1"}]


def test_a_model_with_too_few_positions_for_the_configuration_ends_the_run_at_once(tmp_path: Path) -> None:
    config = cfg.resolve(preset="smoke", sets=["rollout.max_ids=100000"]).config
    with pytest.raises(Unrecoverable, match="max_ids"):
        Sampler(ActorContext("sampler", tmp_path, config, MemoryBlobs(), 1, lambda: 0.0))


def test_a_turns_seed_is_a_function_of_trial_and_turn_alone() -> None:
    assert turn_seed(7, 0) == turn_seed(7, 0)
    assert len({turn_seed(trial, turn) for trial in range(20) for turn in range(20)}) == 400
    assert all(0 <= turn_seed(trial, 0) < 2**63 for trial in range(100))


def test_after_a_summary_the_next_call_begins_a_chunk_of_its_own(bench: Bench) -> None:
    bench.ready("s0.t0")
    bench.sampled("s0.t0", 0)
    before = bench.state.trials["s0.t0"]
    assert len(before.ids) == 4

    def sampled(turn: int, compaction: Literal["summary", "start"], rows: int) -> Decision:
        own = TurnSampled(
            trial="s0.t0",
            turn=turn,
            context_ids=(1, 2),
            sampled_ids=(3, 4),
            logprobs=(-0.1, -0.2),
            routing=Tensor(dtype="uint8", shape=(rows, 2, 2), data=EMPTY),
            versions=(),
            temperature=1.0,
            finish="stop",
            command="made a",
            execute=compaction == "start",
            canonical=True,
            compaction=compaction,
        )
        bench.state = bench.sampler.fold(bench.state, own)
        return bench.finished("s0.t0", turn)

    bench.send(executed("s0.t0", 0))
    bench.send(BarrierOpened(step=0))
    [goes_on] = sampled(1, "summary", 4).effects
    assert goes_on.key == "s0.t0/2/sample"
    assert bench.state.trials["s0.t0"].summary == "made a"
    assert bench.state.sampling == {"s0.t0": 2}, "the barrier waits"
    answered = sampled(2, "start", 3)
    assert list(answered.events) == [GenerationQuiesced(step=0, replica="sampler")]
    trial = bench.state.trials["s0.t0"]
    assert (len(trial.ids), trial.rows, trial.summary) == (4, 3, None)
