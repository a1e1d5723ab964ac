"""The evidence on learning: errors are what statistics says they are, arms are what they claim, controls control."""

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.learning.__main__ import main as command
from bench.learning.arms import (
    Arm,
    binary,
    constant_values,
    counted,
    derangement,
    group_relative,
    launched_in_groups,
    permuted,
    ratio,
)
from bench.learning.learner import Learner
from bench.learning.parts import PARTS
from bench.learning.statistics import Estimate, mean, paired
from bench.sections import Document, update
from bench.tables import Table, as_json, markdown
from t1actors.actors.schedule import Schedule
from t1actors.config import TrainConfig, resolve
from t1actors.train.actor_step import advantages
from t1actors.train.batch import Batch
from t1actors.train.networks import geometry_of
from tests.train.tiny_batches import batch_of, tiny_policy

ROOT = Path(__file__).parent.parent.parent
POLICY = tiny_policy()
NUMBERS = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30)


@dataclass(frozen=True)
class Task:
    task: str


@dataclass(frozen=True)
class Played:
    """What pay looks at of a trial."""

    record: Task
    passed: int
    expected: int = 10

    @property
    def share(self) -> float:
        return self.passed / self.expected

    @property
    def solved(self) -> bool:
        return self.passed == self.expected


def trials(*passed, size=1):
    return [Played(Task(f"task{n // size}"), count) for n, count in enumerate(passed)]


def paid_batch(pay, played):
    """A tiny batch, one chunk a trial, paid as ``pay`` says."""
    made = batch_of(POLICY, len(played))
    return Batch.of(zip((t.record for t in made.trials), pay(played, 0), strict=True), geometry_of(POLICY))


# --- statistics ---------------------------------------------------------------------------------------------------------


