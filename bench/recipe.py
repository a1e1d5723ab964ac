"""The recipe of a preset, tried in one process without a log: is this configuration one that learns?

    python -m bench.recipe --preset demo --set train.actor.learning_rate=3e-4

Engine, sandboxes, harness, records, batches and both training steps are the real ones, with the loop's staleness (0 for the
first step, then 1) and its seeds. What is left out is what cannot change the reward: journals, processes, oversampling, and
the grader's own sandbox (assertions are decided on the sealed tree by the same code).

Prints one line a step and the figures that the demonstration's gate looks at; CPU seconds, because a loaded machine says
nothing by the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import torch

from t1actors.actors.sampler import turn_seed
from t1actors.actors.schedule import PlannedStep, Schedule
from t1actors.config import Config, resolve
from t1actors.engine.interface import GenerateRequest
from t1actors.engine.torch_engine import TorchEngine
from t1actors.events import TrialSpec, TurnSampled
from t1actors.harness.native import NativeHarness, end_before_execution, end_before_sampling, observation_text
from t1actors.log.blobs import MemoryBlobs
from t1actors.models.checkpoint import weights_to_bytes
from t1actors.models.folder import model_folder
from t1actors.models.tokenizer import Tokenizer
from t1actors.payloads import pack_array
from t1actors.sandbox.archive import subtree
from t1actors.sandbox.interface import Limits, RunRequest, SandboxBackend, SandboxSpec
from t1actors.sandbox.unpack import unpack
from t1actors.tasks import check
from t1actors.tasks.demos import generated_layers
from t1actors.tasks.generate import WORKDIR, GeneratedTask, make_named_task
from t1actors.tito.record import Geometry, TrajectoryRecord
from t1actors.tito.stitch import stitch
from t1actors.train.actor_step import actor_step
from t1actors.train.batch import Batch
from t1actors.train.critic_step import critic_step, estimate_values
from t1actors.train.networks import (
    critic_for,
    geometry_of,
    initial_critic_state,
    initial_policy_state,
    policy_for,
    version_of,
    working_weights,
)


@dataclass(frozen=True)
class Trial:
    record: TrajectoryRecord
    level: int
    passed: int
    expected: int
    turns: int
    truncated: bool

    @property
    def share(self) -> float:
        return self.passed / self.expected


class Rollout:
    """Plays a step's trials with the engine's current weights."""

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

    async def step(self, planned: PlannedStep) -> list[Trial]:
        trials: list[Trial] = []

        async def play(spec: TrialSpec) -> None:
            async with self._places:
                trials.append(await self._play(spec, planned.temperature))

        async with anyio.create_task_group() as tasks:
            for spec in planned.trials[: planned.batch_size]:
                tasks.start_soon(play, spec)
        self._blobs = MemoryBlobs()
        return sorted(trials, key=lambda t: t.record.index)

    async def _play(self, spec: TrialSpec, temperature: float) -> Trial:
        task = make_named_task(spec.task)
        sandbox = self._config.sandbox
        limits = Limits(
            memory_mb=sandbox.memory_mb,
            disk_mb=sandbox.disk_mb,
            processes=sandbox.processes,
            output_bytes=sandbox.output_bytes,
        )
        layers = tuple(layer for layer in generated_layers(task) if not layer.read_only)
        await self._backend.create(SandboxSpec(key=spec.trial, workdir=WORKDIR, limits=limits, layers=layers))
        try:
            turns = await self._turns(spec, task, temperature)
            archive = await self._backend.seal(spec.trial, paths=(WORKDIR,))
        finally:
            with anyio.CancelScope(shield=True):
                await self._backend.kill(spec.trial)
                await self._engine.release(spec.trial)
        found = stitch(turns, index=spec.index, task=task.name, geometry=self._geometry, blobs=self._blobs)
        passed = passed_assertions(task, archive)
        truncated = turns[-1].finish == "length"
        return Trial(found.record, task.level, passed, len(task.assertions), len(turns), truncated)

    async def _turns(self, spec: TrialSpec, task: GeneratedTask, temperature: float) -> list[TurnSampled]:
        rollout = self._config.rollout
        ids: list[int] = []
        turns: list[TurnSampled] = []
        context = self._harness.opening(task.instruction)
        while True:
            length = len(ids) + len(context)
            if end_before_sampling(turns=len(turns), turn_limit=spec.turn_limit, ids=length, max_ids=rollout.max_ids):
                return turns
            turn = len(turns)
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
                return turns
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


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def by_level(trials: Sequence[Trial]) -> str:
    levels = sorted({t.level for t in trials})
    return " ".join(f"L{level} {mean([t.share for t in trials if t.level == level]):.2f}" for level in levels)


async def experiment(config: Config, backend: SandboxBackend, *, shuffle_rewards: bool = False) -> dict[str, object]:
    """One run of the schedule. ``shuffle_rewards`` is the control: rewards go to other trials, nothing can be learnt."""
    torch.set_num_threads(1)
    folder = model_folder(config.model.policy)
    schedule = Schedule(config, Path("."))
    policy_state = initial_policy_state(config.model)
    critic_state = initial_critic_state(config.model)
    policy, critic = policy_for(policy_state, config.model), critic_for(critic_state, config.model)
    geometry = geometry_of(policy)
    scale = config.verify.reward_scale
    behaviour = version_of(policy, policy_state)
    weights = {behaviour: working_weights(policy, policy_state.weights)}
    published = behaviour  # what the next step's rollout uses: one update behind what is being trained
    engine = TorchEngine(
        folder, dtype=config.model.sampler_dtype, max_live_sequences=128, max_ids=config.rollout.max_ids
    )
    curve: list[float] = []
    rewards: list[float] = []
    heldout: dict[str, float] = {}
    began_s = time.process_time()
    async with engine.running():
        rollout = Rollout(config, backend, engine, NativeHarness(Tokenizer.from_folder(folder)), geometry)
        for step in range(len(schedule)):
            planned = schedule.planned(step)
            if planned.purpose == "evaluate" and step > 0:  # the last weights, whatever the staleness
                latest = working_weights(policy, policy_state.weights)
                await engine.load(version_of(policy, policy_state), weights_to_bytes(latest))
            elif engine.version != published:
                await engine.load(published, weights_to_bytes(weights[published]))
            mark_s = time.process_time()
            trials = await rollout.step(planned)
            sampling_s = time.process_time() - mark_s
            share, turns = mean([t.share for t in trials]), mean([t.turns for t in trials])
            head = f"{step:3d} {planned.purpose:11s} share {share:.3f} {by_level(trials)} turns {turns:.1f}"
            head += f" cut {mean([t.truncated for t in trials]):.2f} cpu {sampling_s:.1f}"
            if planned.purpose == "evaluate":
                key = ("after" if step > 1 else "before") + ("" if planned.temperature > 0 else "_greedy")
                heldout[key] = share
                print(head, flush=True)
                continue
            given = [t.passed / scale for t in trials]
            if shuffle_rewards:
                given = given[len(given) // 2 :] + given[: len(given) // 2]
            batch = Batch.of([(t.record, r) for t, r in zip(trials, given, strict=True)], geometry)
            mark_s = time.process_time()
            values = estimate_values(critic, critic_state, batch, config.train)
            updated = critic_step(
                critic, critic_state, batch, values.values_T, config.train, seed=config.run.seed, step=step
            )
            critic_state = updated.state
            critic_s = time.process_time() - mark_s
            head += f" | ev {values.explained_variance:+.2f} cpu {critic_s:.1f}"
            if planned.purpose == "train":
                curve.append(share)
                rewards.append(mean([t.passed / scale for t in trials]))
                mark_s = time.process_time()
                before = version_of(policy, policy_state)
                result = actor_step(
                    policy, policy_state, weights, batch, values.values_T, config.train, seed=config.run.seed, step=step
                )
                report = result.report
                actor_s = time.process_time() - mark_s
                # Step t + 1 is sampled while step t trains: it uses the version before this update.
                published = before
                policy_state = result.state
                weights = {before: weights[before], report.weights_after: result.weights}
                head += (
                    f" | kl {report.kl:.1e} clip {report.clip_share:.3f} entropy {report.entropy:.2f}"
                    f" norm {report.gradient_norm:.2f} gap {report.gap.engine_max:.0e} cpu {actor_s:.1f}"
                )
            print(head, flush=True)
    ends = min(5, max(1, len(rewards) // 2))
    return {
        "reward_first5": round(mean(rewards[:ends]), 4),
        "reward_last5": round(mean(rewards[-ends:]), 4),
        "ratio": round(mean(rewards[-ends:]) / max(mean(rewards[:ends]), 1e-9), 3),
        "curve": [round(mean(curve[i : i + 4]), 2) for i in range(0, len(curve), 4)],
        "heldout": {k: round(v, 3) for k, v in heldout.items()},
        "cpu_seconds": round(time.process_time() - began_s, 1),
    }


def parse(arguments: Sequence[str] | None = None) -> tuple[Config, bool]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shuffle-rewards", action="store_true")
    given = parser.parse_args(arguments)
    config = resolve(preset=given.preset, sets=given.set).config
    return replace(config, run=replace(config.run, seed=given.seed)), given.shuffle_rewards


async def main() -> None:
    from t1actors.sandbox.backend import NamespaceBackend

    config, shuffle = parse()
    with tempfile.TemporaryDirectory() as folder:
        backend = NamespaceBackend(Path(folder), name="recipe")
        async with backend.running():
            print(json.dumps(await experiment(config, backend, shuffle_rewards=shuffle)))


if __name__ == "__main__":
    anyio.run(main, backend="trio")
