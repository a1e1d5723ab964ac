"""A task that is graded in its own sandbox, through the pool and the verifier: tested before the seal, judged afterwards."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from t1actors import config as cfg
from t1actors.actors.pool import Create, Pool, Reclaim, Run, Seal
from t1actors.actors.verifier import Grade, Verifier
from t1actors.cli.preflight import unmet
from t1actors.events import AnyEvent, Graded, SandboxReady, SandboxSealed, StepOpened, TrialFailed, TrialSpec
from t1actors.harness.shell import ShellHarness
from t1actors.log.blobs import MemoryBlobs
from t1actors.models.folder import model_folder
from t1actors.models.tokenizer import Tokenizer
from t1actors.runtime.actor import Actor, ActorContext, Effect, Performing
from tests.verify.samples import WORK, sample_task


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    sample_task(tmp_path / "tasks", toml="grading = 'same-sandbox'")
    return tmp_path / "tasks"


def configuration(tasks: Path, *sets: str) -> cfg.Config:
    return cfg.resolve(preset="smoke", sets=[f'tasks.source="{tasks}"', "sandbox.host_base=true", *sets]).config


async def perform(actor: Actor, effect: Effect) -> Sequence[AnyEvent]:
    async def report(done: float, total: float, unit: str) -> None: ...

    return await actor.perform(effect, Performing(attempt=1, report=report))


def test_the_pool_tests_before_it_seals_and_the_verifier_judges(
    host_makes_sandboxes: None, tmp_path: Path, tasks: Path
) -> None:
    config, blobs = configuration(tasks, "verify.same_sandbox=true"), MemoryBlobs()

    async def main() -> tuple[AnyEvent, AnyEvent, AnyEvent]:
        pool = Pool(ActorContext("pool", tmp_path / "run", config, blobs, 1, anyio.current_time))
        async with pool.running():
            spec = TrialSpec(trial="s0.t0", index=0, task="sample", seed=0, turn_limit=3)
            opened = StepOpened(
                step=0, purpose="train", version="v", version_index=0, batch_size=1, temperature=1.0, trials=(spec,)
            )
            [ready] = await perform(pool, Create(key="s0.t0/create", trial="s0.t0", task="sample"))
            for event in (opened, ready):
                pool.fold(pool.initial(), event)
            await perform(pool, Run(key="s0.t0/0/run", trial="s0.t0", turn=0, command="; ".join(WORK)))
            [sealed] = await perform(pool, Seal(key="s0.t0/seal", trial="s0.t0", task="sample"))
            await perform(pool, Reclaim(key="s0.t0/kill", trial="s0.t0"))
        verifier = Verifier(ActorContext("verifier", tmp_path / "run", config, blobs, 1, anyio.current_time))
        verifier.fold(verifier.initial(), sealed)
        [graded] = await perform(verifier, Grade(key="s0.t0/grade", trial="s0.t0"))
        return ready, sealed, graded

    ready, sealed, graded = anyio.run(main, backend="trio")
    assert isinstance(sealed, SandboxSealed)
    assert sealed.tested is not None
    assert isinstance(graded, Graded)
    assert (graded.outcome, graded.mode, graded.passed, graded.expected) == ("graded", "same-sandbox", 3, 3), (
        graded.detail
    )
    assert graded.reward == 3 / config.verify.reward_scale
    assert graded.warnings
    assert isinstance(ready, SandboxReady)
    assert graded.isolation == ready.isolation


def test_a_run_that_does_not_allow_it_refuses_the_task_by_name(
    host_makes_sandboxes: None, tmp_path: Path, tasks: Path
) -> None:
    config = configuration(tasks)

    async def main() -> AnyEvent:
        pool = Pool(ActorContext("pool", tmp_path / "run", config, MemoryBlobs(), 1, anyio.current_time))
        async with pool.running():
            [failed] = await perform(pool, Create(key="s0.t0/create", trial="s0.t0", task="sample"))
            return failed

    failed = anyio.run(main, backend="trio")
    assert isinstance(failed, TrialFailed)
    assert failed.cause == "task"
    assert "task sample: its task.toml asks for grading in the agent's own sandbox" in failed.detail
    task = sample_task(tasks, toml="grading = 'same-sandbox'")
    harness = ShellHarness(Tokenizer.from_folder(model_folder("builtin:demo")))
    assert any("verify.same_sandbox=true" in reason for reason in unmet(task, config, harness))
