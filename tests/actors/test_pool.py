"""The pool's decisions: what is run, what is sealed, and that every sandbox is given back, whatever becomes of its trial."""

from pathlib import Path

import pytest

from t1actors import config as cfg
from t1actors.actors.pool import Create, Pool, PoolState, Reap, Reclaim, Run, Seal
from t1actors.events import (
    ActorStarted,
    AnyEvent,
    EffectFinished,
    EffectIntended,
    EffectStatus,
    EpisodeEnded,
    Payload,
    SandboxReclaimed,
    SandboxSealed,
    StepOpened,
    Tensor,
    TimerFired,
    TrialCancelled,
    TrialFailed,
    TrialReplaced,
    TrialSpec,
    TurnSampled,
)
from t1actors.log.blobs import MemoryBlobs
from t1actors.runtime.actor import NOTHING, ActorContext, Decision, Wait

EMPTY = Payload(digest="00", size_bytes=0, inline=b"")


def turn(trial: str, number: int = 0, *, execute: bool = True) -> TurnSampled:
    return TurnSampled(
        trial=trial,
        turn=number,
        context_ids=(1,),
        sampled_ids=(2,),
        logprobs=(-0.1,),
        routing=Tensor(dtype="uint8", shape=(1, 2, 2), data=EMPTY),
        versions=(),
        temperature=1.0,
        finish="stop",
        command="ls",
        execute=execute,
        canonical=True,
    )


class Bench:
    """A pool fed by hand, with the runtime's part: intents are folded after the decision that made them."""

    def __init__(self, tmp_path: Path) -> None:
        config = cfg.resolve(preset="smoke").config
        self.pool = Pool(ActorContext("pool", tmp_path, config, MemoryBlobs(), 1, lambda: 0.0))
        self.state: PoolState = self.pool.initial()
        spec = TrialSpec(trial="s0.t0", index=0, task="l1-100000000", seed=0, turn_limit=3)
        self.send(
            StepOpened(
                step=0, purpose="train", version="v", version_index=0, batch_size=1, temperature=1.0, trials=(spec,)
            )
        )

    def send(self, event: AnyEvent) -> Decision:
        self.state = self.pool.fold(self.state, event)
        decision = self.pool.decide(self.state, event)
        for out in decision.events:
            self.state = self.pool.fold(self.state, out)
        for effect in decision.effects:
            intent = EffectIntended(key=effect.key, effect_kind=type(effect).__name__, effect=b"")
            self.state = self.pool.fold(self.state, intent)
        return decision

    def finished(self, what: str, *results: AnyEvent, status: EffectStatus = "done") -> Decision:
        for result in results:
            self.state = self.pool.fold(self.state, result)
        return self.send(EffectFinished(key=f"s0.t0/{what}", status=status, seconds=1.0))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def failed(cause: str = "SandboxDied") -> TrialFailed:
    return TrialFailed(trial="s0.t0", cause=cause)


def cancelled() -> TrialCancelled:
    return TrialCancelled(trial="s0.t0", step=0, cause="batch complete")


def test_a_trial_lives_from_creation_over_commands_to_its_seal_and_is_reclaimed_once(bench: Bench) -> None:
    bench.finished("create")
    [run] = bench.send(turn("s0.t0")).effects
    assert isinstance(run, Run)
    assert not bench.finished("0/run").effects
    assert not bench.send(turn("s0.t0", 1, execute=False)).effects
    [seal] = bench.send(EpisodeEnded(trial="s0.t0", reason="submitted", turns=2)).effects
    assert isinstance(seal, Seal)
    [reclaim] = bench.finished("seal", SandboxSealed(trial="s0.t0", task="t", layer=EMPTY, seconds=0.0)).effects
    assert isinstance(reclaim, Reclaim)
    assert not bench.finished("kill", SandboxReclaimed(trial="s0.t0", seconds=0.0)).effects
    assert not bench.send(cancelled()).effects


