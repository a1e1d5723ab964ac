"""Every event of the system, in one file.

An event is a fact, named subject + past participle, written once to the journal of the actor that states it. All are
msgspec Structs encoded as plain MessagePack maps: the field ``kind`` names the event, ``v`` its version. New fields must
have defaults; readers ignore unknown fields and carry unknown kinds as raw bytes.

Guarantees kept here: encoding is deterministic (field order is declaration order), a decoded event equals the encoded
one, and no event carries a wall clock of its own (times live in the commit head, durations in seconds).

Shapes: N ids of a chunk, R = N - 1 routing rows, L mixture-of-experts layers, K experts per token.
"""

from __future__ import annotations

from typing import Literal, Union

import msgspec

INLINE_LIMIT_BYTES = 16 * 1024
"""Payloads below this ride in the event; larger ones are blobs."""

Purpose = Literal["warmup", "recalibrate", "train", "evaluate"]
EpisodeEnd = Literal[
    "submitted",
    "turn_limit",
    "token_limit",
    "turn_truncated",
    "deadline",
    "sandbox_limit",
    "malformed_turns",
    "compaction_failed",
    "agent_failed",
]
Compaction = Literal["", "summary", "start"]
"""summary: the call was asked to sum up its chunk, and is its last. start: the call begins a chunk, with that summary."""
Outcome = Literal["graded", "verifier_crash", "no_report", "partial_report", "verifier_timeout", "infra"]
Channel = Literal["", "plugin", "junit", "ctrf", "printed", "reward.txt"]
"""Where a verdict's results were read; empty: there was nothing to read."""
GradingMode = Literal["", "fresh-root", "same-sandbox"]
EffectStatus = Literal["done", "failed", "cancelled", "deadline"]
BoundaryCase = Literal["STRICT", "NORMALIZED", "RETOKENIZED", "SPLIT"]


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by content: ``digest`` is the blake3 hex of the bytes; ``inline`` holds them when they are small, else the
    blob store does."""

    digest: str
    size_bytes: int
    inline: bytes | None = None


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """A C-order little-endian tensor; dtype is a numpy name ("uint8", "float32"); the shape is stated, never inferred."""

    dtype: str
    shape: tuple[int, ...]
    data: Payload


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled tokens [start, end) of one turn came from weights ``version`` (content digest)."""

    version: str
    start: int
    end: int


class TrialSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a task. ``index`` orders the batch; ``trial`` is unique in the run; ``seed`` seeds sampling."""

    trial: str
    index: int
    task: str
    seed: int
    turn_limit: int


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    """What really holds a sandbox, not what was asked for."""

    backend: str
    namespaces: tuple[str, ...] = ()
    uid_map: str = ""
    limits: tuple[str, ...] = ()
    base: str = ""
    warnings: tuple[str, ...] = ()
    network: str = "none"
    """``none``: only its own loopback device."""


class OutputChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of terminal output, ``at_s`` seconds after its command started."""

    at_s: float
    data: str


class AssertionResult(msgspec.Struct, frozen=True, kw_only=True):
    """One expected assertion of a task, and whether it passed. ``baseline``: it passes when nothing is done."""

    id: str
    passed: bool
    baseline: bool = False


def counted(assertions: tuple[AssertionResult, ...]) -> tuple[int, int]:
    """(P, n): what passed of what can be gained. Assertions of the baseline are no gain, and each that fails takes one from
    P, which is never below 0."""
    gained = sum(result.passed for result in assertions if not result.baseline)
    broken = sum(not result.passed for result in assertions if result.baseline)
    return max(0, gained - broken), sum(not result.baseline for result in assertions)


class BatchItem(msgspec.Struct, frozen=True, kw_only=True):
    """A trial of a sealed batch: its trajectory record by content digest and its raw reward P / S."""

    trial: str
    index: int
    trajectory_digest: str
    reward: float


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """How turn ``turn`` was joined to what came before (T1 section 3). ``s`` and ``u`` are the edges: ids at the end of the
    prompt before and of its answer that the turn's own prompt does not have. ``start`` and ``end``: of RETOKENIZED, where in
    the turn's prompt the answer stands in other ids. ``left_out``: of ``u``, what the record does not have either."""

    turn: int
    case: BoundaryCase
    s: int = 0
    u: int = 0
    audited: bool = True
    start: int = 0
    end: int = 0
    left_out: int = 0


class LossByGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Trials of a group (a family or a length class) launched and lost in a step."""

    group: str
    launched: int
    lost: int


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=True):
    """Base of all events; ``v`` is the version of the event's kind."""

    v: int = 1


# --- runtime: any actor's journal ---------------------------------------------------------------------------------------


class EffectIntended(Event, frozen=True, kw_only=True):
    """Durable before the effect is performed. ``key`` says what is done, never where; ``effect`` is its MessagePack."""

    key: str
    effect_kind: str
    effect: bytes
    deadline_s: float | None = None
    expected_total: float | None = None
    unit: str = ""


class EffectFinished(Event, frozen=True, kw_only=True):
    """Follows the effect's result events in the same frame. ``phases`` are seconds of each sub-phase."""

    key: str
    status: EffectStatus
    seconds: float
    attempt: int = 1
    phases: dict[str, float] = {}
    error: str = ""


class CancelRequested(Event, frozen=True, kw_only=True):
    """The open effect ``key`` is to stop, also when a crash comes between this and its EffectFinished."""

    key: str


class TimerFired(Event, frozen=True, kw_only=True):
    """A ``Wait`` effect is over."""

    key: str
    due_s: float


class ProgressReported(Event, frozen=True, kw_only=True):
    """A long effect's progress; ``done`` of ``total`` in ``unit``."""

    key: str
    done: float
    total: float
    unit: str


# --- supervisor ---------------------------------------------------------------------------------------------------------


class RunStarted(Event, frozen=True, kw_only=True):
    """A session of the run begins. ``session`` rises with every one (it is the epoch of the supervisor's journal); 0: written
    before there were session numbers. ``tasks_digest``: blake3 of the run's ``tasks.json``, which says which tasks of a
    directory it draws from; empty where there is none. ``kernels``: by name, what computes in every session of the run;
    ``numerics``: the hashes of operations and the surroundings (``train.environment``) where this session began. Both are
    empty where nobody looked."""

    run: str
    config_digest: str
    config_toml: str
    code_version: str
    environment: dict[str, str]
    resumed: bool = False
    session: int = 0
    tasks_digest: str = ""
    kernels: str = ""
    numerics: dict[str, str] = {}


class StopRequested(Event, frozen=True, kw_only=True):
    """Somebody asked the session to end after the phase it is in: nothing new is to be opened."""

    by: str


class ActorStarted(Event, frozen=True, kw_only=True):
    """The only way a journal becomes known to readers."""

    actor: str
    journal: str
    epoch: int
    pid: int


class ActorReady(Event, frozen=True, kw_only=True):
    """The actor has read what there was and takes part."""

    actor: str
    epoch: int
    seconds: float
    rss_bytes: int = 0


class ActorStopped(Event, frozen=True, kw_only=True):
    """The actor's process ended: with which exit status, and why."""

    actor: str
    epoch: int
    exit_code: int
    reason: str


class DiskLow(Event, frozen=True, kw_only=True):
    """Less is free where the run is written than ``run.low_disk_mb`` asks for: no step opens until DiskFreed."""

    free_bytes: int


class DiskFreed(Event, frozen=True, kw_only=True):
    """There is room again."""

    free_bytes: int


class JournalCut(Event, frozen=True, kw_only=True):
    """The machine was lost before all was on its disk: of ``journal`` everything from ``from_sequence`` on was set aside
    before this session began, because it was not whole or rested on what is not (``reason``). ``path`` (relative to the run
    directory) holds it: ``size_bytes`` with at least ``events`` events, which count no more."""

    journal: str
    from_sequence: int
    events: int
    size_bytes: int
    path: str
    reason: str


class LogTrimmed(Event, frozen=True, kw_only=True):
    """What only steps before ``first_step`` need was deleted, because the last ``steps`` finished ones are to stay replayable
    (``run.keep_steps``): ``segment_bytes`` of journals, ``blobs`` of ``blob_bytes``. From ``first_step`` on every step
    replays, for which trials from ``kept_step`` on are kept. ``trouble``: why not all of it could be deleted; it is tried
    again. ``given_up``: replicas that would need more that is old enough: that stays until the run was started again."""

    first_step: int
    kept_step: int
    steps: int
    segment_bytes: int
    blobs: int
    blob_bytes: int
    trouble: str = ""
    given_up: tuple[str, ...] = ()


