"""The lanes of a step: inside the step, in order, adding up to what the log says of each effect."""

from collections import Counter

import pytest

from t1actors.events import BarrierOpened, EffectFinished, EffectIntended, RunStarted, SandboxReady
from t1actors.log.memory import MemoryLog
from t1actors.observe.fold import fold
from t1actors.observe.follow import RunReader
from t1actors.observe.lanes import DOING, WAITING, read_lanes, typical_step
from t1actors.observe.view import RunView
from tests.observe.recorded import Recorder, actor, critic, open_step, run_trial, sampled, seal, start, whole_run


def view_of(log):
    reader = RunReader(log)
    view = RunView()
    while frames := reader.poll():
        fold(view, frames)
    return view


def effect(recorder, journal, key, seconds, *results, **finished):
    """An effect from its intent to its end."""
    recorder.emit(journal, EffectIntended(key=key, effect_kind="Work", effect=b"\x80", deadline_s=60.0))
    recorder.emit(
        journal, *results, EffectFinished(key=key, status="done", seconds=seconds, **finished), seconds=seconds
    )


def full_trial(recorder, trial):
    """Create (.5 s, .3 of it waiting), sample (1 s, .01 queued), run .25 s, seal .1 s, grade (2 s, .75 queued)."""
    ready = SandboxReady(
        trial=trial,
        task_digest="d",
        instruction="do",
        isolation={"backend": "namespaces"},
        token_wait_s=0.1,
        slot_wait_s=0.2,
        image_wait_s=0.0,
        create_s=0.2,
    )
    effect(recorder, "pool", f"{trial}/create", 0.5, ready)
    effect(recorder, "sampler", f"{trial}/0/sample", 1.0, sampled(trial, 0, version=0))
    effect(recorder, "pool", f"{trial}/0/run", 0.25)
    effect(recorder, "pool", f"{trial}/seal", 0.1)
    effect(recorder, "verifier", f"{trial}/grade", 2.0, phases={"queue": 0.75, "tests": 1.0})


@pytest.fixture
def traced():
    """A step of two trials, one after the other, then training; the log and the recorder."""
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder)
    open_step(recorder, 0, "train")
    for trial in ("s0.t0", "s0.t1"):
        full_trial(recorder, trial)
    seal(recorder, 0, "train", [1, 2])
    critic(recorder, 0)
    actor(recorder, 0, staleness=0)
    return log, recorder


def test_every_bar_lies_inside_the_step_and_the_bars_of_a_lane_do_not_overlap(traced):
    log, _ = traced
    view = view_of(log)
    lanes = read_lanes(log, view, view.steps[0])
    assert (lanes.start_ns, lanes.end_ns) == (view.steps[0].opened_ns, view.steps[0].done_ns)
    assert [lane.name for lane in lanes.trials] == ["s0.t0", "s0.t1"]
    for lane in (*lanes.trials, *lanes.actors):
        ends = [lanes.start_ns, *(bar.end_ns for bar in lane.bars)]
        for bar, before_ns in zip(lane.bars, ends, strict=False):
            assert before_ns <= bar.start_ns < bar.end_ns <= lanes.end_ns


def test_the_bars_of_a_trial_add_up_to_its_effects_waiting_told_from_working(traced):
    log, _ = traced
    view = view_of(log)
    for lane in read_lanes(log, view, view.steps[0]).trials:
        seconds = Counter()
        for bar in lane.bars:
            seconds[bar.what] += (bar.end_ns - bar.start_ns) / 1e9
        assert dict(seconds) == pytest.approx(
            {
                "wait for a sandbox": 0.3,
                "create sandbox": 0.2,
                "wait for the engine": 0.01,
                "sample": 0.99,
                "run command": 0.25,
                "seal": 0.1,
                "wait for a grader": 0.75,
                "grade": 1.25,
            }
        )
        assert set(seconds) == {*DOING.values(), *WAITING.values()}


def test_training_of_the_step_and_its_neighbours_rollout_lie_beside_the_trials(traced):
    log, recorder = traced
    recorder.emit("publisher", BarrierOpened(step=0))
    recorder.now_ns += 400_000_000
    open_step(recorder, 1, "train")  # .5 s after that
    run_trial(recorder, "s1.t0", passed=1, version=0)
    view = view_of(log)
    own = {
        lane.name: [(bar.what, bar.step) for bar in lane.bars] for lane in read_lanes(log, view, view.steps[0]).actors
    }
    assert own["critic"] == [("values", 0), ("critic", 0)]
    assert own["actor"] == [("actor", 0)]
    assert own["rollout 0"] == [("rollout", 0)]
    assert view.steps[1].seconds("barrier") == pytest.approx(0.9)
    following = {lane.name: lane.bars for lane in read_lanes(log, view, view.steps[1]).actors}
    (going_on,) = following["rollout 1"]
    assert (going_on.start_ns, going_on.end_ns) == (view.steps[1].opened_ns, view.last_ns)


def test_what_is_under_way_when_the_log_ends_reaches_to_the_end():
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder)
    open_step(recorder, 0, "train")
    recorder.emit("pool", EffectIntended(key="s0.t0/create", effect_kind="Create", effect=b"\x80"))
    recorder.emit("pool", EffectIntended(key="s0.t1/create", effect_kind="Create", effect=b"\x80"), seconds=2.0)
    view = view_of(log)
    lanes = read_lanes(log, view, view.steps[0])
    (bar,) = lanes.trials[0].bars
    assert (bar.what, bar.end_ns - bar.start_ns) == ("create sandbox", 2_000_000_000)
    assert lanes.trials[1].bars == ()
    assert lanes.sealed_ns is None


def test_a_pause_inside_the_step_is_told(traced):
    log, recorder = traced
    open_step(recorder, 1, "train")
    again = RunStarted(run="demo-run", config_digest="", config_toml="", code_version="", environment={}, resumed=True)
    recorder.emit("supervisor", again, seconds=600)
    run_trial(recorder, "s1.t0", passed=1, version=0)
    view = view_of(log)
    lanes = read_lanes(log, view, view.steps[1])
    assert [pause.seconds for pause in lanes.pauses] == [600]
    assert read_lanes(log, view, view.steps[0]).pauses == ()


def overlapping(log, seconds):
    """Training steps, each opened while the one before is trained; that of step n takes ``seconds[n]`` more."""
    recorder = Recorder(log)
    start(recorder, sets=["schedule.train_steps=9"])
    open_step(recorder, 0, "train")
    for step, more_s in enumerate(seconds):
        seal(recorder, step, "train", [1, 2])
        open_step(recorder, step + 1, "train")
        recorder.now_ns += round(more_s * 1e9)
        critic(recorder, step)
        actor(recorder, step, staleness=min(1, step))
    return recorder


def test_the_typical_step_overlaps_others_on_both_sides_and_took_the_median_time():
    log = MemoryLog()
    # A step lasts while the one before it is trained, and while it is itself: 1 + 5, 5 + 2, 2 + 7, 7 + 9 s and more.
    overlapping(log, [1.0, 5.0, 2.0, 7.0, 9.0])
    chosen = typical_step(view_of(log))
    assert chosen is not None
    assert chosen.step == 2


@pytest.mark.parametrize("make", [start, lambda r: (start(r), open_step(r, 0, "evaluate")), whole_run])
def test_a_run_without_overlap_has_its_newest_trained_or_opened_step_or_none(make):
    log = MemoryLog()
    make(Recorder(log))
    view = view_of(log)
    chosen = typical_step(view)
    assert (chosen.step if chosen else None) == {0: None, 1: 0, 7: 4}[len(view.steps)]
