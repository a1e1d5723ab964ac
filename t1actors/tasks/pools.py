"""Which tasks a run draws from, and in which order. Pure: nothing here reads a task.

Guarantees: the train, held-out and warm-up pools of one configuration share no task; drawing is a seeded permutation,
fresh every epoch; levels are stratified, in the pools and in what is drawn from them, so that batches are alike in level.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal

from t1actors.config import RolloutConfig, TasksConfig
from t1actors.tasks.draws import Draws
from t1actors.tasks.generate import LEVELS, parse_name, sub_goals_of_level, task_name
from t1actors.tasks.task import Task, TaskError

PoolKind = Literal["train", "heldout", "warmup"]
KINDS: tuple[PoolKind, ...] = ("train", "heldout", "warmup")
DEMONSTRATION_SEED = 10_000_000
"""First seed of the shipped warm start's demonstrations; no pool of a default configuration reaches it."""
BUILTIN = "builtin"


def pool_names(tasks: TasksConfig, kind: PoolKind, chosen: Sequence[str] | None = None) -> list[str]:
    """Names of the tasks of one pool. Built-in names are computed; those of a directory are ``chosen`` ones, or listed.

    Raises:
        TaskError: pools overlap, the directory has no tasks, or a level is not one of the built-in ones.
    """
    if tasks.source != BUILTIN:
        return _directory_pool(_listed(Path(tasks.source)) if chosen is None else chosen, tasks, kind)
    unknown = [level for level in tasks.levels if level not in LEVELS]
    if unknown:
        raise TaskError(f"tasks.levels: no level {unknown[0]}; built-in tasks have levels {LEVELS[0]} to {LEVELS[-1]}")
    spans = {
        "train": range(tasks.train_seed, tasks.train_seed + tasks.train_count),
        "heldout": range(tasks.heldout_seed, tasks.heldout_seed + tasks.heldout_per_level * len(tasks.levels)),
        "warmup": range(tasks.warmup_seed, tasks.warmup_seed + tasks.warmup_count),
    }
    for other in KINDS:
        if other != kind and spans[other].start < spans[kind].stop and spans[kind].start < spans[other].stop:
            raise TaskError(
                f"tasks.{kind}_seed: seeds {spans[kind].start} to {spans[kind].stop - 1} overlap the {other} pool's "
                f"{spans[other].start} to {spans[other].stop - 1}; move tasks.{kind}_seed or tasks.{other}_seed"
            )
    return builtin_names(tasks.levels, len(spans[kind]), spans[kind].start)


def builtin_names(levels: Sequence[int], count: int, seed: int) -> list[str]:
    """``count`` names from ``seed`` on, one seed each, levels in turn."""
    return [task_name(seed + i, levels[i % len(levels)]) for i in range(count)]


def draw(names: Sequence[str], seed: int, start: int, count: int) -> list[str]:
    """Names ``start`` to ``start + count`` of the endless sequence that goes through ``names`` once an epoch, each
    epoch in an order of its own."""
    if not names:
        raise TaskError("cannot draw from an empty pool; the configuration's [tasks] section gives it no tasks")
    drawn: list[str] = []
    while len(drawn) < count:
        epoch, place = divmod(start + len(drawn), len(names))
        order = _stratified(names, Draws(f"epoch-{seed}-{epoch}"))
        drawn += order[place : place + count - len(drawn)]
    return drawn


def _stratified(names: Sequence[str], draws: Draws) -> list[str]:
    """``names`` in drawn order, every level spread evenly over the whole."""
    by_level: dict[int, list[str]] = {}
    for name in names:
        parsed = parse_name(name)
        by_level.setdefault(parsed[1] if parsed is not None else 0, []).append(name)
    placed = [
        ((place + 0.5) / len(group), level, name)
        for level, group in sorted(by_level.items())
        for place, name in enumerate(draws.shuffled(group))
    ]
    return [name for _, _, name in sorted(placed)]


def turn_limit(task: Task | str, rollout: RolloutConfig) -> int:
    """The most turns a trial of ``task`` (or of the task of that name) may take: its sub-goals plus the configured
    slack, where both are known, and never more than ``rollout.turn_limit``."""
    if isinstance(task, Task):
        sub_goals = task.sub_goals
    else:
        parsed = parse_name(task)
        sub_goals = sub_goals_of_level(parsed[1]) if parsed is not None else 0
    if rollout.turn_slack <= 0 or sub_goals == 0:
        return rollout.turn_limit
    return min(rollout.turn_limit, sub_goals + rollout.turn_slack)


def _directory_pool(names: Sequence[str], tasks: TasksConfig, kind: PoolKind) -> list[str]:
    """A directory's tasks in an order that only their names decide, cut into held-out, warm-up and train: the first two
    take what the configuration asks for, at most a fifth each."""
    ordered = sorted(names, key=lambda name: sha256(name.encode()).digest())
    heldout = min(tasks.heldout_per_level, len(ordered) // 5)
    warmup = min(tasks.warmup_count, len(ordered) // 5)
    parts = {
        "heldout": ordered[:heldout],
        "warmup": ordered[heldout : heldout + warmup],
        "train": ordered[heldout + warmup :],
    }
    return sorted(parts[kind])


def _listed(directory: Path) -> list[str]:
    if not directory.is_dir():
        raise TaskError(
            f"tasks.source = {str(directory)!r}: no such directory; name one that holds a folder a task, or {BUILTIN!r}"
        )
    found = [
        path.name for path in directory.iterdir() if (path / "task.toml").is_file() and not path.name.startswith(".")
    ]
    if not found:
        raise TaskError(f"tasks.source = {str(directory)!r}: no folder with a task.toml in it")
    return found
