"""Pictures: zeros stay on a logarithmic axis, labels do not overlap, no run is too odd to be drawn."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t1actors.events import (
    AssertionResult,
    EffectIntended,
    RunFailed,
    RunStarted,
    RunStopped,
    TrialFailed,
)
from t1actors.log.memory import MemoryLog
from t1actors.observe.families import by_family
from t1actors.observe.figures import figures
from t1actors.observe.lanes import read_lanes, typical_step
from t1actors.observe.plots import PICTURES, draw_all
from t1actors.observe.plots.fidelity import draw_gap
from t1actors.observe.plots.learning import draw_critic, draw_reward, smoothed
from t1actors.observe.plots.pipeline import draw_pipeline
from t1actors.observe.plots.style import canvas, log_axis, spread, zero_floor
from tests.observe.recorded import Recorder, actor, critic, open_step, run_trial, seal, start, whole_run
from tests.observe.test_lanes import overlapping, view_of

positive = st.floats(1e-12, 1e3)


@given(st.lists(positive | st.just(0.0), min_size=1))
def test_zeros_stand_below_every_value_that_is_none(values):
    floor = zero_floor(values)
    assert all(value >= 10 * floor * (1 - 1e-9) for value in values if value > 0)


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0, 1e-6], [3e-7, 0.5], [1.0], [0.0, 1.0, 1e-12]])
def test_a_logarithmic_axis_shows_all_its_values_and_calls_only_zero_zero(values):
    _, (axes,) = canvas("title", "finding", [2.0])
    floor = log_axis(axes, values)
    low, high = axes.get_ylim()
    assert all(low < (value or floor) < high for value in values)
    names = [axes.yaxis.get_major_formatter()(tick, 0) for tick in axes.yaxis.get_majorticklocs()]
    assert ("0" in names) is (0.0 in values)
    assert len(names) <= 8


@given(st.lists(st.floats(0, 100), max_size=8).map(sorted))
def test_labels_keep_their_order_and_lie_a_line_apart(places):
    spacing = 10.0
    moved = spread(places, spacing, 105.0)
    assert len(moved) == len(places)
    assert all(b - a >= spacing - 1e-6 for a, b in itertools.pairwise(moved))
    assert all(place <= 105.0 for place in moved)


@given(st.lists(st.floats(0, 1000), max_size=8).map(sorted))
def test_labels_that_are_apart_stay_where_they_are(places):
    if all(b - a >= 10.0 for a, b in itertools.pairwise(places)):
        assert spread(places, 10.0, 2000.0) == pytest.approx(places)


def test_smoothing_uses_up_to_two_neighbours_on_either_side():
    assert smoothed([0.0, 0.0, 10.0, 0.0, 0.0, 5.0]) == pytest.approx([10 / 3, 2.5, 2.0, 3.0, 3.75, 5 / 3])
    assert smoothed([4.0]) == [4.0]


def test_only_assertions_of_built_in_tasks_have_a_family():
    ids = ["1.1-sed-contains", "1.2-sed-contains", "2.1-mkdir-exists", "test_it", "1.1-unheard-of", "x1.1-sed-contains"]
    results = [AssertionResult(id=name, passed=n % 2 == 0) for n, name in enumerate(ids)]
    assert by_family(results) == {"sed": (1, 2), "mkdir": (1, 1)}


# --- odd runs ---------------------------------------------------------------------------------------------------------


def one_training_step(recorder):
    start(recorder)
    open_step(recorder, 0, "train")
    run_trial(recorder, "s0.t0", passed=0, version=0)
    seal(recorder, 0, "train", [0])
    critic(recorder, 0, variance=-100.0)
    actor(recorder, 0, staleness=0, engine_gap=0.0)


def batch_without_trials(recorder):
    start(recorder)
    open_step(recorder, 0, "train")
    seal(recorder, 0, "train", [])
    critic(recorder, 0)


def failed(recorder):
    start(recorder)
    open_step(recorder, 0, "train")
    recorder.emit("pool", EffectIntended(key="s0.t0/create", effect_kind="Create", effect=b"\x80"))
    recorder.emit("pool", TrialFailed(trial="s0.t0", cause="SandboxDied"), seconds=1.0)
    recorder.emit("publisher", RunFailed(step=0, reason="no trial was graded"))
    recorder.emit("supervisor", RunStopped(reason="failed"))


def resumed(recorder):
    one_training_step(recorder)
    again = RunStarted(run="demo-run", config_digest="", config_toml="", code_version="", environment={}, resumed=True)
    open_step(recorder, 1, "train")
    recorder.emit("supervisor", again, seconds=3600)
    run_trial(recorder, "s1.t0", passed=2, version=0)
    seal(recorder, 1, "train", [2])
    critic(recorder, 1)
    actor(recorder, 1, staleness=1)


def drawn(make):
    """Figures and lanes of a made-up run."""
    log = MemoryLog()
    make(Recorder(log))
    view = view_of(log)
    step = typical_step(view)
    return figures(view), read_lanes(log, view, step) if step is not None else None


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (start, set()),
        (lambda r: (start(r), open_step(r, 0, "evaluate")), set()),
        (failed, {"pipeline"}),
        (batch_without_trials, {"critic", "seconds", "pipeline"}),
        (one_training_step, {*(name for name, _ in PICTURES), "pipeline"} - {"families"}),
        (resumed, {*(name for name, _ in PICTURES), "pipeline"} - {"families"}),
    ],
)
def test_a_run_gets_the_pictures_that_it_has_data_for(make, names):
    f, lanes = drawn(make)
    found = {name for name, draw in PICTURES if draw(f) is not None}
    if lanes is not None and draw_pipeline(lanes) is not None:
        found.add("pipeline")
    assert found == names


def test_pictures_of_an_earlier_report_that_this_one_has_no_data_for_are_removed(tmp_path):
    (tmp_path / "reward.png").write_bytes(b"of an earlier log")
    (tmp_path / "mine.png").write_bytes(b"not ours")
    f, _ = drawn(start)
    assert draw_all(f, None, tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["mine.png"]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_the_baselines_of_the_reward_are_lines_with_names_and_values():
    f, _ = drawn(whole_run)
    picture = draw_reward(f)
    assert picture is not None
    (axes,) = picture.figure.axes
    labels = {"first batch 0.050", "held out before 0.075", "held out after 0.175", "warm start, greedy 0.100"}
    assert labels <= set(texts(axes))
    heights = {
        line.get_ydata()[0] for line in axes.lines if len(set(line.get_ydata())) == 1 and len(line.get_xdata()) == 2
    }
    assert {0.05, 0.075, 0.175, 0.1} <= {round(float(height), 6) for height in heights}


def test_an_engine_gap_of_exactly_zero_is_drawn_and_said():
    f, _ = drawn(one_training_step)
    picture = draw_gap(f)
    assert picture is not None
    assert "engine gap exactly 0" in [text.get_text() for text in picture.figure.texts][1]
    assert "engine gap, max always" in picture.how_to_read
    (axes,) = picture.figure.axes
    low, high = axes.get_ylim()
    assert all(low < y < high for line in axes.lines for y in line.get_ydata())


def test_a_critic_that_begins_at_minus_hundred_does_not_flatten_the_picture():
    f, _ = drawn(resumed)
    picture = draw_critic(f)
    assert picture is not None
    assert picture.figure.axes[0].get_ylim() == (-1.0, 1.0)
    assert "off the picture" in picture.how_to_read


def test_the_step_during_which_a_run_was_resumed_is_marked():
    f, _ = drawn(resumed)
    assert [(r.step, r.pause_s) for r in f.resumes] == [(1, 3600)]
    for draw in (draw_reward, draw_gap, draw_critic):
        picture = draw(f)
        assert picture is not None
        assert "resumed" in texts(picture.figure.axes[0])


def test_the_time_in_which_a_run_stood_still_is_cut_out_of_the_step_on_the_wall_clock():
    _, lanes = drawn(resumed)
    assert lanes is not None
    picture = draw_pipeline(lanes)
    assert picture is not None
    assert "stood still for 1 h 00 min" in picture.how_to_read
    assert all(axes.get_xlim()[1] < 60 for axes in picture.figure.axes)


def test_a_pause_is_in_no_figure_of_the_step_it_interrupted():
    f, _ = drawn(resumed)
    step = f.by_step[1]
    assert step.period_s is not None
    assert step.period_s < 60
    assert step.seconds["rollout"] < 60
    assert f.seconds_by_phase["rollout"] < 60


def test_periods_add_up_to_the_time_from_the_first_opening_to_the_last_end():
    log = MemoryLog()
    overlapping(log, [1.0, 5.0, 2.0])
    view = view_of(log)
    f = figures(view)
    total_s = ((view.steps[2].done_ns or 0) - view.steps[0].opened_ns) / 1e9
    assert sum(s.period_s or 0.0 for s in f.by_step) == pytest.approx(total_s)
