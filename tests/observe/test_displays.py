"""Displays tell the truth at every width and in every mode."""

import io
import json

import pytest
from rich.console import Console

from t1actors.events import EffectIntended, ProgressReported, TrialFailed
from t1actors.log.memory import MemoryLog
from t1actors.observe.display import LineDisplay, LiveDisplay, open_display
from t1actors.observe.fold import fold_frame
from t1actors.observe.follow import RunReader
from t1actors.observe.happenings import happenings
from t1actors.observe.quantities import duration, duration_range, figure, percent, size
from t1actors.observe.screen import bar, screen, sparkline
from t1actors.observe.view import RunView
from tests.observe.recorded import Recorder, open_step, run_trial, start, whole_run


def states(log):
    """(view, happenings) after every frame."""
    view = RunView()
    reader = RunReader(log)
    while frames := reader.poll():
        for frame in frames:
            yield view, [(frame.head.wall_ns, h) for h in happenings(view, fold_frame(view, frame))]


def recorded(make=whole_run):
    log = MemoryLog()
    recorder = Recorder(log)
    make(recorder)
    return log, recorder


@pytest.mark.parametrize("width", [120, 80, 60, 40, 20])
def test_no_line_is_wider_than_the_terminal_at_any_moment_of_a_run(width):
    log, recorder = recorded()
    for view, _ in states(log):
        for line in screen(view, recorder.now_ns + 100_000_000_000, width):
            assert len(line.text) <= width


def test_the_screen_names_step_trials_reward_gap_staleness_and_every_actor():
    log, recorder = recorded()
    *_, (view, _) = states(log)
    text = "\n".join(line.text for line in screen(view, recorder.now_ns, 100))
    for word in ("7/7", "2 in, 2 out", "0.150", "engine 1.0e-06", "stale 1", "publisher", "sampler", "verifier"):
        assert word in text, text


def test_nothing_has_a_bar_unless_its_total_is_known():
    log, recorder = recorded(start)
    recorder.emit("actor", EffectIntended(key="step/0/actor", effect_kind="Update", effect=b"\x80"))
    *_, (view, _) = states(log)
    actor = next(line.text for line in screen(view, recorder.now_ns, 80) if line.text.startswith("actor"))
    assert "█" not in actor
    assert "░" not in actor
    recorder.emit("actor", ProgressReported(key="step/0/actor", done=2, total=4, unit="batches"))
    *_, (view, _) = states(log)
    actor = next(line.text for line in screen(view, recorder.now_ns, 80) if line.text.startswith("actor"))
    assert "████░░░░ 2/4 batches" in actor


@pytest.mark.parametrize(("done", "full"), [(0, 0), (1, 0), (99, 9), (100, 10)])
def test_a_bar_is_full_only_when_all_is_done(done, full):
    assert bar(done, 100, 10) == "█" * full + "░" * (10 - full)


def test_silence_is_shown_as_silence_with_its_deadline():
    log, recorder = recorded(start)
    recorder.emit("pool", EffectIntended(key="s0.t0/create", effect_kind="Create", effect=b"\x80", deadline_s=120.0))
    *_, (view, _) = states(log)
    later = recorder.now_ns + 42_000_000_000
    assert any("no event for 42 s, deadline 120 s" in line.text for line in screen(view, later, 80))
    assert not any("no event" in line.text for line in screen(view, recorder.now_ns, 80))
    out = io.StringIO()
    display = LineDisplay(out, as_json=False)
    display.show([], view, later)
    display.show([], view, later + 1_000_000_000)
    assert out.getvalue().count("no event for 42 s, deadline 120 s (pool: s0.t0/create)") == 1


def test_plain_lines_tell_the_run_from_start_to_end():
    log, recorder = recorded()
    out = io.StringIO()
    display = open_display("auto", out)
    for view, happened in states(log):
        display.show(happened, view, recorder.now_ns)
    text = out.getvalue()
    assert text.splitlines()[0].endswith("code 0.1.0)")
    assert "step 3 opened: train, 2 trials, version 0, temperature 1" in text
    assert "step 1 opened: evaluate, 2 trials, version 0, greedy" in text
    assert "step 4 batch: 2 of 2 trials, reward 0.150, passed 75.0 %" in text
    assert "staleness 1" in text
    assert text.splitlines()[-1].endswith("run stopped: finished")
    assert "\x1b" not in text


def test_every_json_line_is_an_object_with_time_kind_and_words():
    log, recorder = recorded()
    out = io.StringIO()
    display = open_display("json", out)
    for view, happened in states(log):
        display.show(happened, view, recorder.now_ns)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert all({"at", "kind", "text"} <= line.keys() for line in lines)
    sealed = [line for line in lines if line["kind"] == "batch_sealed"]
    assert [line["step"] for line in sealed] == [0, 1, 2, 3, 4, 5, 6]
    assert sealed[4]["reward"] == pytest.approx(0.15)


def test_quiet_prints_nothing():
    out = io.StringIO()
    log, recorder = recorded()
    display = open_display("quiet", out)
    for view, happened in states(log):
        display.show(happened, view, recorder.now_ns)
    assert out.getvalue() == ""


@pytest.mark.parametrize("width", [80, 60, 40])
def test_the_live_screen_draws_on_a_terminal_of_any_width(width):
    log, recorder = recorded(lambda r: (start(r), open_step(r, 0, "train"), run_trial(r, "s0.t0", passed=1, version=0)))
    out = io.StringIO()
    display = LiveDisplay(Console(file=out, width=width, height=30, force_terminal=True))
    for view, happened in states(log):
        display.show(happened, view, recorder.now_ns)
    display.close(view, recorder.now_ns)
    assert "2 in, 1 out" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min 00 s"), (3725, "1 h 02 min")]
)
def test_durations_read_as_people_say_them(seconds, words):
    assert duration(seconds) == words


def test_quantities_keep_their_meaning_in_few_letters():
    assert duration_range(100, 200) == "2-3 min"
    assert duration_range(20, 20.2) == "20 s"
    assert size(999) == "999 B"
    assert size(3_812_345) == "3.8 MB"
    assert (figure(None), figure(0.0), figure(1.25e-7), figure(0.4123)) == ("-", "0.000", "1.2e-07", "0.412")
    assert percent(0.375) == "37.5 %"
    assert sparkline([1.0, 2.0, 3.0], 2) == "▁█"


def test_text_from_outside_cannot_move_the_cursor_or_break_the_line():
    log, recorder = recorded(start)
    open_step(recorder, 0, "train")
    recorder.emit("pool", TrialFailed(trial="s0.t0", cause="task", detail="\x1b[2J\ngone \x9b ü"))
    out = io.StringIO()
    display = open_display("plain", out)
    for view, happened in states(log):
        display.show(happened, view, recorder.now_ns)
    assert "(\\x1b[2J\\ngone \\x9b ü)" in out.getvalue().splitlines()[-1]
