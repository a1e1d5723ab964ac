"""What a person is told who asked a run to stop."""

import io
import json

from t1actors.events import RunPaused, StopRequested
from t1actors.log.memory import MemoryLog
from t1actors.observe.display import LineDisplay, QuietDisplay
from t1actors.observe.fold import fold_frame
from t1actors.observe.follow import RunReader
from t1actors.observe.happenings import happenings
from t1actors.observe.screen import screen
from t1actors.observe.view import RunView
from tests.observe.recorded import Recorder, open_step, run_trial, seal, start


def view_of(log):
    """The view, and what was worth a line."""
    view, said = RunView(), []
    reader = RunReader(log)
    while frames := reader.poll():
        for frame in frames:
            said += [(frame.head.wall_ns, h) for h in happenings(view, fold_frame(view, frame))]
    return view, said


def asked(make):
    """A run in which ``make`` happened before somebody asked it to stop."""
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder)
    make(recorder)
    recorder.emit("supervisor", StopRequested(by="SIGINT"))
    view, said = view_of(log)
    return view, said, recorder


def text_of(said):
    return next(h.text for _, h in said if h.kind == "stop_requested")


def test_what_is_still_done_is_named_with_how_long_the_slowest_recent_step_took():
    def make(recorder):
        open_step(recorder, 0, "evaluate")
        for n in range(2):
            run_trial(recorder, f"s0.t{n}", passed=2, version=0)
        seal(recorder, 0, "evaluate", [2, 2])
        open_step(recorder, 1, "train")

    view, said, _ = asked(make)
    assert text_of(said).startswith("stopping after this phase (step 1's rollout; up to about ")
    assert text_of(said).endswith("Ctrl-C again stops at once, nothing recorded is lost")
    assert view.stop_requested


def test_a_rollout_and_the_training_before_it_are_named_with_the_longest_they_can_take():
    def make(recorder):
        open_step(recorder, 0, "train")
        open_step(recorder, 1, "train")

    _, said, _ = asked(make)
    assert "step 1's rollout, step 0's rollout and training" in text_of(said)
    assert "no step was done yet; at the longest 1 h 30 min" in text_of(said)


def test_before_the_first_step_nothing_is_waited_for():
    _, said, _ = asked(lambda recorder: None)
    assert text_of(said).startswith("stopping: nothing is under way")


def test_every_display_says_it(capsys):
    view, said, recorder = asked(lambda r: open_step(r, 0, "evaluate"))
    phase = "step 0's evaluation"
    plain, lines = io.StringIO(), io.StringIO()
    LineDisplay(plain, as_json=False).show(said, view, recorder.now_ns)
    LineDisplay(lines, as_json=True).show(said, view, recorder.now_ns)
    QuietDisplay().show(said, view, recorder.now_ns)
    assert phase in plain.getvalue()
    assert any(json.loads(line).get("phase") == phase for line in lines.getvalue().splitlines())
    quiet = capsys.readouterr()
    assert phase in quiet.err
    assert quiet.out == ""
    assert any(phase in line.text for line in screen(view, recorder.now_ns, 100))


def test_a_pause_says_what_comes_next():
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder)
    recorder.emit("publisher", RunPaused(step=4, session=1))
    assert "paused before step 4" in [h.text for _, h in view_of(log)[1]]
