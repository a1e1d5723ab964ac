"""Sampler: one replica of the engine at work on its share of the trials, a turn at a time.

Guarantees:
- A turn's seed is H(trial seed, turn), never the attempt: a turn sampled again after a crash draws from the same numbers.
- Ids are the source of truth: each call adds context ids and sampled ids to the trial's stream and renders nothing again.
- Every predicting position has its routing row exactly once: over a trial the rows sum to ids - 1.
- The rows are put volatile: a lost machine may take them before the trial's record holds them, and then the turn is sampled
  again (``runtime.loss``).
- New weights are loaded between generations only, and the barrier is answered when nothing is being generated.
- A replica that was given up and comes back has missed weights, and those that it knows may be gone: it loads the last ones
  that were offered, and samples nothing before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import blake3
from t1kernels.choice import kernels_called

from t1actors.actors.replicas import owner, replica_names
from t1actors.engine.interface import Engine, EngineError, GenerateRequest
from t1actors.engine.torch_engine import TorchEngine
from t1actors.events import (
    AnyEvent,
    BarrierOpened,
    EffectFinished,
    EpisodeEnd,
    EpisodeEnded,
    GenerationQuiesced,
    Payload,
    SandboxReady,
    StepOpened,
    TimerFired,
    TrialCancelled,
    TrialFailed,
    TrialReplaced,
    TrialSpec,
    TurnExecuted,
    TurnSampled,
    UnknownEvent,
    WeightsLoaded,
    WeightsOffered,
)
from t1actors.harness.budget import Call, Standing, next_call
from t1actors.harness.choice import make_harness
from t1actors.models.folder import model_folder
from t1actors.models.tokenizer import Tokenizer
from t1actors.nursery import task_group
from t1actors.payloads import pack_array, unpack
from t1actors.runtime.actor import NOTHING, ActorContext, Decision, Effect, Performing, Unrecoverable, Wait

TELL_EVERY_S = 5.0
"""How often a load that takes long says how far it is."""


class Sample(Effect, frozen=True, kw_only=True):
    """Sample turn ``turn`` of ``trial``."""

    trial: str
    turn: int


class Load(Effect, frozen=True, kw_only=True):
    """Load the weights ``digest``, offered at the barrier after ``step``."""

    step: int
    digest: str


@dataclass
class LiveTrial:
    """A trial on its way. Of ``instruction`` and the terminal's first ``screen``, ``observation`` and ``summary`` the next
    call's context is made (``harness.budget``). ``command``: what the last turn came to. ``ids`` and ``rows`` are those of
    the chunk that grows now."""

    spec: TrialSpec
    temperature: float
    instruction: str = ""
    screen: str = ""
    observation: str | None = None
    summary: str | None = None
    command: str = ""
    turns: int = 0
    ids: list[int] = field(default_factory=list[int])
    rows: int = 0
    calls: list[TurnSampled] = field(default_factory=list[TurnSampled])
    """As the next two: of a trial that a program drives (``sampler_agents``): its turns, the commands that it asked for, and
    what it was answered, by their numbers."""
    commands: list[str] = field(default_factory=list[str])
    shown: dict[int, str] = field(default_factory=dict[int, str])

    def standing(self, turn: int) -> Standing:
        """Where it stands before the call ``turn``."""
        return Standing(
            turn,
            self.spec.turn_limit,
            self.ids,
            self.instruction,
            self.screen,
            self.observation,
            self.summary,
        )


@dataclass
class SamplerState:
    """``sampling``: trials with a generation in flight, and its turn. ``offered``: the weights last offered, which a
    restarted replica loads before anything else."""

    trials: dict[str, LiveTrial] = field(default_factory=dict[str, LiveTrial])
    sampling: dict[str, int] = field(default_factory=dict[str, int])
    barrier: int | None = None
    offered: WeightsOffered | None = None


def built_in_engine(context: ActorContext) -> Engine:
    """Raises ``Unrecoverable``: the model and the configuration do not fit each other."""
    config = context.config
    try:
        return TorchEngine(
            model_folder(config.model.policy),
            name=context.name,
            dtype=config.model.sampler_dtype,
            kernels=kernels_called(config.model.kernels),
            max_live_sequences=config.rollout.max_live_sequences,
            max_ids=config.rollout.max_ids,
        )
    except EngineError as error:
        raise Unrecoverable(str(error)) from error


class Sampler:
    """See the module."""

    reads = frozenset({"publisher", "pool", "assembler"})
    effect_type = Sample | Load | Wait

    def __init__(self, context: ActorContext, make_engine: Callable[[ActorContext], Engine] | None = None) -> None:
        """``make_engine``: of this replica; None: the built-in one. Raises ``Unrecoverable``."""
        config = context.config
        self._config = config
        self._blobs = context.blobs
        self._name = context.name
        names = replica_names(config.rollout.sampler_replicas)
        assert context.name in names, f"a sampler replica is named {', '.join(names)}: {context.name}"
        self._harness = make_harness(config.rollout, Tokenizer.from_folder(model_folder(config.model.policy)))
        self._engine = (make_engine or built_in_engine)(context)
        self._state = SamplerState()
        self._cached: set[str] = set()
        """Trials of which the engine may hold a cache."""
        self._missed = False
        """The weights last offered, as far as was read, are gone, which they are only after others were published: what
        those sampled is over, too."""

    def initial(self) -> SamplerState:
        return self._state

    def fold(self, state: SamplerState, event: AnyEvent | UnknownEvent) -> SamplerState:
        match event:
            case StepOpened():
                for spec in event.trials:
                    self._adopt(state, spec, event.temperature, event.reclaimed)
            case TrialReplaced():
                self._adopt(state, event.replacement, event.temperature, event.reclaimed)
                state.trials.pop(event.failed, None)
            case SandboxReady() if event.trial in state.trials:
                trial = state.trials[event.trial]
                trial.instruction, trial.screen = event.instruction, event.screen
                state.sampling[event.trial] = 0
            case TurnExecuted() if event.trial in state.trials:
                trial = state.trials[event.trial]
                trial.observation = event.observation
                if self._end_after(trial, event) is None:
                    state.sampling[event.trial] = trial.turns
            case TurnSampled() if event.trial in state.trials:
                trial = state.trials[event.trial]
                if event.compaction == "start":
                    trial.ids, trial.rows = [], 0
                trial.ids += [*event.context_ids, *event.sampled_ids]
                trial.rows += event.routing.shape[0]
                trial.turns = event.turn + 1
                if event.compaction == "summary":
                    trial.summary = event.command
                else:
                    trial.summary, trial.command = None, event.command
            case EffectFinished() if event.key.endswith("/sample"):
                name = event.key.partition("/")[0]
                state.sampling.pop(name, None)
                if name in state.trials and state.trials[name].summary is not None and event.status == "done":
                    state.sampling[name] = state.trials[name].turns
            case EpisodeEnded() | TrialCancelled() | TrialFailed():
                state.trials.pop(event.trial, None)
            case BarrierOpened():
                state.barrier = event.step
            case GenerationQuiesced() if event.replica == self._name:
                state.barrier = None
            case WeightsOffered():
                state.offered = event
            case _:
                pass
        return state

    def decide(self, state: SamplerState, event: AnyEvent | UnknownEvent) -> Decision:
        match event:
            case SandboxReady() if event.trial in state.trials:
                deadline = Wait(key=_deadline_key(event.trial), seconds=self._config.rollout.agent_deadline_s)
                return Decision(effects=[self._sample(event.trial, 0), deadline])
            case TurnExecuted() if event.trial in state.trials:
                trial = state.trials[event.trial]
                if (reason := self._end_after(trial, event)) is not None:
                    ended = EpisodeEnded(trial=event.trial, reason=reason, turns=trial.turns)
                    return Decision(events=[ended], cancels=[_deadline_key(event.trial)])
                return Decision(effects=[self._sample(event.trial, trial.turns)])
            case TimerFired() if event.key.endswith("/deadline"):
                return self._out_of_time(state, event.key.partition("/")[0])
            case TrialCancelled() | TrialFailed():
                cancels = [_deadline_key(event.trial)]
                if event.trial in state.sampling:
                    cancels.append(self._work_key(event.trial, state.sampling[event.trial]))
                return Decision(cancels=cancels)
            case EffectFinished() if event.key.endswith("/sample"):
                return self._after_sample(state, event)
            case BarrierOpened():
                return self._quiesced(state)
            case WeightsOffered():
                key, stall_s = f"barrier/{event.step}/load", self._config.rollout.load_stall_s
                return Decision(effects=[Load(key=key, step=event.step, digest=event.digest, stall_s=stall_s)])
            case _:
                return NOTHING

    async def perform(self, effect: Effect, performing: Performing) -> Sequence[AnyEvent]:
        match effect:
            case Sample():
                return await self._generate(effect)
            case Load():
                return await self._load(effect, performing)
            case _:
                raise AssertionError(f"not an effect of the sampler: {effect}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._engine.running():
            offered = self._state.offered
            self._missed = offered is not None and not self._there(offered.weights)
            if offered is not None and not self._missed:
                await self._engine.load(offered.digest, unpack(self._blobs, offered.weights))
            yield

    # --- decisions ------------------------------------------------------------------------------------------------------

    def _adopt(self, state: SamplerState, spec: TrialSpec, temperature: float, reclaimed: Sequence[str]) -> None:
        if owner(spec.index, self._config.rollout.sampler_replicas, reclaimed) == self._name:
            state.trials[spec.trial] = LiveTrial(spec, temperature)

    def _end_after(self, trial: LiveTrial, executed: TurnExecuted) -> EpisodeEnd | None:
        """Why the episode ends with the turn that was executed, if it does."""
        if executed.sandbox_died:
            return "sandbox_limit"
        end = self._harness.end_after(trial.command)
        return "turn_limit" if end is None and trial.turns >= trial.spec.turn_limit else end

    def _sample(self, trial: str, turn: int) -> Sample:
        deadline_s = self._config.rollout.agent_deadline_s
        return Sample(key=self._work_key(trial, turn), trial=trial, turn=turn, deadline_s=deadline_s)

    def _work_key(self, trial: str, turn: int) -> str:
        """Of what is under way for the trial."""
        return f"{trial}/{turn}/sample"

    def _out_of_time(self, state: SamplerState, trial: str) -> Decision:
        live = state.trials.get(trial)
        if live is None:
            return NOTHING
        cancels = [self._work_key(trial, state.sampling[trial])] if trial in state.sampling else []
        if live.turns == 0:  # nothing of the agent's is there to be graded
            detail = f"not one turn within {self._config.rollout.agent_deadline_s:.0f} s"
            return Decision(events=[TrialFailed(trial=trial, cause="deadline", detail=detail)], cancels=cancels)
        return Decision(events=[EpisodeEnded(trial=trial, reason="deadline", turns=live.turns)], cancels=cancels)

    def _after_sample(self, state: SamplerState, event: EffectFinished) -> Decision:
        trial = event.key.partition("/")[0]
        if trial in state.sampling:  # with the summary that it gave
            return Decision(effects=[self._sample(trial, state.sampling[trial])])
        decision = self._out_of_time(state, trial) if event.status == "deadline" else NOTHING
        cancels = [*decision.cancels]
        if trial not in state.trials or event.status == "deadline":
            cancels.append(_deadline_key(trial))
        return Decision(events=[*decision.events, *self._quiesced(state).events], cancels=cancels)

    def _quiesced(self, state: SamplerState) -> Decision:
        if state.barrier is None or state.sampling:
            return NOTHING
        return Decision(events=[GenerationQuiesced(step=state.barrier, replica=self._name)])

    # --- effects --------------------------------------------------------------------------------------------------------

    async def _generate(self, effect: Sample) -> Sequence[AnyEvent]:
        for ended in sorted(self._cached - self._state.trials.keys()):
            self._cached.discard(ended)
            await self._engine.release(ended)
        trial = self._state.trials.get(effect.trial)
        if trial is None or self._missed:  # ended between the intent and a restart
            return []
        rollout = self._config.rollout
        call = next_call(self._harness, rollout, trial.standing(effect.turn))
        if not isinstance(call, Call):
            if effect.turn == 0:
                detail = f"the instruction alone leaves no room within rollout.max_ids = {rollout.max_ids}"
                return [TrialFailed(trial=effect.trial, cause="task", detail=detail)]
            return [EpisodeEnded(trial=effect.trial, reason=call, turns=effect.turn)]
        before, rows = ([], 0) if call.compaction == "start" else (trial.ids, trial.rows)
        self._cached.add(effect.trial)
        result = await self._engine.generate(
            GenerateRequest(
                request_id=effect.key,
                sequence=effect.trial,
                ids=(*before, *call.context_ids),
                max_new_tokens=call.max_new_tokens,
                temperature=trial.temperature,
                seed=turn_seed(trial.spec.seed, effect.turn),
                stop_ids=self._harness.stop_ids,
                known_rows=rows,
            )
        )
        if effect.trial not in self._state.trials:  # ended during the generation, whose cancelling is not durable yet
            return []
        if call.compaction == "summary":
            reading = self._harness.summary(result.sampled_ids, result.finish)
        else:
            reading = self._harness.reading(result.sampled_ids, result.finish, previous=trial.command)
        sampled = TurnSampled(
            trial=effect.trial,
            turn=effect.turn,
            context_ids=call.context_ids,
            sampled_ids=result.sampled_ids,
            logprobs=tuple(float(q) for q in result.logprobs),
            routing=pack_array(self._blobs, result.routing_RLK, volatile=True),
            versions=result.versions,
            temperature=trial.temperature,
            finish=result.finish,
            command=reading.command,
            execute=reading.end is None and call.compaction != "summary",
            compaction=call.compaction,
            canonical=reading.canonical,
            entropy_mean=result.entropy_mean,
            replica=self._name,
            queue_s=result.queue_s,
            prefill_s=result.prefill_s,
            decode_s=result.decode_s,
        )
        if reading.end is None:
            return [sampled]
        return [sampled, EpisodeEnded(trial=effect.trial, reason=reading.end, turns=effect.turn + 1)]

    async def _load(self, effect: Load, performing: Performing) -> Sequence[AnyEvent]:
        offered = self._state.offered
        assert offered is not None
        if offered.digest != effect.digest or not self._there(offered.weights):  # others were offered since
            return []
        started_s = anyio.current_time()
        if self._engine.version != effect.digest:
            loaded = _Loaded()
            async with task_group() as tasks:
                tasks.start_soon(loaded.tell, performing)
                await self._engine.load(effect.digest, unpack(self._blobs, offered.weights), progress=loaded.note)
                tasks.cancel_scope.cancel()
        self._missed = False
        seconds = anyio.current_time() - started_s
        return [WeightsLoaded(step=effect.step, replica=self._name, digest=effect.digest, seconds=seconds)]

    def _there(self, weights: Payload) -> bool:
        return weights.inline is not None or self._blobs.has(weights.digest)


class _Loaded:
    """How far a load is: noted by any thread, told to the log now and then."""

    def __init__(self) -> None:
        self._noted = (0, 0)

    def note(self, done: int, total: int) -> None:
        self._noted = (done, total)

    async def tell(self, performing: Performing) -> None:
        """For as long as it is not cancelled."""
        told = self._noted
        while True:
            await anyio.sleep(TELL_EVERY_S)
            if self._noted != told:
                told = self._noted
                await performing.report(*told, "bytes")


def turn_seed(trial_seed: int, turn: int) -> int:
    """H(run, trial, turn): the trial's seed already holds run and trial."""
    return int.from_bytes(blake3.blake3(f"{trial_seed}/{turn}".encode()).digest(8), "little") >> 1


def _deadline_key(trial: str) -> str:
    return f"{trial}/deadline"
