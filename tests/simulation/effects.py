"""The world that the actors' effects reach in a simulation: sandboxes, engines, trainers that compute digests of digests.

Everything here is a function of what the log says (seed, trial, turn, weights, batch), so that two runs of one
configuration can be compared by their digests; only how long it takes is drawn. Sandboxes outlive the pool's process, as
their shims do, and end with the machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import blake3
import numpy as np
from msgspec import structs

from t1actors.actors.actor import Export, PolicyActor
from t1actors.actors.actor import Initialise as InitialiseActor
from t1actors.actors.actor import Update as UpdateActor
from t1actors.actors.assembler import Assembler
from t1actors.actors.critic import Critic, Estimate
from t1actors.actors.critic import Initialise as InitialiseCritic
from t1actors.actors.critic import Update as UpdateCritic
from t1actors.actors.pool import Pool
from t1actors.actors.publisher import Publisher
from t1actors.actors.sampler import Sampler
from t1actors.actors.training import build_batch, snapshot_due
from t1actors.actors.verifier import Verifier
from t1actors.engine.interface import GenerateRequest, GenerateResult
from t1actors.events import (
    ActorInitialised,
    ActorUpdated,
    CriticInitialised,
    CriticUpdated,
    Graded,
    Isolation,
    ModelExported,
    OutputChunk,
    ValuesEstimated,
    VersionSpan,
)
from t1actors.models.folder import model_folder
from t1actors.models.tokenizer import Tokenizer
from t1actors.payloads import digest_of, pack, pack_array, unpack, unpack_array
from t1actors.sandbox.errors import SandboxDied, SandboxError, SandboxGone, SandboxSealed
from t1actors.sandbox.interface import Created, Leftover, RunRequest, RunResult, SandboxSpec
from t1actors.tasks.network import NetworkNeeds
from t1actors.tasks.task import Environment, Task, TaskError
from t1actors.tito.record import Geometry
from t1actors.train.actor_step import staleness
from tests.actors.samples import actor_updated, critic_updated

if TYPE_CHECKING:
    from tests.simulation.incarnation import Incarnation
    from tests.simulation.universe import Universe

MODEL = model_folder("builtin:demo")
TOKENIZER = Tokenizer.from_folder(MODEL)
GEOMETRY = Geometry.of_model_config((MODEL / "config.json").read_bytes())
STATE_BYTES = 20_000
"""More than rides in an event: states and weights are blobs."""
COMMANDS = ("ls", "cat a", "grep x a | wc -l", "submit")
ISOLATION = Isolation(backend="simulated")


def hashed(*parts: object) -> str:
    return blake3.blake3("\0".join(map(str, parts)).encode()).hexdigest()


def number(*parts: object) -> int:
    return int(hashed(*parts)[:15], 16)


def state_of(*parts: object) -> bytes:
    """Bytes that are a function of ``parts``, as large as a state."""
    return blake3.blake3(hashed(*parts).encode()).digest(STATE_BYTES)


INITIAL = state_of("policy")


class SimBlobs:
    """The blob store as one process sees it."""

    def __init__(self, universe: Universe, incarnation: Incarnation) -> None:
        self._universe = universe
        self._incarnation = incarnation

    def put(self, data, *, volatile=False):
        with self._universe.running(self._incarnation):
            return self._universe.fileblobs().put(data, volatile=volatile)

    def put_many(self, blobs):
        with self._universe.running(self._incarnation):
            return self._universe.fileblobs().put_many(blobs)

    def flush(self):
        with self._universe.running(self._incarnation):
            self._universe.fileblobs().flush()

    def get(self, digest):
        with self._universe.running(self._incarnation):
            return self._universe.fileblobs().get(digest)

    def has(self, digest):
        with self._universe.running(self._incarnation):
            return self._universe.fileblobs().has(digest)

    def delete(self, digest):
        with self._universe.running(self._incarnation):
            self._universe.fileblobs().delete(digest)


# --- sandboxes ----------------------------------------------------------------------------------------------------------


@dataclass
class Shell:
    """A sandbox: what was run in it, by key, and when that ends."""

    spec: SandboxSpec
    lease_until_s: float
    ran: list[str] = field(default_factory=list)
    results: dict[str, tuple[float, RunResult]] = field(default_factory=dict)
    sealed: bool = False


class SimBackend:
    """A ``SandboxBackend`` of one incarnation of the pool."""

    def __init__(self, universe: Universe, incarnation: Incarnation) -> None:
        self._universe = universe
        self._incarnation = incarnation

    @property
    def _shells(self) -> dict[str, Shell]:
        return self._universe.shells

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    async def create(self, spec: SandboxSpec) -> Created:
        if spec.key not in self._shells:  # what is there already is let through without a token
            self._universe.creating()
        await self._work("create", 2.0)
        if self._universe.mishap("create", spec.key) or self._universe.mishap_once(spec.key):
            raise SandboxError(f"sandbox {spec.key}: no room for it")
        existed = spec.key in self._shells
        if not existed:
            self._shells[spec.key] = Shell(spec, self._lease(spec))
        return Created(isolation=ISOLATION, phases={}, existed=existed)

    async def run(self, sandbox: str, request: RunRequest) -> RunResult:
        self._incarnation.gate()
        shell = self._shell(sandbox)
        if request.key not in shell.results:
            if shell.sealed:
                raise SandboxSealed(f"sandbox {sandbox} is sealed")
            if self._universe.mishap("run", request.key):
                raise SandboxDied(f"sandbox {sandbox} ran out of memory", cause="memory")
            self._universe.oracle.command(sandbox, request.key, request.command, shell.ran)
            shell.ran.append(request.command)
            text = hashed(*shell.ran)[:12]
            output = (OutputChunk(at_s=0.0, data=text),)
            result = RunResult(output=output, text=text, exit_code=number(text) % 2, seconds=0.1)
            shell.results[request.key] = (anyio.current_time() + self._universe.delays.work("command"), result)
        ends_s, result = shell.results[request.key]  # the shim goes on, whoever asks
        await self._incarnation.spend(ends_s - anyio.current_time())
        self._shell(sandbox)
        return result

    async def read_file(self, sandbox: str, path: str, *, max_bytes: int) -> bytes | None:
        raise AssertionError("the pool reads no files")

    async def seal(self, sandbox: str, *, paths: tuple[str, ...] = ("/",)) -> bytes:
        await self._work("seal")
        shell = self._shell(sandbox)
        shell.sealed = True
        return "\n".join([sandbox.partition(".")[2], *shell.ran]).encode()

    async def kill(self, sandbox: str) -> None:
        await self._work("kill", 0.5)
        self._shells.pop(sandbox, None)

    async def list(self) -> list[str]:
        self._incarnation.gate()
        return sorted(key for key in [*self._shells] if self._lives(key))

    async def reap(self, *, dry_run: bool = False) -> list[Leftover]:
        self._incarnation.gate()
        return []

    async def renew(self, sandbox: str) -> None:
        self._incarnation.gate()
        self._shell(sandbox)

    async def _work(self, what: str, weight: float = 1.0) -> None:
        await self._incarnation.spend(self._universe.delays.work(what, weight))

    def _lease(self, spec: SandboxSpec) -> float:
        return anyio.current_time() + spec.lease_s

    def _lives(self, key: str) -> bool:
        """A lease that nobody renewed ended it."""
        if self._shells[key].lease_until_s < anyio.current_time():
            del self._shells[key]
            return False
        return True

    def _shell(self, key: str) -> Shell:
        if key not in self._shells or not self._lives(key):
            raise SandboxGone(f"sandbox {key} is gone")
        shell = self._shells[key]
        shell.lease_until_s = self._lease(shell.spec)
        return shell


class SimTasks:
    def __init__(self, universe: Universe) -> None:
        self._universe = universe

    def read(self, name: str) -> Task:
        if name in self._universe.broken:
            raise TaskError(f"task {name}: nobody knows how to build it")
        return Task(
            name=name,
            path=Path("tasks") / name,
            digest=hashed("task", name),
            instruction=f"do {name}",
            environment=Environment(base="scratch", workdir="/app"),
            tests_dir=Path("tests"),
            solution_dir=None,
            expected=("one", "two"),
            control="",
            families=("simulated",),
            level=1,
            sub_goals=1,
            agent_timeout_s=None,
            verifier_timeout_s=60.0,
            build_timeout_s=60.0,
            cpus=1,
            memory_mb=64,
            storage_mb=64,
            network=NetworkNeeds(),
            unknown_keys=(),
        )


class SimPool(Pool):
    def __init__(self, context, universe: Universe, incarnation: Incarnation) -> None:
        super().__init__(context, lambda context: SimBackend(universe, incarnation), universe.admission)
        self._tasks = SimTasks(universe)


class SimVerifier(Verifier):
    """The reward is a function of what was sealed."""

    def __init__(self, context, universe: Universe, incarnation: Incarnation) -> None:
        super().__init__(context)
        self._universe = universe
        self._incarnation = incarnation

    async def perform(self, effect, performing):
        sealed = self._state.sealed.get(effect.trial)
        if sealed is None:
            return []
        await self._incarnation.spend(self._universe.delays.work("grade", 3.0))
        lost = self._universe.mishap("grade", effect.trial)
        passed = number(bytes(unpack(self._blobs, sealed.layer))) % 3
        return [
            Graded(
                trial=effect.trial,
                task=sealed.task,
                outcome="infra" if lost else "graded",
                assertions=(),
                passed=0 if lost else passed,
                expected=2,
                reward=None if lost else passed / 20,
                layer_digest=sealed.layer.digest,
                tests_digest="",
                tools_digest="",
                isolation=ISOLATION,
                seconds=0.0,
            )
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield


# --- engine -------------------------------------------------------------------------------------------------------------


class SimEngine:
    """An ``Engine`` whose ids are a function of (weights, stream, seed)."""

    def __init__(self, universe: Universe, incarnation: Incarnation) -> None:
        self._universe = universe
        self._incarnation = incarnation
        self._live = 0
        self.name = incarnation.name
        self.version = digest_of(INITIAL)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        version = self.version
        self._live += 1
        try:
            await self._incarnation.spend(self._universe.delays.work("generate", 2.0))
        finally:
            self._live -= 1
        draw = number(version, request.seed, request.ids)
        commands = self._universe.commands
        command = commands[draw % len(commands)]
        sampled = (*TOKENIZER.encode(command), request.stop_ids[0])[: request.max_new_tokens]
        rows = len(request.ids) + len(sampled) - 1 - request.known_rows
        experts = (draw + np.arange(rows * GEOMETRY.layers)) % GEOMETRY.experts
        routing = (experts.reshape(rows, GEOMETRY.layers, 1) + np.arange(GEOMETRY.top_k)) % GEOMETRY.experts
        return GenerateResult(
            request_id=request.request_id,
            sampled_ids=sampled,
            logprobs=-(np.arange(len(sampled), dtype=np.float32) + 1) / 8,
            routing_RLK=routing.astype(GEOMETRY.dtype),
            versions=(VersionSpan(version=version, start=0, end=len(sampled)),),
            finish="stop" if len(sampled) < request.max_new_tokens else "length",
            entropy_mean=0.0,
            queue_s=0.0,
            prefill_s=0.0,
            decode_s=0.0,
        )

    async def load(self, version: str, weights: bytes | memoryview, *, progress=None) -> None:
        if self._live:
            self._universe.oracle.fault(f"{self.name}: weights are loaded while {self._live} generations run")
        await self._incarnation.work(self._universe.delays.work("load", 2.0))
        assert digest_of(weights) == version
        self.version = version

    async def release(self, sequence: str) -> None:
        self._incarnation.gate()

    async def quiesced(self) -> None:
        raise AssertionError("the sampler counts for itself")


# --- training -----------------------------------------------------------------------------------------------------------


class SimCritic(Critic):
    def __init__(self, context, universe: Universe, incarnation: Incarnation) -> None:
        super().__init__(context)
        self._universe = universe
        self._incarnation = incarnation

    async def perform(self, effect, performing):
        await self._incarnation.work(self._universe.delays.work("critic", 5.0))
        match effect:
            case InitialiseCritic():
                data = state_of("critic")
                return [CriticInitialised(weights=digest_of(data), state=pack(self._blobs, data))]
            case Estimate():
                batch, before = self._inputs(effect.step)
                values_T = np.array([number(before, batch.digest) % 1000], dtype=np.float32)
                return [
                    ValuesEstimated(
                        step=effect.step,
                        values=pack_array(self._blobs, values_T),
                        values_digest=hashed(before, batch.digest),
                        explained_variance=0.0,
                        seconds=0.0,
                    )
                ]
            case UpdateCritic():
                return [self._updated(effect.step)]

    def _inputs(self, step: int):
        recorded = self._state.state
        assert recorded is not None
        return build_batch(self._state.batches, step, GEOMETRY, self._blobs), digest_of(unpack(self._blobs, recorded))

    def _updated(self, step: int) -> CriticUpdated:
        batch, before = self._inputs(step)
        values = unpack_array(self._blobs, self._state.values[step].values)
        data = state_of("critic", before, batch.digest, float(values[0]), self._state.previous)
        self._state.retention.sweep(self._blobs)
        return structs.replace(
            critic_updated(step),
            weights_before=before,
            weights_after=digest_of(data),
            optimizer_after=digest_of(data),
            state=pack(self._blobs, data),
            snapshot=snapshot_due(self._state.trained, self._config.train.snapshot_every),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield


class SimActor(PolicyActor):
    def __init__(self, context, universe: Universe, incarnation: Incarnation) -> None:
        super().__init__(context)
        self._universe = universe
        self._incarnation = incarnation

    async def perform(self, effect, performing):
        await self._incarnation.work(self._universe.delays.work("actor", 6.0))
        match effect:
            case InitialiseActor():
                payload = pack(self._blobs, INITIAL)
                return [ActorInitialised(version=payload.digest, weights=payload, state=payload)]
            case UpdateActor():
                return [self._updated(effect.step)]
            case Export():
                return [ModelExported(version=effect.version, folder="model")]

    def _updated(self, step: int) -> ActorUpdated:
        log = self._state
        lane = self._lane(log, step)
        batch = build_batch(log.batches, step, GEOMETRY, self._blobs)
        before = digest_of(unpack(self._blobs, lane.state))
        for version in batch.versions:
            assert digest_of(unpack(self._blobs, log.weights[version])) == version
        indices = {opened.version: opened.version_index for opened in log.batches.opened.values()}
        opened = log.batches.opened[step]
        behaviour, stale = staleness(batch, {**indices, opened.version: opened.version_index}, lane.trained)
        self._universe.oracle.trained(step, opened.purpose, lane.trained, stale)
        values = unpack_array(self._blobs, log.values[step].values)
        payload = pack(self._blobs, state_of("actor", before, batch.digest, float(values[0]), behaviour))
        log.retention.sweep(self._blobs)
        return structs.replace(
            actor_updated(step, payload.digest),
            weights_before=before,
            optimizer_after=payload.digest,
            behaviour_version=behaviour,
            staleness=stale,
            weights=payload,
            state=payload,
            snapshot=snapshot_due(lane.trained, self._config.train.snapshot_every),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield


class SimAssembler(Assembler):
    def __init__(self, context, universe: Universe, incarnation: Incarnation) -> None:
        super().__init__(context)
        self._universe = universe
        self._incarnation = incarnation

    async def perform(self, effect, performing):
        await self._incarnation.spend(self._universe.delays.work("assemble", 0.2))
        return await super().perform(effect, performing)


def factory(name: str, universe: Universe, incarnation: Incarnation):
    """Makes the actor ``name`` of one incarnation."""
    match name.rstrip("0123456789"):
        case "publisher":
            return Publisher
        case "pool":
            return lambda context: SimPool(context, universe, incarnation)
        case "sampler":
            return lambda context: Sampler(context, lambda context: SimEngine(universe, incarnation))
        case "verifier":
            return lambda context: SimVerifier(context, universe, incarnation)
        case "assembler":
            return lambda context: SimAssembler(context, universe, incarnation)
        case "critic":
            return lambda context: SimCritic(context, universe, incarnation)
        case "actor":
            return lambda context: SimActor(context, universe, incarnation)
        case _:
            raise AssertionError(name)
