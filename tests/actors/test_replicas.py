"""Which replica samples a trial, and what becomes of the trials of one that is given up."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t1actors import config as cfg
from t1actors.actors.publisher import Publisher
from t1actors.actors.replicas import owner, replica_names
from t1actors.events import (
    ActorInitialised,
    AnyEvent,
    BarrierOpened,
    CriticInitialised,
    EpisodeEnded,
    GenerationQuiesced,
    Payload,
    ReplicaReclaimed,
    RunStarted,
    StepOpened,
    TrialFailed,
    TrialReplaced,
    TrialSpec,
    WeightsLoaded,
    WeightsOffered,
    WeightsPublished,
)
from t1actors.log.blobs import MemoryBlobs
from t1actors.runtime.actor import ActorContext


@given(st.integers(0, 10_000), st.integers(1, 8), st.data())
def test_every_trial_has_one_owner_that_is_not_reclaimed_and_the_others_keep_theirs(index, count, data):
    names = replica_names(count)
    reclaimed = data.draw(st.sets(st.sampled_from(names), max_size=count - 1))
    found = owner(index, count, reclaimed)
    assert found in set(names) - reclaimed
    if owner(index, count, ()) not in reclaimed:
        assert found == owner(index, count, ())


def test_without_any_replica_nobody_owns_a_trial():
    with pytest.raises(ValueError, match="all 2 replicas are reclaimed"):
        owner(0, 2, ("sampler", "sampler1"))


class Played:
    """A publisher with two replicas, fed by hand; ``said`` is all that it has said."""

    def __init__(self, tmp_path: Path) -> None:
        sets = (
            "schedule.evaluate=false",
            "rollout.sampler_replicas=2",
            "rollout.batch_size=4",
            "rollout.oversample=0.0",
        )
        config = cfg.resolve(preset="smoke", sets=sets).config
        self.publisher = Publisher(ActorContext("publisher", tmp_path, config, MemoryBlobs(), 1, lambda: 0.0))
        self.state = self.publisher.initial()
        self.said: list[AnyEvent] = []
        payload = Payload(digest="v0", size_bytes=1, inline=b"w")
        self.hear(CriticInitialised(weights="c0", state=payload))
        self.hear(ActorInitialised(version="v0", weights=payload, state=payload))

    def hear(self, event: AnyEvent) -> list[AnyEvent]:
        self.state = self.publisher.fold(self.state, event)
        found = [*self.publisher.decide(self.state, event).events]
        for said in found:
            self.state = self.publisher.fold(self.state, said)
        self.said += found
        return found

    def answer(self, *replicas: str) -> None:
        self.quiesce(*replicas)
        self.load(*replicas)

    def quiesce(self, *replicas: str) -> None:
        [barrier] = [event for event in self.said if isinstance(event, BarrierOpened)]
        for replica in replicas:
            self.hear(GenerationQuiesced(step=barrier.step, replica=replica))

    def load(self, *replicas: str) -> None:
        for replica in replicas:
            self.hear(WeightsLoaded(step=-1, replica=replica, digest="v0", seconds=0.1))

    def opened(self) -> list[StepOpened]:
        return [event for event in self.said if isinstance(event, StepOpened)]


def reclaimed(replica: str) -> ReplicaReclaimed:
    return ReplicaReclaimed(replica=replica, reason="it died again")


def test_a_barrier_does_not_wait_for_a_replica_that_was_given_up(tmp_path: Path):
    played = Played(tmp_path)
    played.quiesce("sampler")
    assert not any(isinstance(event, WeightsOffered) for event in played.said)
    played.hear(reclaimed("sampler1"))
    assert isinstance(played.said[-1], WeightsOffered)
    played.load("sampler")
    assert any(isinstance(event, WeightsPublished) for event in played.said)
    assert all(step.reclaimed == ("sampler1",) for step in played.opened())


def test_what_a_lost_replica_was_sampling_fails_and_what_it_had_ended_does_not(tmp_path: Path):
    played = Played(tmp_path)
    played.answer("sampler", "sampler1")
    played.hear(EpisodeEnded(trial="s0.t1", reason="submitted", turns=1))
    failed = played.hear(reclaimed("sampler1"))
    assert [(event.trial, event.cause) for event in failed if isinstance(event, TrialFailed)] == [
        (f"s{step}.t{index}", "ReplicaReclaimed") for step in (0, 1) for index in (1, 3) if (step, index) != (0, 1)
    ]


def test_a_replacement_that_was_given_to_the_lost_replica_fails_at_once(tmp_path: Path):
    played = Played(tmp_path)
    played.answer("sampler", "sampler1")
    played.hear(reclaimed("sampler1"))

    def replaced(index: int) -> list[AnyEvent]:
        spec = TrialSpec(trial=f"s0.t{index}", index=index, task="l1-0", seed=1, turn_limit=3)
        return played.hear(TrialReplaced(step=0, temperature=1.0, failed="s0.t0", cause="infra", replacement=spec))

    assert [type(event) for event in replaced(5)] == [TrialFailed]
    assert replaced(6) == []


def test_a_resumed_run_has_all_its_replicas_again(tmp_path: Path):
    played = Played(tmp_path)
    played.hear(reclaimed("sampler1"))
    played.hear(
        RunStarted(run="r", config_digest="", config_toml="", code_version="", environment={}, resumed=True, session=2)
    )
    assert played.state.reclaimed == set()
