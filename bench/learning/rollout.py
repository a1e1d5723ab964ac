"""Plays trials in one process: real engine, real sandboxes, the harness and the records of a run.

Guarantees: the same weights and trial specs give the same trials as a run's actors would (same seeds, same limits, same
stitching); assertions are decided on the sealed tree by the grader's own code. What is left out is what cannot change a
reward: journals, processes, oversampling, and the grader's own sandbox.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from t1actors.actors.sampler import turn_seed
from t1actors.config import Config
from t1actors.engine.interface import GenerateRequest
from t1actors.engine.torch_engine import TorchEngine
from t1actors.events import EpisodeEnd, TrialSpec, TurnSampled
from t1actors.harness.native import NativeHarness, end_before_execution, end_before_sampling, observation_text
from t1actors.log.blobs import MemoryBlobs
from t1actors.payloads import pack_array
from t1actors.sandbox.archive import subtree
from t1actors.sandbox.choice import limits_of
from t1actors.sandbox.interface import RunRequest, SandboxBackend, SandboxSpec
from t1actors.sandbox.unpack import unpack
from t1actors.tasks import check
from t1actors.tasks.demos import generated_layers
from t1actors.tasks.generate import WORKDIR, GeneratedTask, make_named_task
from t1actors.tito.record import Geometry, TrajectoryRecord
from t1actors.tito.stitch import stitch


@dataclass(frozen=True)
class Trial:
    """A trial that was played and graded. ``expected`` is n, the assertions of its task; ``passed`` is P."""

    record: TrajectoryRecord
    level: int
    passed: int
    expected: int
    turns: int
    end: EpisodeEnd

    @property
    def share(self) -> float:
        """P / n."""
        return self.passed / self.expected

    @property
    def solved(self) -> bool:
        return self.passed == self.expected

    @property
    def ids(self) -> int:
        return sum(len(chunk.arrays().ids_N) for chunk in self.record.chunks)


class Rollout:
    """Plays trials with the engine's current weights."""

    def __init__(
        self, config: Config, backend: SandboxBackend, engine: TorchEngine, harness: NativeHarness, geometry: Geometry
    ) -> None:
        self._config = config
        self._backend = backend
        self._engine = engine
        self._harness = harness
        self._blobs = MemoryBlobs()
        self._places = anyio.Semaphore(config.sandbox.max_live)
        self._geometry = geometry

    async def play(self, specs: Sequence[TrialSpec], temperature: float) -> list[Trial]:
        """The trials of ``specs``, in index order."""
        trials: list[Trial] = []

        async def play_one(spec: TrialSpec) -> None:
            async with self._places:
                trials.append(await self._play(spec, temperature))

        async with anyio.create_task_group() as tasks:
            for spec in specs:
                tasks.start_soon(play_one, spec)
        self._blobs = MemoryBlobs()
        return sorted(trials, key=lambda t: t.record.index)

    async def _play(self, spec: TrialSpec, temperature: float) -> Trial:
        task = make_named_task(spec.task)
        limits = limits_of(self._config.sandbox)
        layers = tuple(layer for layer in generated_layers(task) if not layer.read_only)
        await self._backend.create(SandboxSpec(key=spec.trial, workdir=WORKDIR, limits=limits, layers=layers))
        try:
            turns, end = await self._turns(spec, task, temperature)
            archive = await self._backend.seal(spec.trial, paths=(WORKDIR,))
        finally:
            with anyio.CancelScope(shield=True):
                await self._backend.kill(spec.trial)
                await self._engine.release(spec.trial)
        found = stitch(turns, index=spec.index, task=task.name, geometry=self._geometry, blobs=self._blobs)
        passed = passed_assertions(task, archive)
        return Trial(found.record, task.level, passed, len(task.assertions), len(turns), end)

    async def _turns(
        self, spec: TrialSpec, task: GeneratedTask, temperature: float
    ) -> tuple[list[TurnSampled], EpisodeEnd]:
        rollout = self._config.rollout
        ids: list[int] = []
        turns: list[TurnSampled] = []
        context = self._harness.opening(task.instruction)
        while True:
            length = len(ids) + len(context)
            turn = len(turns)
            end = end_before_sampling(turns=turn, turn_limit=spec.turn_limit, ids=length, max_ids=rollout.max_ids)
            if end is not None:
                return turns, end
            result = await self._engine.generate(
                GenerateRequest(
                    request_id=f"{spec.trial}/{turn}",
                    sequence=spec.trial,
                    ids=(*ids, *context),
                    max_new_tokens=min(rollout.max_new_tokens, rollout.max_ids - length),
                    temperature=temperature,
                    seed=turn_seed(spec.seed, turn),
                    stop_ids=self._harness.stop_ids,
                    known_rows=max(len(ids) - 1, 0),
                )
            )
            command = self._harness.command_of(result.sampled_ids)
            end = end_before_execution(command, result.finish)
            turns.append(
                TurnSampled(
                    trial=spec.trial,
                    turn=turn,
                    context_ids=tuple(context),
                    sampled_ids=result.sampled_ids,
                    logprobs=tuple(float(q) for q in result.logprobs),
                    routing=pack_array(self._blobs, result.routing_RLK),
                    versions=result.versions,
                    temperature=temperature,
                    finish=result.finish,
                    command=command.text,
                    execute=end is None,
                    canonical=command.canonical,
                )
            )
            if end is not None:
                return turns, end
            ids += [*context, *result.sampled_ids]
            request = RunRequest(key=f"{spec.trial}/{turn}", command=command.text, limit_s=rollout.command_deadline_s)
            ran = await self._backend.run(spec.trial, request)
            context = self._harness.observation(observation_text(ran.text, ran.exit_code, rollout.observation_chars))


def passed_assertions(task: GeneratedTask, archive: bytes) -> int:
    tree = subtree(archive, WORKDIR)
    if tree is None:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.realpath(folder)
        directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            unpack(tree, directory)
        finally:
            os.close(directory)
        return sum(check.holds(a.kind, f"{root}/{a.path}", list(a.arguments)) for _, a in task.assertions)
