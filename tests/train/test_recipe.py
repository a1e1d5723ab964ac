"""The recipe experiment plays the loop's schedule with real sandboxes; what it finds out is printed, never asserted."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from bench.learning.part import Context
from bench.recipe import experiment
from t1actors.config import resolve
from t1actors.sandbox.backend import NamespaceBackend


@pytest.mark.slow
def test_the_experiment_runs_a_schedule_to_its_end(tmp_path):
    sets = [
        "tasks.heldout_per_level=2",
        "rollout.batch_size=6",
        "schedule.recalibrate_steps=1",
        "schedule.train_steps=3",
    ]
    config = resolve(preset="demo", sets=sets).config
    config = replace(config, train=replace(config.train, actor=replace(config.train.actor, minibatches=2)))

    async def run() -> dict[str, object]:
        backend = NamespaceBackend(tmp_path, name="recipe")
        async with backend.running():
            return await experiment(config, Context(backend))

    figures = anyio.run(run, backend="trio")
    assert figures.keys() >= {"reward_first5", "reward_last5", "ratio", "heldout", "cpu_seconds"}
    assert figures["heldout"].keys() >= {"before", "before_greedy", "after"}
