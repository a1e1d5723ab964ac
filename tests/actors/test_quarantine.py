"""Tasks for which no sandbox can be made (S6): named after some tries, not drawn again; with none left the run ends (S5)."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from t1actors import config as cfg
from t1actors.actors.assembler import Assembler
from t1actors.actors.quarantine import named
from t1actors.actors.schedule import Schedule
from t1actors.events import (
    BatchSealed,
    BatchShort,
    EffectFinished,
    RunFailed,
    SandboxReady,
    TaskQuarantined,
    TrialFailed,
    TrialReplaced,
    TrialSpec,
)
from tests.actors.test_assembler import Bench as AssemblerBench
from tests.actors.test_pool import Bench as PoolBench
from tests.actors.test_publisher import Bench as PublisherBench
from tests.golden_events import example

TASK = "l1-100000000"


def quarantined(task: str) -> TaskQuarantined:
    return TaskQuarantined(task=task, tries=3, cause="task", detail="no such base")


class Pool:
    """A pool for which one trial after the other of the same task is opened."""

    def __init__(self, tmp_path: Path) -> None:
        self.bench = PoolBench(tmp_path)
        self.number = 0

    def end_creation(self, *results: object) -> list[object]:
        trial = f"s0.t{self.number}"
        for result in results:
            self.bench.state = self.bench.pool.fold(self.bench.state, replace(result, trial=trial))
        decision = self.bench.send(EffectFinished(key=f"{trial}/create", status="done", seconds=1.0))
        self.number += 1
        spec = TrialSpec(trial=f"s0.t{self.number}", index=self.number, task=TASK, seed=1, turn_limit=3)
        self.bench.send(TrialReplaced(step=0, temperature=1.0, failed=trial, cause="task", replacement=spec))
        return list(decision.events)


NOT_MADE = TrialFailed(trial="", cause="task", detail="no such base", creating=True)
MADE = example(SandboxReady)
BROKEN_LATER = TrialFailed(trial="", cause="SandboxDied")


def test_a_task_that_never_creates_is_quarantined_after_three_trials(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    assert pool.end_creation(NOT_MADE) == []
    assert pool.end_creation(NOT_MADE) == []
    assert pool.end_creation(NOT_MADE) == [quarantined(TASK)]
    assert pool.end_creation(NOT_MADE) == []  # one that was under way: it is said once


def test_a_sandbox_that_is_made_takes_earlier_tries_back_and_later_faults_are_not_the_tasks(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    for result in (NOT_MADE, NOT_MADE, MADE, NOT_MADE, BROKEN_LATER, BROKEN_LATER, BROKEN_LATER, NOT_MADE):
        assert pool.end_creation(result) == []
    assert pool.end_creation(NOT_MADE) == [quarantined(TASK)]


# --- what is drawn ---


def schedule(tmp_path: Path, *sets: str) -> Schedule:
    return Schedule(cfg.resolve(preset="smoke", sets=sets).config, tmp_path)


def tasks_of(schedule: Schedule, step: int, without: set[str]) -> list[str]:
    return [spec.task for spec in schedule.planned(step, without).trials]


@pytest.mark.parametrize("step", range(2, 5))
def test_a_task_in_quarantine_is_not_drawn_and_another_takes_its_place(tmp_path: Path, step: int) -> None:
    plan = schedule(tmp_path, "schedule.evaluate=false", "schedule.train_steps=5", "tasks.train_count=400")
    before = tasks_of(plan, step, set())
    after = tasks_of(plan, step, {before[0], before[2]})
    assert len(after) == len(before)
    assert len(set(after)) == len(after)
    assert [task for task in after if task in before] == [*before[1:2], *before[3:]]


def test_an_evaluation_goes_on_without_the_tasks_in_quarantine(tmp_path: Path) -> None:
    plan = schedule(tmp_path)
    assert plan.purpose(0) == "evaluate"
    before = tasks_of(plan, 0, set())
    planned = plan.planned(0, {before[1]})
    assert [spec.task for spec in planned.trials] == [before[0], *before[2:]]
    assert planned.batch_size == len(before) - 1
    assert plan.substitute(0, 7, {before[1]}) is None


def test_the_same_quarantine_draws_the_same_tasks_and_none_draws_none(tmp_path: Path) -> None:
    plan = schedule(tmp_path, "schedule.evaluate=false")
    first = plan.planned(1, {TASK})
    assert first == plan.planned(1, {TASK})
    assert plan.planned(1) == plan.planned(1, {"another task"})
    assert plan.planned(1, set(plan.pool("train"))).trials == ()
    assert plan.substitute(1, 9, set(plan.pool("train"))) is None


# --- replacements ---


def assembler(tmp_path: Path, launched: int, wanted: int) -> AssemblerBench:
    bench = AssemblerBench(tmp_path, launched, wanted)
    context_config = cfg.resolve(preset="smoke", sets=["schedule.evaluate=false"]).config
    bench.assembler._schedule = Schedule(context_config, tmp_path)
    return bench


def test_a_trial_of_a_task_in_quarantine_is_replaced_by_one_of_another_task(tmp_path: Path) -> None:
    bench = assembler(tmp_path, launched=2, wanted=2)
    assert isinstance(bench.assembler, Assembler)
    bench.send(TrialFailed(trial="s0.t0", cause="task", creating=True))
    [same] = bench.of(TrialReplaced)
    assert isinstance(same, TrialReplaced)
    assert same.replacement.task == TASK
    bench.send(quarantined(TASK))
    bench.send(TrialFailed(trial="s0.t2", cause="quarantined"))
    [_, other] = bench.of(TrialReplaced)
    assert isinstance(other, TrialReplaced)
    assert other.replacement.task not in (TASK, "")
    assert other.replacement.trial == "s0.t3"


def test_a_step_whose_tasks_are_all_in_quarantine_ends_short(tmp_path: Path) -> None:
    bench = assembler(tmp_path, launched=1, wanted=1)
    for task in bench.assembler._schedule.pool("train"):
        bench.send(quarantined(task))
    bench.send(TrialFailed(trial="s0.t0", cause="quarantined"))
    assert not bench.of(TrialReplaced)
    assert bench.of(BatchShort)
    assert bench.batch().items == ()


# --- the end ---


def test_a_run_without_a_task_left_ends_and_names_them(tmp_path: Path) -> None:
    bench = PublisherBench(tmp_path, "schedule.evaluate=false", "tasks.train_count=2")
    for task in bench.publisher._schedule.pool("train"):
        bench.send(quarantined(task))
    assert "l1-100000000" in bench.publisher._schedule.pool("train")
    bench.start()
    assert bench.opened == []
    bench.state.ended = False
    [failed] = bench.publisher._open(bench.state, 0).events
    assert isinstance(failed, RunFailed)
    assert "no task is left to draw" in failed.reason
    assert "no such base" in failed.reason


def test_a_step_of_which_nothing_was_graded_says_which_tasks_cannot_be_made(tmp_path: Path) -> None:
    bench = PublisherBench(tmp_path, "schedule.evaluate=false")
    bench.start()
    bench.send(quarantined(TASK))
    sealed = BatchSealed(step=0, purpose="train", items=(), digest="", launched=3, failed=3, cancelled=0)
    [failed] = bench.send(sealed)
    assert isinstance(failed, RunFailed)
    assert f"no sandbox can be made for {TASK} (task: no such base)" in failed.reason


def test_tasks_are_named_as_many_as_a_sentence_holds() -> None:
    tasks = {f"t{number}": "task: broken" for number in range(5)}
    assert named({}) == ""
    assert named({"a": "why"}) == "a (why)"
    assert named(tasks).endswith("t2 (task: broken) and 2 more")
