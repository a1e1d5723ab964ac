"""What passes when nothing is done is worth nothing, and breaking it costs what an assertion is worth."""

from __future__ import annotations

from pathlib import Path

import pytest

from t1actors.events import AssertionResult, counted
from t1actors.tasks.record import as_checked
from t1actors.verify.reward import reward
from t1actors.verify.task_check import check_task
from tests.verify.test_task_check import make
from tests.verify.trials import LIMITS, Bench, on_a_bench

SCALE = 20.0


@pytest.mark.parametrize(
    ("passed", "baseline", "p", "n"),
    [
        ("1111", "0000", 4, 4),
        ("0011", "0011", 0, 2),
        ("1111", "0011", 2, 2),
        ("1110", "0011", 1, 2),
        ("1100", "0011", 0, 2),
        ("0000", "0011", 0, 2),
        ("1111", "1111", 0, 0),
        ("", "", 0, 0),
    ],
)
def test_a_gain_counts_a_kept_baseline_does_not_and_a_broken_one_is_taken_off(
    passed: str, baseline: str, p: int, n: int
):
    results = tuple(
        AssertionResult(id=str(place), passed=ok == "1", baseline=before == "1")
        for place, (ok, before) in enumerate(zip(passed, baseline, strict=True))
    )
    assert counted(results) == (p, n)


@pytest.mark.usefixtures("host_makes_sandboxes")
def test_trials_of_a_checked_task_are_paid_for_what_they_gained(tmp_path: Path):
    task = make(tmp_path / "task")

    async def body(bench: Bench):
        found = await check_task(task, bench.agents, key="check", runs=1, limits=LIMITS)
        known = as_checked(task, found.expected, found.baseline)
        work = {
            "nothing": [],
            "half": ["touch made.txt"],
            "all": ["echo 41 and one more > made.txt"],
            "spoiling": ["echo 41 and one more > made.txt", "rm given.txt"],
            "only spoiling": ["rm given.txt"],
        }
        verdicts = {name: await bench.trial(known, commands, name) for name, commands in work.items()}
        return {name: (v.passed, v.expected, reward(v, SCALE)) for name, v in verdicts.items()}

    assert on_a_bench(body) == {
        "nothing": (0, 2, 0.0),
        "half": (1, 2, 1 / SCALE),
        "all": (2, 2, 2 / SCALE),
        "spoiling": (1, 2, 1 / SCALE),
        "only spoiling": (0, 2, 0.0),
    }
