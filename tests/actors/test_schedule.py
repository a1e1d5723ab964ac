"""What the configuration plans, and what it cannot plan."""

from pathlib import Path

import pytest

from t1actors import config as cfg
from t1actors.actors.schedule import Schedule
from t1actors.runtime.actor import Unrecoverable


def schedule(tmp_path: Path, *sets: str) -> Schedule:
    return Schedule(cfg.resolve(preset="smoke", sets=sets).config, tmp_path)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("tasks.heldout_per_level=0",), "evaluate steps"),
        (("tasks.train_count=0",), "train tasks"),
        (("schedule.warmup_steps=1", "tasks.warmup_count=0"), "warmup steps"),
        (("tasks.source=/nowhere",), "no such directory"),
        (("tasks.levels=[9]",), "level"),
    ],
)
def test_a_plan_that_has_no_tasks_for_a_step_is_refused_before_it_starts(
    tmp_path: Path, sets: tuple[str, ...], words: str
) -> None:
    with pytest.raises(Unrecoverable, match=words):
        schedule(tmp_path, *sets)


def test_a_directory_too_small_for_a_held_out_pool_is_refused_only_when_the_run_evaluates(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).mkdir()
        (tmp_path / name / "task.toml").write_text("")
    source = f"tasks.source={tmp_path}"
    with pytest.raises(Unrecoverable, match="heldout"):
        schedule(tmp_path, source)
    assert len(schedule(tmp_path, source, "schedule.evaluate=false", "schedule.train_steps=2").planned(1).trials) == 24


def test_pools_that_no_step_draws_from_may_be_empty(tmp_path: Path) -> None:
    assert len(schedule(tmp_path, "tasks.heldout_per_level=0", "schedule.evaluate=false")) == 5