class ReplicaReclaimed(Event, frozen=True, kw_only=True):
    """A replica was given up until the run is started again, for ``reason``; others go on without it."""

    replica: str
    reason: str


class RunStopped(Event, frozen=True, kw_only=True):
    """``cpu_s``: user and system CPU seconds of the supervisor and of every process it waited for, since its RunStarted."""

    reason: str
    cpu_s: float | None = None


# --- publisher ----------------------------------------------------------------------------------------------------------


class StepOpened(Event, frozen=True, kw_only=True):
    """A step begins: what it is for, which weights sample it, and its trials."""

    step: int
    purpose: Purpose
    version: str
    version_index: int
    batch_size: int
    temperature: float
    trials: tuple[TrialSpec, ...]
    reclaimed: tuple[str, ...] = ()
    """Replicas that sample none of them."""


class BarrierOpened(Event, frozen=True, kw_only=True):
    """The barrier after ``step``: samplers must answer GenerationQuiesced."""

    step: int


class WeightsOffered(Event, frozen=True, kw_only=True):
    """Weights that replicas are to load at the barrier after ``step``."""

    step: int
    digest: str
    weights: Payload


class WeightsPublished(Event, frozen=True, kw_only=True):
    """``version`` is the content digest of the canonical weights. In one frame with the StepOpened that uses it."""

    version: str
    version_index: int
    size_bytes: int
    seconds: float


class RunFinished(Event, frozen=True, kw_only=True):
    """Every planned step is done."""

    steps: int
    version: str


class RunFailed(Event, frozen=True, kw_only=True):
    """The run gave up at ``step``."""

    step: int
    reason: str


class RunPaused(Event, frozen=True, kw_only=True):
    """The answer to StopRequested: no rollout is under way, and ``step`` is what opens next. It ends session ``session`` and
    no other, so a resumed run is not ended by it."""

    step: int
    session: int


# --- sandbox pool -------------------------------------------------------------------------------------------------------


class SandboxRequested(Event, frozen=True, kw_only=True):
    """A sandbox for ``trial`` waits to be admitted."""

    trial: str
    task: str


class SandboxReady(Event, frozen=True, kw_only=True):
    """The trial's sandbox lives: how it is isolated, and what each part of its creation took."""

    trial: str
    task_digest: str
    instruction: str
    isolation: Isolation
    token_wait_s: float
    slot_wait_s: float
    image_wait_s: float
    create_s: float
    image: str = ""
    """Digest of the image it was made of; empty where the base is the host."""
    screen: str = ""
    """What the terminal shows before the first turn; empty where the harness has none."""


class TurnExecuted(Event, frozen=True, kw_only=True):
    """``observation`` is what the model is shown; ``output`` the timed raw chunks it was made from. Of a command that a
    program asked for (CommandRequested), ``turn`` is its number and ``observation`` the answer."""

    trial: str
    turn: int
    observation: str
    exit_code: int
    seconds: float
    output: tuple[OutputChunk, ...] = ()
    truncated_bytes: int = 0
    timed_out: bool = False
    shell_restarted: bool = False
    sandbox_died: bool = False
    """Inside the trial's own limits (all its memory, say): the episode ends and is graded as it stands."""
    limit_hit: str = ""
    malformed: bool = False
    """The turn could not be read: nothing was done, and ``observation`` says why."""


class SandboxRestored(Event, frozen=True, kw_only=True):
    """The trial's sandbox was lost, and a new one stands where it stood: ``turns`` commands were run again and showed what
    they had shown."""

    trial: str
    turns: int
    seconds: float


class ObservationDiverged(Event, frozen=True, kw_only=True):
    """A turn's command, run again in a sandbox made anew, showed something else: the trial cannot go on from there."""

    trial: str
    turn: int
    recorded: str
    observed: str


class SandboxSealed(Event, frozen=True, kw_only=True):
    """Every process of the trial is dead; ``layer`` is the canonical archive of what it left in its writable layer.
    ``tested``: of a task that is graded in the same sandbox, what its tests left there (``verify.live``)."""

    trial: str
    task: str
    layer: Payload
    seconds: float
    tested: Payload | None = None
    image: str = ""


class SandboxReclaimed(Event, frozen=True, kw_only=True):
    """Nothing of the trial's sandbox is left."""

    trial: str
    seconds: float


