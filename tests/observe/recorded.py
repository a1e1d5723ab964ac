"""A made-up run, written to a log the way the actors write theirs: contiguous inputs, transitive vectors, wall times.

Small and regular, so that every figure in a report of it can be worked out by hand: each batch has two trials of 12 ids
(6 sampled); the reward of a trial is passed / 20.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import blake3

from t1actors import config
from t1actors.events import (
    ActorReady,
    ActorStarted,
    ActorUpdated,
    AnyEvent,
    AssertionResult,
    BatchItem,
    BatchSealed,
    Boundary,
    CriticUpdated,
    EffectFinished,
    EffectIntended,
    EpisodeEnded,
    Graded,
    Isolation,
    Payload,
    ProgressReported,
    RunFinished,
    RunStarted,
    RunStopped,
    SandboxReady,
    SandboxReclaimed,
    SandboxRequested,
    SandboxSealed,
    StepOpened,
    Tensor,
    TrajectoryAssembled,
    TrialFailed,
    TrialSpec,
    TurnExecuted,
    TurnSampled,
    ValuesEstimated,
    VersionSpan,
    WeightsPublished,
    encode,
)
from t1actors.log.blobs import MemoryBlobs
from t1actors.log.frame import CommitHead, InputRun
from t1actors.log.interface import Log
from t1actors.tito.record import Chunk, TokenSpan, TrajectoryRecord
from t1actors.tito.stored import store
from t1actors.train.batch import batch_digest

READS = {
    "supervisor": (),
    "publisher": ("supervisor", "assembler", "critic", "actor"),
    "pool": ("supervisor", "publisher", "sampler"),
    "sampler": ("supervisor", "publisher", "pool"),
    "verifier": ("supervisor", "pool"),
    "assembler": ("supervisor", "publisher", "sampler", "pool", "verifier"),
    "critic": ("supervisor", "assembler"),
    "actor": ("supervisor", "assembler", "critic"),
}
ACTORS = tuple(name for name in READS if name != "supervisor")
START_NS = 1_800_000_000_000_000_000
SCALE = 20


def payload(data: bytes) -> Payload:
    return Payload(digest=blake3.blake3(data).hexdigest(), size_bytes=len(data), inline=data)


def tensor(name: str, *shape: int) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    return Tensor(dtype=name, shape=shape, data=payload(bytes(count * {"uint8": 1, "float32": 4}[name])))


class Recorder:
    """Writes events to the journals of ``log``; the clock moves only by ``seconds``."""

    def __init__(self, log: Log) -> None:
        self.now_ns = START_NS
        self._writers = {name: log.open_writer(name) for name in READS}
        self.change: Callable[[AnyEvent], AnyEvent] = lambda event: event
        """For tests that break a run: what is really written in place of an event."""
        self._read = {name: dict.fromkeys(sources, 0) for name, sources in READS.items()}

    def emit(self, journal: str, *events: AnyEvent, seconds: float = 0.0) -> None:
        """One frame of ``journal``, ``seconds`` after the last one: it has read all there is."""
        self.now_ns += round(seconds * 1e9)
        read = self._read[journal]
        runs: list[InputRun] = []
        for source in read:
            end = self._writers[source].next_sequence
            if end > read[source]:
                runs.append(InputRun(source, read[source], end - 1))
                read[source] = end
        if runs:
            runs[-1] = InputRun(runs[-1].journal, runs[-1].first, runs[-1].last, len(events))
        vector = {name: w.next_sequence - 1 for name, w in self._writers.items() if w.next_sequence and name != journal}
        head = CommitHead(inputs=tuple(runs), vector=vector, code="test", wall_ns=self.now_ns)
        self._writers[journal].append(head, [encode(self.change(event)) for event in events])

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def start(recorder: Recorder, run: str = "demo-run", sets: Sequence[str] = ()) -> None:
    """RunStarted, and every actor started and ready. The plan: one recalibration, two training steps, evaluations."""
    plan = ["schedule.recalibrate_steps=1", "schedule.train_steps=2", "rollout.batch_size=2", "rollout.oversample=0"]
    resolved = config.resolve(sets=[*plan, *sets]).config
    recorder.emit(
        "supervisor",
        RunStarted(
            run=run,
            config_digest=config.digest(resolved),
            config_toml=config.to_toml(resolved),
            code_version="0.1.0",
            environment={"python": "3.11"},
        ),
    )
    for n, name in enumerate(ACTORS):
        recorder.emit("supervisor", ActorStarted(actor=name, journal=name, epoch=1, pid=100 + n))
        recorder.emit("supervisor", ActorReady(actor=name, epoch=1, seconds=0.5, rss_bytes=10_000_000), seconds=0.5)
    recorder.emit("publisher", WeightsPublished(version="version-0", version_index=0, size_bytes=7, seconds=0.1))


def open_step(recorder: Recorder, step: int, purpose: str, *, version: int = 0, temperature: float = 1.0) -> None:
    trials = tuple(TrialSpec(trial=f"s{step}.t{n}", index=n, task=f"task-{n}", seed=n, turn_limit=4) for n in range(2))
    recorder.emit(
        "publisher",
        StepOpened(
            step=step,
            purpose=purpose,
            version=f"version-{version}",
            version_index=version,
            batch_size=2,
            temperature=temperature,
            trials=trials,
        ),
        seconds=0.5,
    )


def sampled(trial: str, turn: int, *, version: int, temperature: float = 1.0) -> TurnSampled:
    """Turn 0 adds 3 ids of context and 3 sampled (5 rows), a later one the same with 6 rows: rows are ids - 1."""
    return TurnSampled(
        trial=trial,
        turn=turn,
        context_ids=(1, 2, 3),
        sampled_ids=(4, 5, 6),
        logprobs=(-0.1, -0.2, -0.3),
        routing=tensor("uint8", 5 if turn == 0 else 6, 2, 2),
        versions=(VersionSpan(version=f"version-{version}", start=0, end=3),),
        temperature=temperature,
        finish="stop",
        command="ls",
        execute=turn == 0,
        canonical=True,
        entropy_mean=0.5,
        replica="sampler",
        queue_s=0.01,
        prefill_s=0.02,
        decode_s=0.03,
    )


def run_trial(recorder: Recorder, trial: str, *, passed: int, version: int, temperature: float = 1.0) -> None:
    """Two turns, four expected assertions, graded and reclaimed. Takes one second."""
    isolation = Isolation(backend="namespaces")
    recorder.emit(
        "pool",
        SandboxRequested(trial=trial, task="task"),
        EffectIntended(key=f"{trial}/create", effect_kind="Create", effect=b"\x80", deadline_s=30.0),
    )
    recorder.emit(
        "pool",
        SandboxReady(
            trial=trial,
            task_digest="d",
            instruction="do",
            isolation=isolation,
            token_wait_s=0.1,
            slot_wait_s=0.2,
            image_wait_s=0.0,
            create_s=0.05,
        ),
        EffectFinished(key=f"{trial}/create", status="done", seconds=0.05),
        seconds=0.1,
    )
    for turn in range(2):
        key = f"{trial}/{turn}/sample"
        recorder.emit("sampler", EffectIntended(key=key, effect_kind="Sample", effect=b"\x80", deadline_s=3600.0))
        turn_sampled = sampled(trial, turn, version=version, temperature=temperature)
        ended = [EpisodeEnded(trial=trial, reason="submitted", turns=2)] if turn == 1 else []
        recorder.emit("sampler", turn_sampled, EffectFinished(key=key, status="done", seconds=0.1), *ended, seconds=0.2)
        if turn == 0:
            recorder.emit(
                "pool", TurnExecuted(trial=trial, turn=0, observation="ok", exit_code=0, seconds=0.1), seconds=0.1
            )
    layer = payload(trial.encode())
    recorder.emit("pool", SandboxSealed(trial=trial, task="task", layer=layer, seconds=0.1), seconds=0.1)
    recorder.emit("pool", SandboxReclaimed(trial=trial, seconds=0.01))
    recorder.emit(
        "verifier",
        Graded(
            trial=trial,
            task="task",
            outcome="graded",
            assertions=tuple(AssertionResult(id=f"a{n}", passed=n < passed) for n in range(4)),
            passed=passed,
            expected=4,
            reward=passed / SCALE,
            layer_digest=layer.digest,
            tests_digest="t",
            tools_digest="t",
            isolation=isolation,
            seconds=0.2,
        ),
        seconds=0.3,
    )


def record(trial: str, index: int) -> TrajectoryRecord:
    """What the two turns of a trial add up to."""
    turns = (3, 6), (9, 12)
    mask = bytes(any(first <= n < end for first, end in turns) for n in range(12))
    logprobs = [0.0, 0.0, 0.0, -0.1, -0.2, -0.3] * 2
    chunk = Chunk(
        ids=struct.pack("<12i", *([1, 2, 3, 4, 5, 6] * 2)),
        mask=mask,
        logprobs=struct.pack("<12f", *logprobs),
        routing=bytes(11 * 2 * 2),
        routing_dtype="uint8",
        routing_shape=(11, 2, 2),
        versions=tuple(TokenSpan(version="version-0", start=first, end=end) for first, end in turns),
        turns=turns,
    )
    return TrajectoryRecord(trial=trial, index=index, task="task", temperature=1.0, chunks=(chunk,))


def seal(recorder: Recorder, step: int, purpose: str, passed: Sequence[int]) -> None:
    assembled = [
        TrajectoryAssembled(
            trial=f"s{step}.t{n}",
            step=step,
            index=n,
            task=f"task-{n}",
            record=store(record(f"s{step}.t{n}", n), MemoryBlobs()).record,
            reward=count / SCALE,
            ids=12,
            sampled=6,
            turns=2,
            chunks=1,
            boundaries=(Boundary(turn=1, case="STRICT"),),
            drift_in_loss=0,
            non_canonical_turns=0,
            end_reason="submitted",
        )
        for n, count in enumerate(passed)
    ]
    items = tuple(
        BatchItem(trial=a.trial, index=a.index, trajectory_digest=a.record.digest, reward=a.reward) for a in assembled
    )
    recorder.emit("assembler", *assembled, seconds=0.1)
    sealed = BatchSealed(
        step=step,
        purpose=purpose,
        items=items,
        digest=batch_digest((i.trajectory_digest, i.reward) for i in items),
        launched=2,
        failed=0,
        cancelled=0,
    )
    recorder.emit("assembler", sealed)


def critic(recorder: Recorder, step: int, *, variance: float = 0.25) -> None:
    recorder.emit(
        "critic",
        ValuesEstimated(
            step=step,
            values=tensor("float32", 12),
            values_digest="v",
            explained_variance=variance,
            seconds=0.5,
        ),
        seconds=0.5,
    )
    recorder.emit(
        "critic",
        CriticUpdated(
            step=step,
            weights_before="a",
            weights_after="b",
            optimizer_after="c",
            loss=0.1,
            loss_digest="d",
            gradient_digest="e",
            gradient_norm=1.0,
            explained_variance=variance + 0.1,
            state=payload(b"critic state"),
            snapshot=False,
            seconds=1.0,
        ),
        seconds=1.0,
    )


def actor(
    recorder: Recorder,
    step: int,
    *,
    staleness: int,
    engine_gap: float = 1e-6,
    clip: float = 0.0,
    behaviour: str = "version-0",
) -> None:
    recorder.emit(
        "actor",
        ActorUpdated(
            step=step,
            weights_before="a",
            weights_after=f"version-{step}",
            optimizer_after="c",
            behaviour_version=behaviour,
            staleness=staleness,
            weights=payload(b"weights"),
            state=payload(b"actor state"),
            snapshot=True,
            old_logprobs_digest="o",
            loss=0.01,
            loss_digest="l",
            gradient_digest="g",
            gradient_norm=0.5,
            gap_mean=2 * engine_gap,
            gap_max=20 * engine_gap,
            engine_gap_mean=engine_gap,
            engine_gap_max=10 * engine_gap,
            policy_movement_mean=1e-3,
            policy_movement_max=1e-2,
            ratio_mean=1.0,
            ratio_max=1.1,
            clip_share=clip,
            kl=1e-4,
            entropy=0.5,
            tokens=tensor("float32", 5, 12),
            seconds=1.5,
        ),
        seconds=0.5,
    )


def whole_run(recorder: Recorder) -> None:
    """Evaluate (1 and 2 of 4 passed), greedy (2, 2), recalibrate (1, 1), train (1, 1) and (2, 4),
    evaluate (3, 4), greedy (4, 4)."""
    start(recorder)
    plan = [
        ("evaluate", 1.0, (1, 2)),
        ("evaluate", 0.0, (2, 2)),
        ("recalibrate", 1.0, (1, 1)),
        ("train", 1.0, (1, 1)),
        ("train", 1.0, (2, 4)),
        ("evaluate", 1.0, (3, 4)),
        ("evaluate", 0.0, (4, 4)),
    ]
    staleness = 0
    for step, (purpose, temperature, passed) in enumerate(plan):
        open_step(recorder, step, purpose, temperature=temperature, version=min(2, max(0, step - 3)))
        for n, count in enumerate(passed):
            trial = f"s{step}.t{n}"
            run_trial(recorder, trial, passed=count, version=min(2, max(0, step - 3)), temperature=temperature)
        seal(recorder, step, purpose, passed)
        if purpose != "evaluate":
            critic(recorder, step)
        if purpose == "train":
            actor(recorder, step, staleness=staleness, behaviour=f"version-{max(0, step - 3)}")
            staleness = 1
            recorder.emit(
                "publisher",
                WeightsPublished(version=f"version-{step - 2}", version_index=step - 2, size_bytes=7, seconds=0.1),
                seconds=0.1,
            )
    recorder.emit("publisher", RunFinished(steps=7, version="version-2"), seconds=0.1)
    recorder.emit("supervisor", RunStopped(reason="finished", cpu_s=12.5), seconds=0.1)


def half_a_run(recorder):
    """In the middle of a training step: one trial failed, one graded, the actor's training reports its progress."""
    start(recorder)
    open_step(recorder, 0, "evaluate")
    for n in range(2):
        run_trial(recorder, f"s0.t{n}", passed=n + 1, version=0)
    seal(recorder, 0, "evaluate", [1, 2])
    open_step(recorder, 1, "train")
    run_trial(recorder, "s1.t0", passed=1, version=0)
    recorder.emit("pool", TrialFailed(trial="s1.t1", cause="SandboxDied", detail="gone"))
    recorder.emit("actor", EffectIntended(key="step/0/actor", effect_kind="Update", effect=b"\x80"))
    recorder.emit("actor", ProgressReported(key="step/0/actor", done=2, total=4, unit="batches"))
