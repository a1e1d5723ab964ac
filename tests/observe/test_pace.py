"""The time left is a range that holds, and is not guessed before there is something to go by."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors import config
from t1actors.observe.pace import Pace
from t1actors.observe.progress import time_left
from t1actors.observe.view import Pause, RunView, StepView

S = 1_000_000_000
SLACK_S = 1e-3


@settings(max_examples=50, deadline=None)
@given(unit_s=st.floats(0.001, 100), total=st.integers(3, 300), at=st.floats(0, 1))
def test_at_constant_speed_what_is_left_lies_in_the_range_at_any_moment(unit_s, total, at):
    pace = Pace(total)
    now_s = at * unit_s * total
    done = 0
    for done in range(int(now_s / unit_s) + 1):
        pace.note(done, 50.0 + done * unit_s)
    left = pace.left(50.0 + now_s)
    if left is not None:
        truth_s = unit_s * total - now_s
        assert left.low_s - SLACK_S <= truth_s <= left.high_s + SLACK_S


def test_two_measurements_are_needed():
    pace = Pace(10)
    for done, expected in [(0, False), (1, False), (2, True), (9, True), (10, False)]:
        pace.note(done, 5.0 * done)
        assert (pace.left(5.0 * done) is not None) == expected


def test_the_range_spans_the_fastest_and_slowest_recent_unit():
    pace = Pace(10)
    for done, now_s in enumerate([0.0, 2.0, 8.0]):
        pace.note(done, now_s)
    left = pace.left(8.0)
    assert (left.low_s, left.high_s) == (16.0, 48.0)


def test_a_unit_that_takes_longer_than_any_before_moves_the_upper_end_only():
    pace = Pace(10)
    for done in range(4):
        pace.note(done, 2.0 * done)
    left = pace.left(6.0 + 20.0)
    assert left.low_s == 6 * 2.0
    assert left.high_s == 7 * 20.0 - 20.0


def test_fast_units_are_measured_over_a_second():
    pace = Pace(10_000)
    for done in range(1500):
        pace.note(done, done * 0.001)
    assert pace.left(1.5) is None
    for done in range(1500, 2500):
        pace.note(done, done * 0.001)
    assert pace.left(2.5).low_s == pytest.approx(7.5, abs=0.01)


# --- of a run ---------------------------------------------------------------------------------------------------------


PLAN = config.resolve(sets=["schedule.recalibrate_steps=1", "schedule.train_steps=6", "schedule.evaluate=true"]).config
PURPOSES = ["evaluate"] * 2 + ["recalibrate"] + ["train"] * 6 + ["evaluate"] * 2


def run_at(now_s, takes_s, pauses=()):
    """A run that began at 0, each step after the one before; ``takes_s`` by purpose; pauses are (start, end)."""
    view = RunView(config=PLAN, first_ns=0, last_ns=round(now_s * S))
    view.pauses = [Pause(round(a * S), round(b * S)) for a, b in pauses if b <= now_s]
    begin_s = 0.0
    for number, purpose in enumerate(PURPOSES):
        end_s = begin_s + takes_s[purpose]
        for a, b in pauses:
            if begin_s <= a < end_s:
                end_s += b - a
        if begin_s > now_s:
            break
        view.steps[number] = StepView(number, purpose, "v", 0, 1, 1.0, opened_ns=round(begin_s * S))
        if end_s <= now_s:
            view.steps[number].done_ns = round(end_s * S)
        begin_s = end_s
    return view


@settings(max_examples=50, deadline=None)
@given(evaluate_s=st.floats(1, 500), train_s=st.floats(1, 500), at=st.floats(0, 0.999))
def test_a_run_at_constant_speed_ends_within_the_range_at_any_moment(evaluate_s, train_s, at):
    whole_s = 4 * evaluate_s + 7 * train_s
    view = run_at(at * whole_s, {"evaluate": evaluate_s, "recalibrate": train_s, "train": train_s})
    left = time_left(view, view.last_ns)
    learned = sum(s.done_ns is not None and s.purpose != "evaluate" for s in view.steps.values())
    assert (left is None) == (learned < 2)
    if left is not None:
        assert left.low_s - SLACK_S <= whole_s * (1 - at) <= left.high_s + SLACK_S


def test_a_pause_is_no_steps_duration():
    takes_s = {"evaluate": 10.0, "recalibrate": 5.0, "train": 5.0}
    view = run_at(3600 + 45.0, takes_s, pauses=[(42.0, 3642.0)])
    left = time_left(view, view.last_ns)
    assert (left.low_s, left.high_s) == (pytest.approx(30.0), pytest.approx(30.0))


def test_a_step_that_takes_longer_than_any_before_moves_the_upper_end():
    takes_s = {"evaluate": 10.0, "recalibrate": 5.0, "train": 5.0}
    view = run_at(40.0, takes_s)
    left = time_left(view, 140 * S)
    assert left.low_s == pytest.approx(2 * 5.0 + 20.0)
    assert left.high_s == pytest.approx(2 * 100.0 + 20.0)
