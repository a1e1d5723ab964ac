"""A whole run with tasks for which no sandbox can be made (S5, S6): named and drawn no more, or the run ends and says so."""

import tempfile
from pathlib import Path

from t1actors.actors.schedule import Schedule
from t1actors.config import resolve
from t1actors.events import BatchSealed, RunFailed, RunFinished, StepOpened, TaskQuarantined, TrialReplaced, decode
from t1actors.log.merged import merged
from t1actors.runtime.clock import run_virtual
from tests.simulation.delays import undrawn
from tests.simulation.run import SETS, scheduled, until_the_end
from tests.simulation.universe import Universe

CONFIG = resolve(preset="nano", sets=(*SETS, "tasks.train_count=6", "tasks.warmup_count=9")).config


def events_of_a_run(broken):
    """And what it ended with, where that was no finish."""
    with tempfile.TemporaryDirectory() as root, scheduled(0):
        universe = Universe(Path(root), CONFIG, undrawn(), exact=False, mishaps=False)
        universe.broken = frozenset(broken)
        with universe.powered():
            run_virtual(lambda: until_the_end(universe, None))
            return [decode(entry.raw) for entry in merged(universe.filelog())], universe.oracle.found


def drawn(event):
    match event:
        case StepOpened():
            return {spec.task for spec in event.trials}
        case TrialReplaced():
            return {event.replacement.task}
        case _:
            return set()


def test_a_task_that_never_creates_is_named_and_drawn_no_more_and_the_run_goes_on(tmp_path):
    broken = Schedule(CONFIG, tmp_path).pool("train")[:1]
    events, faults = events_of_a_run(broken)
    assert not faults
    assert isinstance(next(event for event in events if isinstance(event, RunFinished)), RunFinished)
    named = {event.task: number for number, event in enumerate(events) if isinstance(event, TaskQuarantined)}
    assert set(named) == set(broken)
    for task, number in named.items():
        steps = [event.step for event in events[:number] if isinstance(event, StepOpened)]
        # Where it was under way already it may be tried once more; what opens later is without it.
        later = [event for event in events[number:] if isinstance(event, StepOpened) and event.step > max(steps) + 1]
        assert later
        assert not any(task in drawn(event) for event in later)
    batches = [event for event in events if isinstance(event, BatchSealed) and event.purpose == "train"]
    assert {len(batch.items) for batch in batches} == {3}


def test_a_run_in_which_no_task_can_be_made_ends_and_names_them(tmp_path):
    schedule = Schedule(CONFIG, tmp_path)
    broken = [task for kind in ("train", "heldout", "warmup") for task in schedule.pool(kind)]
    events, faults = events_of_a_run(broken)
    [failed] = [event for event in events if isinstance(event, RunFailed)]
    assert "no sandbox can be made for" in failed.reason
    assert "nobody knows how" in failed.reason
    assert faults == [f"the run failed: {failed.reason}"]