class TrialFailed(Event, frozen=True, kw_only=True):
    """Infrastructure failed this trial: it is unmeasured, never a reward. ``creating``: its sandbox could not be made;
    ``own_fault``: because of the task's own files, image or build."""

    trial: str
    cause: str
    detail: str = ""
    creating: bool = False
    own_fault: bool = False


class SandboxRetried(Event, frozen=True, kw_only=True):
    """Infrastructure failed the ``attempt``-th try to make the trial's sandbox, and after ``pause_s`` there was another.
    ``grading``: the sandbox that it is graded in."""

    trial: str
    attempt: int
    cause: str
    detail: str
    pause_s: float
    grading: bool = False


class TaskQuarantined(Event, frozen=True, kw_only=True):
    """No sandbox could be made for the task in ``tries`` trials, and in none since its last success: it is not drawn again.
    ``cause`` and ``detail`` are the last one's. Faults that may be the host's are counted only where others went on."""

    task: str
    tries: int
    cause: str
    detail: str


class SandboxesReaped(Event, frozen=True, kw_only=True):
    """What nobody owned any more, found when the pool started, by kind, and removed; ``trouble``: what could not be."""

    found: dict[str, int]
    trouble: tuple[str, ...] = ()


# --- sampler ------------------------------------------------------------------------------------------------------------


class ChatCall(msgspec.Struct, frozen=True, kw_only=True):
    """The chat call that a turn answered. ``continues``: the turn it goes on from; None begins a chunk. ``join``: how it
    stands to the turns before (``tito.graph.Join``). ``request_id`` is the client's, ``request`` the digest of what was
    asked: the same again is the same call. ``said`` is JSON (``harness.endpoint.journal.Said``): the messages that
    ``context_ids`` stand for, the assistant's message that was given out, and where a chunk begins its tools. ``broken``:
    tool calls of the answer that could not be read; ``foreign``: the family whose format it has, where that is another."""

    continues: int | None
    join: str
    request_id: str
    request: str
    said: Payload
    broken: int = 0
    foreign: str = ""


class TurnSampled(Event, frozen=True, kw_only=True):
    """One model call. The trial's stream grows by ``context_ids`` (unsampled: prompt, observation, glue) and then
    ``sampled_ids``; ``execute`` says that the pool is to run ``command``. ``routing`` holds the rows for the predicting
    positions that this call added: over a trial they sum to N - 1. ``logprobs`` are the sampler's, float32, one per sampled
    id, at ``temperature``. A blob of ``routing`` is volatile: needed, and kept, only until the trial's record holds the
    rows."""

    trial: str
    turn: int
    context_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    routing: Tensor
    versions: tuple[VersionSpan, ...]
    temperature: float
    finish: Literal["stop", "length"]
    command: str
    execute: bool
    canonical: bool
    entropy_mean: float = 0.0
    replica: str = ""
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    compaction: Compaction = ""
    """Of ``summary`` the ``command`` is the summary; of ``start`` the context and the routing are the new chunk's own."""
    chat: ChatCall | None = None
    """Of a turn that an endpoint's session took; its ``trial`` is the session, and nothing is executed here."""


class CommandRequested(Event, frozen=True, kw_only=True):
    """The trial's agent, a program (``harness.command``), asks for something to be done in its sandbox. ``number`` counts
    from 0; ``command`` says all that there is to know. TurnExecuted answers."""

    trial: str
    number: int
    command: str


class EpisodeEnded(Event, frozen=True, kw_only=True):
    """The trial takes no more turns."""

    trial: str
    reason: EpisodeEnd
    turns: int


class GenerationQuiesced(Event, frozen=True, kw_only=True):
    """The replica generates nothing: new weights may be loaded."""

    step: int
    replica: str


class WeightsLoaded(Event, frozen=True, kw_only=True):
    """The replica samples from the weights ``digest``."""

    step: int
    replica: str
    digest: str
    seconds: float


class SessionOpened(Event, frozen=True, kw_only=True):
    """An endpoint's session begins: ``number`` counts them, ``temperature`` is that of all its turns."""

    trial: str
    number: int
    task: str
    temperature: float


class RewardReported(Event, frozen=True, kw_only=True):
    """A foreign harness's own reward: once, finite."""

    trial: str
    reward: float


class SessionClosed(Event, frozen=True, kw_only=True):
    """The session takes no more turns."""

    trial: str
    turns: int


