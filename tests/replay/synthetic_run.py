"""A run without actors: its log and blobs, written by the train functions as the critic and the actor would.

Steps: evaluate, warm-up x2, recalibrate x1, train x4 (staleness 0, 1, 1, 1). Trajectories lie in the blob store whatever
their size, so that a test can damage one. Blobs go as in a real run: with ``sweep`` only snapshots and the last two
states stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from t1actors.actors.training import Retention, snapshot_due
from t1actors.config import Config, RolloutConfig, to_toml
from t1actors.events import (
    ActorInitialised,
    ActorUpdated,
    AnyEvent,
    BatchItem,
    BatchSealed,
    CriticInitialised,
    CriticUpdated,
    Payload,
    Purpose,
    RunStarted,
    StepOpened,
    TrajectoryAssembled,
    ValuesEstimated,
    WeightsOffered,
    encode,
)
from t1actors.log.frame import CommitHead
from t1actors.log.interface import JournalWriter, Log
from t1actors.models.checkpoint import weights_digest, weights_from_bytes, weights_to_bytes
from t1actors.payloads import Blobs, pack, pack_array, unpack
from t1actors.tito.record import TrajectoryRecord
from t1actors.tito.stored import store
from t1actors.train.actor_step import staleness
from t1actors.train.batch import Batch, batch_digest
from t1actors.train.crew import Crew
from t1actors.train.digests import encode_detail
from t1actors.train.environment import environment
from t1actors.train.lanes import actor_lane, critic_drops_moments
from t1actors.train.networks import geometry_of, working_weights
from t1actors.train.state import TrainerState, to_bytes
from tests.train.tiny_batches import TRAIN, critic_state, policy_state, record, tiny_policy

PURPOSES: tuple[Purpose, ...] = (
    "evaluate", "warmup", "warmup", "recalibrate", "train", "train", "train", "train",
)  # fmt: skip
TRAINED = tuple(n for n, purpose in enumerate(PURPOSES) if purpose != "evaluate")
TRIALS = 5
CONFIG = replace(
    Config(), rollout=RolloutConfig(batch_size=TRIALS), train=replace(TRAIN, snapshot_every=2, micro_batch_ids=40)
)


@dataclass
class Journals:
    """Writers that see everything written before: one frame an event, resting on all that came earlier."""

    log: Log
    writers: dict[str, JournalWriter] = field(default_factory=dict)

    def emit(self, journal: str, *events: AnyEvent) -> None:
        if journal not in self.writers:
            self.writers[journal] = self.log.open_writer(journal)
        vector = {n: w.next_sequence - 1 for n, w in self.writers.items() if n != journal and w.next_sequence > 0}
        self.writers[journal].append(CommitHead(vector=vector), [encode(event) for event in events])

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


def write_run(log: Log, blobs: Blobs, *, sweep: bool = True, config: Config = CONFIG, crew: Crew | None = None) -> None:
    """``crew``: the processes that compute the steps; None: this one."""
    crew = crew or Crew(1, what="the run's crew")
    journals = Journals(log)
    journals.emit(
        "supervisor",
        RunStarted(run="synthetic", config_digest="", config_toml=to_toml(config), code_version="", environment={}),
    )
    policy, sampler = tiny_policy(), tiny_policy()
    critic, critic_now = critic_state(policy)
    initial = policy_state(policy)
    initial_weights = working_weights(policy, initial.weights)
    critic_blobs, actor_blobs = Retention(), Retention()
    critic_first = pack(blobs, to_bytes(critic_now))
    critic_blobs.add(critic_first, snapshot=True)
    journals.emit(
        "critic",
        CriticInitialised(
            weights=weights_digest(working_weights(critic, critic_now.weights)),
            state=critic_first,
            environment={k: str(v) for k, v in environment().items()},
        ),
    )
    first_version = weights_digest(initial_weights)
    weights: dict[str, Payload] = {first_version: pack(blobs, weights_to_bytes(initial_weights))}
    actor_first = pack(blobs, to_bytes(initial))
    actor_blobs.add(actor_first, weights[first_version], snapshot=True)
    journals.emit(
        "actor",
        ActorInitialised(
            version=first_version,
            weights=weights[first_version],
            state=actor_first,
            environment={k: str(v) for k, v in environment().items()},
        ),
    )
    journals.emit("publisher", WeightsOffered(step=-1, digest=first_version, weights=weights[first_version]))
    lanes: dict[str, list[tuple[str, TrainerState]]] = {}
    previous: Purpose | None = None
    critic_updates = 0
    index: dict[str, int] = {}
    for step, purpose in enumerate(PURPOSES):
        # A step is sampled by the version before the last update: 0 steps old for a lane's first two, then 1.
        lane = lanes.setdefault(actor_lane(purpose) or "train", [(first_version, initial)])
        version = lane[max(0, len(lane) - 2)][0]
        index[version] = max(0, len(lane) - 2)
        sampler.load_weights(weights_from_bytes(unpack(blobs, weights[version])))
        temperature = 0.0 if purpose == "evaluate" else 1.0
        records = [_record(sampler, step, n, temperature) for n in range(TRIALS)]
        rewards = [((7 * step + 3 * n) % 11) / 10 for n in range(TRIALS)]
        _emit_batch(journals, blobs, step, purpose, version, index[version], records, rewards, temperature)
        if purpose == "evaluate":
            continue
        batch = Batch.of(zip(records, rewards, strict=True), geometry_of(policy))
        if critic_drops_moments(previous, purpose):
            critic_now = critic_now.without_moments()
        values = crew.estimate_values(critic, critic_now, batch, config.train)
        journals.emit(
            "critic",
            ValuesEstimated(
                step=step,
                values=pack_array(blobs, values.values_T),
                values_digest=values.digest,
                explained_variance=values.explained_variance,
                seconds=0.0,
            ),
        )
        result = crew.critic_step(
            critic, critic_now, batch, values.values_T, config.train, seed=config.run.seed, step=step
        )
        critic_now = result.state
        event = _critic_event(blobs, step, result, snapshot_due(critic_updates, config.train.snapshot_every))
        journals.emit("critic", event)
        critic_blobs.add(event.state, snapshot=event.snapshot)
        critic_updates += 1
        if actor_lane(purpose) is not None:
            own, state = lane[-1]
            behaviours = {v: weights_from_bytes(unpack(blobs, weights[v])) for v in batch.versions if v != own}
            trained = crew.actor_step(
                policy, state, behaviours, batch, values.values_T, config.train, seed=config.run.seed, step=step
            )
            behaviour, stale = staleness(batch, index, len(lane) - 1)
            updated = _actor_event(
                blobs, step, trained, snapshot_due(len(lane) - 1, config.train.snapshot_every), behaviour, stale
            )
            journals.emit("actor", updated)
            actor_blobs.add(updated.state, updated.weights, snapshot=updated.snapshot)
            weights[updated.weights_after] = updated.weights
            lane.append((updated.weights_after, trained.state))
        previous = purpose
        if sweep:
            critic_blobs.sweep(blobs)
            actor_blobs.sweep(blobs)
    journals.close()


def _record(sampler, step: int, index: int, temperature: float) -> TrajectoryRecord:
    made = record(sampler, f"s{step}.t{index}", index, seed=step * 100 + index, temperature=temperature or 1.0)
    return made if temperature else TrajectoryRecord(**{**_fields(made), "temperature": 0.0})


def _fields(made: TrajectoryRecord) -> dict:
    return {name: getattr(made, name) for name in ("trial", "index", "task", "temperature", "chunks")}


def _emit_batch(journals, blobs, step, purpose, version, version_index, records, rewards, temperature) -> None:
    journals.emit(
        "publisher",
        StepOpened(
            step=step,
            purpose=purpose,
            version=version,
            version_index=version_index,
            batch_size=len(records),
            temperature=temperature,
            trials=(),
        ),
    )
    items = []
    for made, reward in zip(records, rewards, strict=True):
        stored = store(made, blobs)
        payload, digest = stored.record, stored.record.digest
        if payload.inline is not None:  # it is to be a blob although it is small
            payload = Payload(digest=blobs.put(payload.inline), size_bytes=payload.size_bytes)
        items.append(BatchItem(trial=made.trial, index=made.index, trajectory_digest=digest, reward=reward))
        journals.emit(
            "assembler",
            TrajectoryAssembled(
                trial=made.trial,
                step=step,
                index=made.index,
                task=made.task,
                record=payload,
                reward=reward,
                ids=0,
                sampled=0,
                turns=2,
                chunks=1,
                boundaries=(),
                drift_in_loss=0,
                non_canonical_turns=0,
                end_reason="submitted",
                pages=stored.pages,
            ),
        )
    journals.emit(
        "assembler",
        BatchSealed(
            step=step,
            purpose=purpose,
            items=tuple(items),
            digest=batch_digest((item.trajectory_digest, item.reward) for item in items),
            launched=len(items),
            failed=0,
            cancelled=0,
        ),
    )


def _critic_event(blobs, step, result, snapshot) -> CriticUpdated:
    report = result.report
    return CriticUpdated(
        step=step,
        weights_before=report.weights_before,
        weights_after=report.weights_after,
        optimizer_after=report.optimizer_after,
        loss=report.loss,
        loss_digest=report.loss_digest,
        gradient_digest=report.gradient_digest,
        gradient_norm=report.gradient_norm,
        explained_variance=report.explained_variance,
        state=pack(blobs, to_bytes(result.state)),
        snapshot=snapshot,
        seconds=0.0,
        detail=pack(blobs, encode_detail(report.detail)),
    )


def _actor_event(blobs, step, result, snapshot, behaviour, stale) -> ActorUpdated:
    report = result.report
    return ActorUpdated(
        step=step,
        weights_before=report.weights_before,
        weights_after=report.weights_after,
        optimizer_after=report.optimizer_after,
        behaviour_version=behaviour,
        staleness=stale,
        weights=pack(blobs, weights_to_bytes(result.weights)),
        state=pack(blobs, to_bytes(result.state)),
        snapshot=snapshot,
        old_logprobs_digest=report.old_logprobs_digest,
        loss=report.loss,
        loss_digest=report.loss_digest,
        gradient_digest=report.gradient_digest,
        gradient_norm=report.gradient_norm,
        gap_mean=report.gap.total_mean,
        gap_max=report.gap.total_max,
        engine_gap_mean=report.gap.engine_mean,
        engine_gap_max=report.gap.engine_max,
        policy_movement_mean=report.gap.movement_mean,
        policy_movement_max=report.gap.movement_max,
        ratio_mean=report.ratio_mean,
        ratio_max=report.ratio_max,
        clip_share=report.clip_share,
        kl=report.kl,
        entropy=report.entropy,
        tokens=pack_array(blobs, report.tokens),
        seconds=0.0,
        detail=pack(blobs, encode_detail(report.detail)),
    )
