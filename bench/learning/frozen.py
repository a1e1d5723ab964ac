"""Trials of a policy that stays as it is: for measurements that need many samples of one policy and train none.

Guarantees: their tasks are no run's (seeds from 400,000,000 on) and a measurement names its own range, so that what
one was trained on another never sees; levels come in turn, so any span of trials has them evenly.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.learning.rollout import Trial
from bench.learning.stage import Stage
from t1actors.actors.schedule import trial_seed
from t1actors.events import TrialSpec
from t1actors.tasks.pools import builtin_names, turn_limit
from t1actors.train.batch import Batch

FIRST_SEED = 400_000_000
RANGE = 1_000_000


async def frozen_trials(
    stage: Stage, name: str, levels: Sequence[int], count: int, *, number: int, temperature: float = 1.0
) -> tuple[Trial, ...]:
    """``count`` trials of the warm start on the tasks of range ``number``, in index order."""
    config = stage.config
    names = builtin_names(levels, count, FIRST_SEED + number * RANGE)
    specs = [
        TrialSpec(
            trial=f"{name}.t{index}",
            index=index,
            task=task,
            seed=trial_seed(config.run.seed, f"{name}.t{index}"),
            turn_limit=turn_limit(task, config.rollout),
        )
        for index, task in enumerate(names)
    ]
    return (await stage.play_trials(stage.initial, specs, temperature)).trials


def batch_of(stage: Stage, trials: Sequence[Trial]) -> Batch:
    """The trials with their rewards P / S."""
    scale = stage.config.verify.reward_scale
    return Batch.of([(trial.record, trial.passed / scale) for trial in trials], stage.geometry)