class SessionForgotten(Event, frozen=True, kw_only=True):
    """Who trains has the session's trajectory: the endpoint holds it no more. The log keeps it."""

    trial: str


# --- verifier -----------------------------------------------------------------------------------------------------------


class Graded(Event, frozen=True, kw_only=True):
    """Only outcome "graded" has a reward; every other outcome leaves the trial unmeasured. ``channel``: which report decided.
    ``tool_layer_digest``: of the pytest and the stand-ins that the tests were given. ``stand_ins``: what the tests asked the
    network for, and what they got. ``warnings``: what this verdict does not promise."""

    trial: str
    task: str
    outcome: Outcome
    assertions: tuple[AssertionResult, ...]
    passed: int
    expected: int
    reward: float | None
    layer_digest: str
    tests_digest: str
    tools_digest: str
    isolation: Isolation
    seconds: float
    detail: str = ""
    mode: GradingMode = ""
    channel: Channel = ""
    tool_layer_digest: str = ""
    stand_ins: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


# --- assembler ----------------------------------------------------------------------------------------------------------


class TrajectoryAssembled(Event, frozen=True, kw_only=True):
    """``record`` is the trajectory as ``tito.stored`` stores it: ids, mask, log-probs, versions, and its routing's pages by
    name. ``pages`` are those of them that are blobs: the event names every blob that it rests on."""

    trial: str
    step: int
    index: int
    task: str
    record: Payload
    reward: float
    ids: int
    sampled: int
    turns: int
    chunks: int
    boundaries: tuple[Boundary, ...]
    drift_in_loss: int
    non_canonical_turns: int
    end_reason: EpisodeEnd
    pages: tuple[Payload, ...] = ()
    retokenized: int = 0
    """Sampled ids that later prompts have as other ids of the same text."""
    placeholders: int = 0
    """Routing rows copied from their neighbour; what they predict is context."""
    altered: int = 0
    """Sampled ids that the model was shown another history for than the record's."""


class TrialReplaced(Event, frozen=True, kw_only=True):
    """A failed or unmeasured trial's place is taken by ``replacement``: same task, new index."""

    step: int
    temperature: float
    failed: str
    cause: str
    replacement: TrialSpec
    reclaimed: tuple[str, ...] = ()
    """As in StepOpened."""


class TrialCancelled(Event, frozen=True, kw_only=True):
    """The trial is not needed any more."""

    trial: str
    step: int
    cause: str


class BatchSealed(Event, frozen=True, kw_only=True):
    """``items`` are in trial-index order; ``digest`` is blake3 over their trajectory digests and rewards."""

    step: int
    purpose: Purpose
    items: tuple[BatchItem, ...]
    digest: str
    launched: int
    failed: int
    cancelled: int
    lost_by_family: tuple[LossByGroup, ...] = ()
    lost_by_length: tuple[LossByGroup, ...] = ()


class BatchShort(Event, frozen=True, kw_only=True):
    """The step cannot reach its batch size."""

    step: int
    wanted: int
    possible: int
    causes: dict[str, int]


# --- critic -------------------------------------------------------------------------------------------------------------


class CriticInitialised(Event, frozen=True, kw_only=True):
    """The critic before its first update: the snapshot that every replay can fall back to."""

    weights: str
    state: Payload
    environment: dict[str, str] = {}


class ValuesEstimated(Event, frozen=True, kw_only=True):
    """``values`` is float32 over the batch's sampled tokens, trials in index order: V_old, before the critic's update."""

    step: int
    values: Tensor
    values_digest: str
    explained_variance: float
    seconds: float


class CriticUpdated(Event, frozen=True, kw_only=True):
    """The critic after its update of a step, by digest."""

    step: int
    weights_before: str
    weights_after: str
    optimizer_after: str
    loss: float
    loss_digest: str
    gradient_digest: str
    gradient_norm: float
    explained_variance: float
    state: Payload
    snapshot: bool
    seconds: float
    phases: dict[str, float] = {}
    detail: Payload | None = None
    """``train.digests.PartDetail``: where to look when a replay differs."""
    quantum_over_rms: float = 0.0
    """How much the grid of exact gradient sums can be seen: its step over the RMS gradient of ``quantum_tensor``, the tensor
    and update where that is largest. 0 in logs that don't say."""
    quantum_tensor: str = ""


# --- actor --------------------------------------------------------------------------------------------------------------