@given(NUMBERS)
def test_an_estimate_has_the_mean_and_the_standard_error_that_numpy_finds(values):
    found = Estimate.of(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert found.error == pytest.approx(np.std(values, ddof=1) / np.sqrt(len(values)), rel=1e-6, abs=1e-9)
    assert found.count == len(values)


def test_known_values_have_their_known_error():
    assert Estimate.of([1.0, 2.0, 3.0]) == Estimate(2.0, pytest.approx(1 / 3**0.5), 3)
    assert Estimate.of([0.6840277777777777] * 3) == Estimate(0.6840277777777777, 0.0, 3)


def test_one_value_has_no_error_and_none_is_refused():
    assert Estimate.of([0.5]) == Estimate(0.5, None, 1)
    with pytest.raises(ValueError, match="nothing was measured"):
        Estimate.of([])


def test_what_both_sides_share_is_not_in_the_error_of_a_paired_difference():
    shared = [0.0, 10.0, 20.0]
    found = paired([value + 1.0 for value in shared], shared)
    assert (found.mean, found.error) == (1.0, 0.0)
    with pytest.raises(ValueError, match="longer"):
        paired([1.0], [1.0, 2.0])


def test_an_estimate_shows_its_error_in_a_table_and_keeps_all_of_it_in_json():
    table = Table("T", ("arm", "share"), (("a", Estimate(0.5, 0.0123, 4)), ("b", Estimate(0.25, None, 1))))
    assert "0.500 ± 0.012" in markdown(table)
    assert as_json(table)["rows"] == [
        {"arm": "a", "share": {"mean": 0.5, "error": 0.0123, "count": 4}},
        {"arm": "b", "share": {"mean": 0.25, "error": None, "count": 1}},
    ]


# --- what a trial is paid -----------------------------------------------------------------------------------------------


def test_a_count_a_ratio_and_a_binary_pay_what_they_say():
    played = trials(10, 4)
    assert counted(20)(played, 0) == [0.5, 0.2]
    assert ratio(played, 0) == [1.0, 0.4]
    assert binary(played, 0) == [1.0, 0.0]


@given(st.integers(2, 200), st.integers(0, 2**32))
def test_a_control_leaves_no_trial_its_own_pay_and_loses_none(count, seed):
    order = derangement(count, f"seed-{seed}")
    assert sorted(order) == list(range(count))
    assert all(place != item for place, item in enumerate(order))


def test_a_derangement_is_decided_by_its_seed_and_all_are_drawn():
    assert derangement(9, "a") == derangement(9, "a")
    drawn = {tuple(derangement(4, str(seed))) for seed in range(400)}
    assert len(drawn) == 9  # the derangements of 4 items
    with pytest.raises(ValueError, match="two trials"):
        derangement(1, "a")


def test_permuted_pay_is_new_in_every_step_and_the_same_in_every_run():
    played = trials(*range(8))
    pay = permuted(counted(1), seed=3)
    assert sorted(pay(played, 0)) == [float(n) for n in range(8)]
    assert pay(played, 0) == permuted(counted(1), seed=3)(played, 0)
    assert pay(played, 0) != pay(played, 1)


# --- advantages, through the credit that trains -------------------------------------------------------------------------


def credited(pay, baseline, played):
    batch = paid_batch(pay, played)
    train = TrainConfig(gamma=1.0, lam=1.0)
    return batch, advantages(batch, constant_values(batch, baseline), train)


def test_the_batch_means_advantage_is_pay_minus_mean_at_every_token():
    played = trials(1, 5, 9)
    batch, advantages_T = credited(counted(10), "batch mean", played)
    expected = [t.reward - mean([0.1, 0.5, 0.9]) for t in batch.trials for _ in range(t.sampled)]
    np.testing.assert_allclose(advantages_T, expected, atol=1e-6)
    assert len({t.sampled for t in batch.trials}) > 1, "the mean is over trials: lengths must differ to show it"


def test_a_group_relative_advantage_is_the_standard_score_in_its_task_at_every_token():
    played = trials(1, 3, 7, 7, 2, 8, size=2)
    batch, advantages_T = credited(group_relative(counted(10), 2), "zero", played)
    scores = []
    for low, high in ((0.1, 0.3), (0.7, 0.7), (0.2, 0.8)):
        deviation = np.std([low, high], ddof=1)
        scores += [(value - (low + high) / 2) / (deviation + 1e-6) for value in (low, high)]
    expected = [score for t, score in zip(batch.trials, scores, strict=True) for _ in range(t.sampled)]
    np.testing.assert_allclose(advantages_T, expected, atol=1e-5)
    assert scores[2:4] == [0.0, 0.0], "a group that agrees teaches nothing"


def test_groups_of_several_tasks_are_refused():
    with pytest.raises(ValueError, match="one task each"):
        group_relative(counted(10), 2)(trials(1, 2, 3, 4), 5)


def test_a_group_relative_step_launches_each_task_as_often_as_its_group_and_as_many_episodes():
    config = resolve(preset="demo", sets=["rollout.batch_size=16", "schedule.evaluate=false"]).config
    planned = Schedule(config, Path(".")).planned(0)
    grouped = launched_in_groups(planned, 8)
    assert [spec.task for spec in grouped.trials] == [planned.trials[0].task] * 8 + [planned.trials[1].task] * 8
    assert [(s.trial, s.index, s.seed) for s in grouped.trials] == [
        (s.trial, s.index, s.seed) for s in planned.trials[:16]
    ]
    assert len({spec.turn_limit for spec in grouped.trials[:8]}) == 1
    with pytest.raises(ValueError, match="whole number of groups"):
        launched_in_groups(replace(planned, batch_size=15), 8)


# --- the command and its results ----------------------------------------------------------------------------------------


def test_sections_of_two_commands_survive_each_other(tmp_path):
    path = tmp_path / "RESULTS.md"
    update(path, {"engine": "### Speed\n\nfast", "log": "x"}, head="# Results\n\nfirst")
    update(path, {"learning: seeds": "it learns"})
    update(path, {"engine": "faster", "log": "y"}, head="# Results\n\nsecond")
    update(path, {"learning: critic": "it is warm"})
    found = Document.parse(path.read_text())
    assert list(found.sections) == ["engine", "log", "learning: seeds", "learning: critic"]
    assert "it learns" in found.sections["learning: seeds"]
    assert "faster" in found.sections["engine"]
    assert found.head == "# Results\n\nsecond\n\n"
    again = path.read_text()
    update(path, {"log": "y"})
    assert path.read_text() == again


def test_the_results_in_the_repository_are_sections_with_one_name_each():
    text = (ROOT / "bench" / "RESULTS.md").read_text()
    assert Document.parse(text).text() == text


def test_the_command_lists_its_parts_with_their_questions_and_costs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench.learning", "--list"])
    command()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*(part.name for part in PARTS), "all"]
    assert all("CPU s" in line for line in lines)


def test_an_unknown_part_is_refused_and_the_known_ones_are_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench.learning", "sedes"])
    with pytest.raises(SystemExit):
        command()
    assert "seeds" in capsys.readouterr().err


def test_an_arm_without_a_critic_needs_lambda_one():
    config = resolve(preset="demo", sets=["train.lam=0.9"]).config
    with pytest.raises(ValueError, match="lam = 1"):
        Learner(None, config, Arm("batch mean", counted(20), "batch mean"))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["seeds", "critic", "rewards"])
def test_a_part_runs_to_its_end_in_quick_mode_and_writes_no_results(part, tmp_path):
    before = (ROOT / "bench" / "RESULTS.md").read_bytes()
    command = [sys.executable, "-m", "bench.learning", part, "--quick", "--json", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"## learning: {part}" in done.stdout
    assert (tmp_path / "found.json").exists()
    assert (ROOT / "bench" / "RESULTS.md").read_bytes() == before
