"""Tasks for which no sandbox can be made (S6): named after some tries, not drawn again; with none left the run ends (S5)."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from t1actors import config as cfg
from t1actors.actors.assembler import Assembler
from t1actors.actors.quarantine import named
from t1actors.actors.schedule import Schedule
from t1actors.events import (
    AnyEvent,
    BatchSealed,
    BatchShort,
    EffectFinished,
    RunFailed,
    SandboxReady,
    SandboxRequested,
    TaskQuarantined,
    TrialFailed,
    TrialReplaced,
    TrialSpec,
)
from t1actors.runtime.actor import Decision
from tests.actors.test_assembler import Bench as AssemblerBench
from tests.actors.test_pool import Bench as PoolBench
from tests.actors.test_publisher import Bench as PublisherBench
from tests.golden_events import example

TASK = "l1-100000000"


def quarantined(task: str) -> TaskQuarantined:
    return TaskQuarantined(task=task, tries=3, cause="task", detail="no such base")


OTHERS = "l1-100000001"


class Pool:
    """A pool for which one trial after the other is opened, and their creations end as they are told to."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.log: list[AnyEvent] = []
        self.bench = PoolBench(tmp_path)
        self.number = 0
        self.begin(TASK)

    def begin(self, task: str) -> str:
        self.number += 1
        trial = f"s0.t{self.number}"
        spec = TrialSpec(trial=trial, index=self.number, task=task, seed=1, turn_limit=3)
        self.send(TrialReplaced(step=0, temperature=1.0, failed="s0.t0", cause="task", replacement=spec))
        return trial

    def end_creation(self, result: TrialFailed | SandboxReady, task: str = TASK) -> list[AnyEvent]:
        trial = self.begin(task)
        event = replace(result, trial=trial)
        self.bench.state = self.bench.pool.fold(self.bench.state, event)
        self.log.append(event)
        return list(self.send(EffectFinished(key=f"{trial}/create", status="done", seconds=1.0)).events)

    def send(self, event: AnyEvent) -> Decision:
        decision = self.bench.send(event)
        self.log.append(event)
        self.log += decision.events
        return decision

    def restarted(self) -> "Pool":
        """Another one, which knows what the log says."""
        again = Pool(self.tmp_path)
        again.bench = PoolBench(self.tmp_path)
        again.log, again.number = self.log, self.number
        for event in self.log:
            if not isinstance(event, EffectFinished | SandboxRequested):
                again.bench.state = again.bench.pool.fold(again.bench.state, event)
        return again

    @property
    def quarantined(self) -> set[str]:
        return set(self.bench.state.quarantine.tasks)


NOT_MADE = TrialFailed(trial="", cause="task", detail="no such base", creating=True, own_fault=True)
HOST = TrialFailed(trial="", cause="TimeoutError", detail="no sandbox within 60 s", creating=True)
MADE = example(SandboxReady)
BROKEN_LATER = TrialFailed(trial="", cause="SandboxDied")


def test_a_task_that_never_creates_by_its_own_fault_is_quarantined_after_three_trials(tmp_path: Path) -> None:
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


def test_a_host_that_makes_no_sandbox_puts_no_task_into_quarantine(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    assert pool.end_creation(MADE, OTHERS) == []  # it was well once
    for _ in range(10):
        assert pool.end_creation(HOST) == []
        assert pool.end_creation(HOST, OTHERS) == []
    assert pool.end_creation(MADE, OTHERS) == []
    assert pool.end_creation(HOST) == []
    assert pool.quarantined == set()


def test_a_host_that_is_sick_from_the_start_counts_against_no_task(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    for _ in range(10):
        assert pool.end_creation(HOST) == []
    assert pool.bench.state.quarantine.due(1) == []


def test_a_task_that_fails_while_others_are_made_is_quarantined_whatever_the_fault_looks_like(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    for _ in range(2):
        assert pool.end_creation(MADE, OTHERS) == []
        assert pool.end_creation(HOST) == []
    assert pool.end_creation(MADE, OTHERS) == []
    [named] = pool.end_creation(HOST)
    assert named == TaskQuarantined(task=TASK, tries=3, cause="TimeoutError", detail="no sandbox within 60 s")
    assert pool.quarantined == {TASK}


@pytest.mark.parametrize("before", range(6))
def test_a_pool_that_is_started_again_goes_on_counting_where_the_log_ends(tmp_path: Path, before: int) -> None:
    results = [(MADE, OTHERS), (HOST, TASK), (MADE, OTHERS), (NOT_MADE, TASK), (HOST, OTHERS), (HOST, TASK)]
    pool = Pool(tmp_path)
    for number, (result, task) in enumerate(results):
        if number == before:
            pool = pool.restarted()
        assert pool.end_creation(result, task) == []  # the last one: nothing was made since the third
    pool = pool.restarted()
    assert pool.end_creation(MADE, OTHERS) == []
    assert [event.task for event in pool.end_creation(HOST) if isinstance(event, TaskQuarantined)] == [TASK]
    assert pool.restarted().quarantined == {TASK}


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


def test_a_trial_that_was_not_begun_costs_the_step_no_replacement(tmp_path: Path) -> None:
    bench = assembler(tmp_path, launched=1, wanted=1)
    bench.send(quarantined(TASK))
    bench.send(TrialFailed(trial="s0.t0", cause="quarantined"))
    bench.send(TrialFailed(trial="s0.t1", cause="SandboxDied"))
    bench.send(TrialFailed(trial="s0.t2", cause="SandboxDied"))
    assert [event.replacement.trial for event in bench.of(TrialReplaced)] == ["s0.t1", "s0.t2"]
    assert bench.of(BatchShort)


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
