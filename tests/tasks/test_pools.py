"""Pools never share a task, draw every task once an epoch, and cost nothing to compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t1actors.config import RolloutConfig, TasksConfig
from t1actors.tasks.generate import parse_name
from t1actors.tasks.pools import DEMONSTRATION_SEED, KINDS, draw, pool_names, turn_limit
from t1actors.tasks.task import TaskError

CONFIG = TasksConfig()


def test_the_three_pools_share_no_seed_with_each_other_or_the_demonstrations():
    seeds = [{parse_name(name)[0] for name in pool_names(CONFIG, kind)} for kind in KINDS]  # type: ignore[index]
    assert len(set().union(*seeds)) == sum(map(len, seeds)) == 2048 + 120 + 512
    assert min(set().union(*seeds)) > DEMONSTRATION_SEED + 1_000_000


def test_levels_are_stratified_within_every_pool():
    for kind in KINDS:
        names = pool_names(CONFIG, kind)
        for i in range(0, len(names) - 2, 3):
            assert [name[:2] for name in names[i : i + 3]] == ["l1", "l2", "l3"]
    heldout = pool_names(CONFIG, "heldout")
    assert [sum(name.startswith(f"l{level}-") for name in heldout) for level in (1, 2, 3)] == [40, 40, 40]


def test_pools_that_overlap_are_refused_by_name():
    config = replace(CONFIG, heldout_seed=CONFIG.train_seed + 2000)
    with pytest.raises(TaskError, match=r"overlap the heldout pool.*move tasks\.train_seed or tasks\.heldout_seed"):
        pool_names(config, "train")
    with pytest.raises(TaskError, match=r"overlap the train pool"):
        pool_names(config, "heldout")


@given(size=st.integers(1, 30), seed=st.integers(0, 10**6), start=st.integers(0, 200), count=st.integers(0, 100))
def test_drawing_is_one_endless_sequence_of_permutations(size: int, seed: int, start: int, count: int):
    names = [f"n{i}" for i in range(size)]
    drawn = draw(names, seed, start, count)
    assert drawn == draw(names, seed, 0, start + count)[start:]
    epoch = draw(names, seed, start // size * size, size)
    assert sorted(epoch) == sorted(names)


@given(seed=st.integers(0, 10**6), start=st.integers(0, 5000), batches=st.integers(1, 30))
def test_every_stretch_that_is_drawn_has_its_fair_share_of_each_level(seed: int, start: int, batches: int):
    drawn = draw(pool_names(TasksConfig(train_count=300), "train"), seed, start, 3 * batches)
    shares = [sum(name.startswith(f"l{level}-") for name in drawn) for level in (1, 2, 3)]
    assert all(abs(share - batches) <= 1 for share in shares)


def test_epochs_and_seeds_have_orders_of_their_own():
    names = [f"n{i}" for i in range(50)]
    assert draw(names, 1, 0, 50) != draw(names, 1, 50, 50)
    assert draw(names, 1, 0, 50) != draw(names, 2, 0, 50)
    assert draw(names, 1, 0, 3) == GOLDEN_DRAW


def test_an_empty_pool_cannot_be_drawn_from():
    with pytest.raises(TaskError, match="empty pool"):
        draw([], 0, 0, 1)


def test_turn_limit_is_sub_goals_plus_slack_below_the_ceiling():
    rollout = RolloutConfig(turn_limit=7, turn_slack=3)
    assert [turn_limit(f"l{level}-9", rollout) for level in (1, 2, 3, 4, 5)] == [5, 6, 7, 7, 7]
    assert turn_limit("someone-elses-task", rollout) == 7
    assert turn_limit("l1-9", replace(rollout, turn_slack=0)) == 7


def test_a_directory_is_cut_into_disjoint_pools_by_its_names_alone(tmp_path: Path):
    for i in range(50):
        (tmp_path / f"task-{i}").mkdir()
        (tmp_path / f"task-{i}" / "task.toml").write_text("")
    (tmp_path / "notes").mkdir()
    config = TasksConfig(source=str(tmp_path), heldout_per_level=8)
    pools = {kind: pool_names(config, kind) for kind in KINDS}
    assert [len(pools[kind]) for kind in ("train", "heldout", "warmup")] == [32, 8, 10]
    assert len({name for names in pools.values() for name in names}) == 50
    assert pools == {kind: pool_names(config, kind) for kind in KINDS}


def test_a_missing_or_empty_directory_says_what_was_expected(tmp_path: Path):
    with pytest.raises(TaskError, match="no such directory"):
        pool_names(TasksConfig(source=str(tmp_path / "none")), "train")
    with pytest.raises(TaskError, match=r"no folder with a task\.toml"):
        pool_names(TasksConfig(source=str(tmp_path)), "train")


GOLDEN_DRAW = ["n31", "n12", "n1"]
