"""Built-in tasks are pure functions of seed and level, and of a shape that the grader and the tiny model can rely on."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.tasks.draws import Draws
from t1actors.tasks.families import FAMILIES
from t1actors.tasks.generate import (
    LEVELS,
    SUBMIT,
    demonstration,
    make_named_task,
    make_task,
    parse_name,
    sub_goals_of_level,
    task_name,
)
from t1actors.tasks.task import TaskError
from t1actors.tasks.words import WORDS

seeds = st.integers(0, 10**9)
levels = st.sampled_from(list(LEVELS))


def test_a_task_is_the_same_on_every_machine_and_python():
    """Golden: change it only on purpose, since it renames every recorded task's meaning."""
    task = make_task(100_000_017, 2)
    assert task.families == GOLDEN_FAMILIES
    assert task.instruction == GOLDEN_INSTRUCTION
    everything = repr([make_task(seed, level) for seed in range(40) for level in LEVELS])
    assert sha256(everything.encode()).hexdigest() == GOLDEN_DIGEST


@given(seed=seeds, level=levels)
def test_level_decides_sub_goals_and_assertions_stay_between_5_and_20(seed: int, level: int):
    task = make_task(seed, level)
    assert len(task.sub_goals) == sub_goals_of_level(level) == level + 1
    assert len(set(task.families)) == len(task.families)
    assert 5 <= len(task.assertions) <= 20
    ids = [name for name, _ in task.assertions]
    assert len(set(ids)) == len(ids)
    assert all(name.isascii() and '"' not in name and "\\" not in name for name in ids)


@given(seed=seeds, level=levels)
def test_instructions_stay_short_enough_for_the_tiny_model(seed: int, level: int):
    lines = make_task(seed, level).instruction.split("\n")
    assert len(lines) == level + 1
    assert all(len(line) <= 56 for line in lines)


@given(seed=seeds, level=levels)
def test_files_of_different_sub_goals_never_meet(seed: int, level: int):
    paths = [path for path, _ in make_task(seed, level).files]
    assert len(set(paths)) == len(paths)
    tops = [{path.split("/")[0] for path, _ in goal.files} for goal in make_task(seed, level).sub_goals]
    assert sum(map(len, tops)) == len(set().union(*tops))


@given(seed=seeds, level=levels)
def test_a_name_is_enough_to_make_the_task_again(seed: int, level: int):
    task = make_task(seed, level)
    assert parse_name(task.name) == (seed, level)
    assert make_named_task(task_name(seed, level)) == task


@pytest.mark.parametrize(
    "name", ["", "l6-1", "l0-1", "l2-", "l2-01", "l2--1", "l2-1x", "xl2-1", "l2-1\n", "hello-world"]
)
def test_other_names_are_no_built_in_tasks(name: str):
    assert parse_name(name) is None
    with pytest.raises(TaskError, match="names no built-in task"):
        make_named_task(name)


def test_a_level_out_of_range_is_refused():
    with pytest.raises(TaskError, match="levels 1 to 5, not 6"):
        make_task(1, 6)


def test_every_family_is_drawn_and_has_two_or_three_mistakes():
    drawn = {family for seed in range(200) for family in make_task(seed, 3).families}
    assert drawn == set(FAMILIES)
    assert len(FAMILIES) == 13
    for task in (make_task(seed, 5) for seed in range(20)):
        assert all(2 <= len(goal.wrong) <= 3 for goal in task.sub_goals)


def test_no_word_contains_another():
    assert len(WORDS) == 256
    assert not [(a, b) for a in WORDS for b in WORDS if a != b and a in b]


@given(seed=seeds, level=levels)
def test_a_perfect_demonstration_is_the_solution_and_submits(seed: int, level: int):
    task = make_task(seed, level)
    assert demonstration(task, Draws("any")) == (*task.solution, SUBMIT)


def test_noise_makes_about_the_asked_share_of_sub_goals_wrong_and_stops_early():
    task = make_task(5, 5)
    shown = [demonstration(task, Draws(f"demo-{i}"), wrong_share=0.5, stop_share=0.25) for i in range(400)]
    assert all(commands[-1] == SUBMIT and SUBMIT not in commands[:-1] for commands in shown)
    first_right = task.sub_goals[0].right
    right = sum(commands[: len(first_right)] == first_right for commands in shown)
    assert 150 < right < 300
    whole = sum(not set(task.sub_goals[-1].right).isdisjoint(commands) for commands in shown)
    assert whole < 200


@settings(max_examples=50)
@given(st.text(max_size=8), st.integers(1, 40), st.data())
def test_a_sample_has_no_item_twice_and_a_shuffle_keeps_all(seed: str, size: int, data: st.DataObject):
    items = list(range(size))
    count = data.draw(st.integers(0, size))
    sampled = Draws(seed).sample(items, count)
    assert len(set(sampled)) == len(sampled) == count
    assert sorted(Draws(seed).shuffled(items)) == items


GOLDEN_FAMILIES = ("sort", "tar", "head")
GOLDEN_INSTRUCTION = (
    "1 sort pitol.dat down into rafel.txt\n2 pack dir sike into kopur.tgz\n3 put first 3 lines of dapa.log in lokos.txt"
)
GOLDEN_DIGEST = "879ed1ba17df3a50f53da66f8acc62f6bac41e6194f5200b1070f46a628b8de9"
