"""The run's steps, from the configuration alone: purpose, temperature, tasks and seeds of every step.

Pure and deterministic: the publisher asks it again after a restart and gets the same answer. Task order is a seeded
permutation of the pool, fresh for every epoch (T1 section 1); one sample per task per step.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from t1actors.actors.trials import trial_id, trial_seed
from t1actors.config import Config
from t1actors.events import Purpose, TrialSpec
from t1actors.runtime.actor import Unrecoverable
from t1actors.tasks.choice import TaskChoice, read_choice
from t1actors.tasks.pools import KINDS, PoolKind, draw, pool_names, turn_limit
from t1actors.tasks.task import TaskError

_POOL_OF: dict[Purpose, PoolKind] = {
    "evaluate": "heldout",
    "warmup": "warmup",
    "recalibrate": "train",
    "train": "train",
}
_COUNT_OF: dict[PoolKind, str] = {"train": "train_count", "heldout": "heldout_per_level", "warmup": "warmup_count"}


@dataclass(frozen=True)
class PlannedStep:
    """One step before it opens: ``batch_size`` trials train or count; ``trials`` are launched, in index order."""

    step: int
    purpose: Purpose
    temperature: float
    batch_size: int
    trials: tuple[TrialSpec, ...]


def purposes(config: Config) -> list[tuple[Purpose, float]]:
    """(purpose, temperature) of every step of a run, in order."""
    plan, temperature = config.schedule, config.rollout.temperature
    heldout: list[tuple[Purpose, float]] = [("evaluate", 1.0), ("evaluate", 0.0)]
    warmup: tuple[Purpose, float] = ("warmup", temperature)
    recalibrate: tuple[Purpose, float] = ("recalibrate", temperature)
    train: tuple[Purpose, float] = ("train", temperature)
    return [
        *(heldout if plan.evaluate else []),
        *[warmup] * plan.warmup_steps,
        *[recalibrate] * plan.recalibrate_steps,
        *[train] * plan.train_steps,
        *(heldout if plan.evaluate else []),
    ]


class Schedule:
    """The steps of a run: held-out evaluation (sampled, then greedy), warm-up, recalibration, training, evaluation again."""

    def __init__(self, config: Config, run_dir: Path, chosen: TaskChoice | None = None) -> None:
        """``chosen``: of a directory, the tasks to draw from; by default what the run in ``run_dir`` chose when it began.

        Raises ``Unrecoverable``: the tasks cannot be listed, or a step would have none.
        """
        self._config = config
        self._purposes = purposes(config)
        try:
            choice = chosen or read_choice(run_dir)
            names = choice.names if choice is not None else None
            self._pools = {kind: pool_names(config.tasks, kind, names) for kind in KINDS}
        except TaskError as error:
            raise Unrecoverable(str(error)) from error
        for purpose, kind in _POOL_OF.items():
            if self.last(purpose) is not None and not self._pools[kind]:  # a step without trials would never end
                raise Unrecoverable(
                    f"the schedule has {purpose} steps, and tasks.source = {config.tasks.source!r} leaves no {kind} tasks "
                    "for them (of a directory, at most a fifth each goes to the held-out and the warm-up pool); add tasks, "
                    f"raise tasks.{_COUNT_OF[kind]}, or leave these steps out"
                )

    def pool(self, kind: PoolKind) -> list[str]:
        """The names of its tasks."""
        return self._pools[kind]

    def __len__(self) -> int:
        return len(self._purposes)

    def purpose(self, step: int) -> Purpose:
        """What ``step`` is for. Raises ``IndexError`` behind the last step."""
        return self._purposes[step][0]

    def last(self, purpose: Purpose) -> int | None:
        """The last step of that purpose, or None."""
        return max((s for s, (p, _) in enumerate(self._purposes) if p == purpose), default=None)

    def planned(self, step: int, without: Collection[str] = ()) -> PlannedStep:
        """The step in full; no trial is of a task ``without``. Without a task left it has no trials. Raises ``IndexError``
        past the end."""
        purpose, temperature = self._purposes[step]
        pool = self._pools[_POOL_OF[purpose]]
        if purpose == "evaluate":
            names = [name for name in pool if name not in without]
            wanted = len(names)
        else:
            wanted = self._config.rollout.batch_size
            launched = self._config.launched_per_step
            earlier = sum(
                1 for p, _ in self._purposes[:step] if (p == "warmup") == (purpose == "warmup") and p != "evaluate"
            )
            names = draw(pool, self._config.run.seed, earlier * launched, launched)
            names = self._substituted(names, pool, without, start=earlier * launched)
        trials = tuple(
            TrialSpec(
                trial=trial_id(step, index),
                index=index,
                task=name,
                seed=trial_seed(self._config.run.seed, trial_id(step, index)),
                turn_limit=turn_limit(name, self._config.rollout),
            )
            for index, name in enumerate(names)
        )
        return PlannedStep(step=step, purpose=purpose, temperature=temperature, batch_size=wanted, trials=trials)

    def substitute(self, step: int, index: int, without: Collection[str]) -> str | None:
        """A task for trial ``index`` of ``step`` in place of one ``without``, or None: an evaluation has each task once."""
        purpose = self.purpose(step)
        left = [name for name in self._pools[_POOL_OF[purpose]] if name not in without]
        if purpose == "evaluate" or not left:
            return None
        return draw(left, self._config.run.seed, index, 1)[0]

    def _substituted(self, names: list[str], pool: Sequence[str], without: Collection[str], *, start: int) -> list[str]:
        """``names`` with others of the pool in place of those ``without``, each as seldom as can be."""
        kept = Counter(name for name in names if name not in without)
        left = [name for name in pool if name not in without]
        if not left:
            return []
        fresh = [name for name in draw(left, self._config.run.seed, start, len(left)) if name not in kept]
        others = itertools.cycle(fresh or left)
        return [name if name in kept else next(others) for name in names]