class ActorInitialised(Event, frozen=True, kw_only=True):
    """The policy before its first update. ``version`` is the content digest of ``weights``."""

    version: str
    weights: Payload
    state: Payload
    environment: dict[str, str] = {}


class ActorUpdated(Event, frozen=True, kw_only=True):
    """The gap at the step's start, in its two parts (T1 section 5), mean and largest over sampled tokens. ``tokens`` is
    a float32 blob per sampled token: behaviour log-prob, current log-prob, advantage, value, clip flag; a cache for
    people: replay never reads it."""

    step: int
    weights_before: str
    weights_after: str
    optimizer_after: str
    behaviour_version: str
    staleness: int
    weights: Payload
    state: Payload
    snapshot: bool
    old_logprobs_digest: str
    loss: float
    loss_digest: str
    gradient_digest: str
    gradient_norm: float
    gap_mean: float
    gap_max: float
    engine_gap_mean: float
    engine_gap_max: float
    policy_movement_mean: float
    policy_movement_max: float
    ratio_mean: float
    ratio_max: float
    clip_share: float
    kl: float
    entropy: float
    tokens: Tensor
    seconds: float
    phases: dict[str, float] = {}
    detail: Payload | None = None
    """``train.digests.PartDetail``: where to look when a replay differs."""
    quantum_over_rms: float = 0.0
    """How much the grid of exact gradient sums can be seen: its step over the RMS gradient of ``quantum_tensor``, the tensor
    and update where that is largest. 0 in logs that don't say."""
    quantum_tensor: str = ""


class ModelExported(Event, frozen=True, kw_only=True):
    """The final policy lies in ``folder`` (relative to the run directory) as a Hugging Face model."""

    version: str
    folder: str


AnyEvent = Union[  # noqa: UP007  (X | Y would be one very long line)
    EffectIntended, EffectFinished, CancelRequested, TimerFired, ProgressReported,
    RunStarted, StopRequested, ActorStarted, ActorReady, ActorStopped, ReplicaReclaimed, JournalCut, DiskLow, DiskFreed,
    LogTrimmed,
    RunStopped,
    StepOpened, BarrierOpened, WeightsOffered, WeightsPublished, RunFinished, RunFailed, RunPaused,
    SandboxRequested, SandboxReady, TurnExecuted, SandboxRestored, ObservationDiverged, SandboxSealed, SandboxReclaimed,
    TrialFailed, SandboxRetried, TaskQuarantined, SandboxesReaped,
    TurnSampled, CommandRequested, EpisodeEnded, GenerationQuiesced, WeightsLoaded,
    SessionOpened, RewardReported, SessionClosed, SessionForgotten,
    Graded, TrajectoryAssembled, TrialReplaced, TrialCancelled, BatchSealed, BatchShort,
    CriticInitialised, ValuesEstimated, CriticUpdated, ActorInitialised, ActorUpdated, ModelExported,
]  # fmt: skip


PRIVATE_EVENTS = (EffectIntended, EffectFinished, CancelRequested, TimerFired, ProgressReported)
"""How an actor does its work. Views may read them; no other actor is shown them."""


class UnknownEvent(msgspec.Struct, frozen=True):
    """An event of a kind this version does not know, carried as it was written."""

    kind: str
    raw: bytes


class _Envelope(msgspec.Struct):
    kind: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyEvent)
_envelope = msgspec.msgpack.Decoder(_Envelope)
_kinds = frozenset(t.__name__ for t in AnyEvent.__args__)


def encode(event: AnyEvent | UnknownEvent) -> bytes:
    """The event's MessagePack bytes."""
    return event.raw if isinstance(event, UnknownEvent) else _encoder.encode(event)


class EventMalformed(msgspec.ValidationError):
    """An event of a known kind has not the fields that this version knows it with."""


def decode(raw: bytes | memoryview) -> AnyEvent | UnknownEvent:
    """The event in ``raw``. Raises ``EventMalformed`` (a ``msgspec.ValidationError``) naming kind and field when a known
    kind is malformed."""
    try:
        return _decoder.decode(raw)
    except msgspec.ValidationError as error:
        kind = _envelope.decode(raw).kind
        if kind in _kinds:
            raise EventMalformed(
                f"an event {kind} of the log cannot be read: {error}; another version of t1actors wrote it: use that one "
                "(`t1 log cat RUN` shows the events of any version)"
            ) from error
        return UnknownEvent(kind, bytes(raw))