def test_a_trial_cancelled_while_it_is_created_is_reclaimed_after_the_creation_stopped(bench: Bench) -> None:
    decision = bench.send(cancelled())
    assert list(decision.cancels) == ["s0.t0/create", "s0.t0/trial"]
    assert not decision.effects
    [reclaim] = bench.finished("create", status="cancelled").effects
    assert isinstance(reclaim, Reclaim)


def test_a_late_turn_of_a_cancelled_trial_runs_nothing(bench: Bench) -> None:
    bench.finished("create")
    [reclaim] = bench.send(cancelled()).effects
    assert isinstance(reclaim, Reclaim)
    assert not bench.send(turn("s0.t0")).effects
    assert not bench.send(EpisodeEnded(trial="s0.t0", reason="submitted", turns=1)).effects


def test_a_failed_command_gives_the_sandbox_back(bench: Bench) -> None:
    bench.finished("create")
    bench.send(turn("s0.t0"))
    [reclaim] = bench.finished("0/run", failed()).effects
    assert isinstance(reclaim, Reclaim)


def test_a_trial_that_another_actor_gives_up_is_reclaimed(bench: Bench) -> None:
    bench.finished("create")
    [reclaim] = bench.send(failed("task")).effects
    assert isinstance(reclaim, Reclaim)


def test_a_deadline_is_infrastructure_and_gives_the_sandbox_back(bench: Bench) -> None:
    decision = bench.finished("create", status="deadline")
    [event] = decision.events
    assert isinstance(event, TrialFailed)
    assert "create" in event.detail
    [reclaim] = decision.effects
    assert isinstance(reclaim, Reclaim)


def test_a_replacement_gets_a_sandbox_of_its_own(bench: Bench) -> None:
    spec = TrialSpec(trial="s0.t1", index=1, task="l1-100000000", seed=1, turn_limit=3)
    replaced = TrialReplaced(step=0, temperature=1.0, failed="s0.t0", cause="infra", replacement=spec)
    [create] = bench.send(replaced).effects
    assert isinstance(create, Create)
    assert create.key == "s0.t1/create"


def test_a_trial_that_is_not_sealed_in_time_ends_as_infrastructure_with_all_that_is_under_way(bench: Bench) -> None:
    [wait] = bench.finished("create").effects
    assert isinstance(wait, Wait)
    bench.send(turn("s0.t0"))
    decision = bench.send(TimerFired(key=wait.key, due_s=1.0))
    [event] = decision.events
    assert isinstance(event, TrialFailed)
    assert (event.cause, event.creating) == ("deadline", False)
    assert "s0.t0/0/run" in decision.cancels
    [reclaim] = bench.finished("0/run", status="cancelled").effects
    assert isinstance(reclaim, Reclaim)


def test_the_timer_of_a_trial_that_is_over_is_stopped_and_means_nothing_any_more(bench: Bench) -> None:
    bench.finished("create")
    bench.send(EpisodeEnded(trial="s0.t0", reason="submitted", turns=0))
    decision = bench.finished("seal", SandboxSealed(trial="s0.t0", task="t", layer=EMPTY, seconds=0.0))
    assert list(decision.cancels) == ["s0.t0/trial"]
    assert bench.finished("trial", status="cancelled") == NOTHING
    assert bench.send(TimerFired(key="s0.t0/trial", due_s=1.0)) == NOTHING


def test_a_pool_that_starts_says_what_an_earlier_one_left(bench: Bench) -> None:
    def started(actor: str) -> ActorStarted:
        return ActorStarted(actor=actor, journal=actor, epoch=2, pid=1)

    assert bench.send(started("sampler")) == NOTHING
    [reap] = bench.send(started("pool")).effects
    assert isinstance(reap, Reap)
    assert bench.send(EffectFinished(key=reap.key, status="done", seconds=0.1)) == NOTHING
    assert not bench.state.open.keys() - {"s0.t0"}
