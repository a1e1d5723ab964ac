"""Displays tell the truth at every width and height, in every mode, and when their stream goes away."""

import copy
import errno
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from t1actors.events import (
    ActorReady,
    ActorStarted,
    ActorStopped,
    EffectIntended,
    ProgressReported,
    RunStarted,
    RunStopped,
    TrialFailed,
)
from t1actors.log.memory import MemoryLog
from t1actors.observe.crew import crew_in_one_row
from t1actors.observe.display import LineDisplay, LiveDisplay, open_display
from t1actors.observe.fold import fold_frame
from t1actors.observe.follow import RunReader
from t1actors.observe.happenings import Happening, happenings
from t1actors.observe.lines import ASCII, UNICODE
from t1actors.observe.quantities import duration, duration_range, figure, percent, size
from t1actors.observe.screen import screen
from t1actors.observe.view import RunView
from tests.observe.recorded import Recorder, half_a_run, open_step, run_trial, start, whole_run
from tests.terminal import Terminal

S = 1_000_000_000


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


def last_view(log):
    *_, (view, _) = states(log)
    return view


def texts(view, now_ns, width=80, height=None, script=UNICODE):
    return [line.text for line in screen(view, now_ns, width, height, script)]


# --- the screen -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("width", [120, 80, 60, 40, 20])
def test_no_line_is_wider_than_the_terminal_at_any_moment_of_a_run(width, script):
    log, recorder = recorded()
    for view, _ in states(log):
        for text in texts(view, recorder.now_ns + 100 * S, width, script=script):
            assert cell_len(text) <= width


def numbers(text):
    return {number.rstrip(".,") for number in re.findall(r"\d[\d.,]*", text)}


WORDS = st.text(max_size=40) | st.sampled_from(["日本語の実行", "run-2026-11-30", "x" * 80, "\x1b[2J", "e\u0301", ""])


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 130),
    height=st.integers(1, 30),
    quiet_s=st.integers(0, 10**7),
    run=WORDS,
    reason=WORDS,
    cause=WORDS,
    replicas=st.integers(1, 14),
    ascii_only=st.booleans(),
)
def test_any_screen_fits_and_has_no_number_that_the_widest_has_not(
    width, height, quiet_s, run, reason, cause, replicas, ascii_only
):
    script = ASCII if ascii_only else UNICODE
    view = copy.deepcopy(HALF_VIEW)
    view.run, view.failed_reason = run, reason
    view.failures = type(view.failures)({cause: 12})
    for n in range(1, replicas):
        actor = view.actors[f"sampler{n}"] = type(view.actors["pool"])(f"sampler{n}", f"sampler{n}", starts=1 + n % 3)
        actor.phase = ("ready", "starting", "stopped")[n % 3]
    now_ns = (view.last_ns or 0) + quiet_s * S
    shown = texts(view, now_ns, width, height, script)
    assert len(shown) <= height
    assert all(cell_len(text) <= width for text in shown)
    assert all(text.isascii() for text in shown) or not ascii_only
    whole = [*texts(view, now_ns, 10_000, None, script), crew_in_one_row(view, 10_000, script).text]
    for text in shown:
        assert numbers(text) <= numbers(" ".join(whole)), text


HALF, _ = recorded(half_a_run)
HALF_VIEW = last_view(HALF)


def test_the_screen_names_step_trials_reward_gap_staleness_and_every_actor():
    log, recorder = recorded()
    moments = ["\n".join(texts(view, recorder.now_ns, 100)) for view, _ in states(log)]
    text = moments[-4]  # before the run says that it is finished
    for word in ("6/7 done", "2/2 graded", "0.150", "engine 1.0e-06", "stale 1", "publisher", "sampler", "verifier"):
        assert word in text, text
    assert "37.5 % -> 87.5 %" in text
    assert "greedy 50.0 % -> 100.0 %" in "\n".join(texts(last_view(log), recorder.now_ns, 100))


def test_what_matters_most_survives_at_40_columns_and_10_lines():
    view = last_view(HALF)
    shown = "\n".join(texts(view, view.last_ns + 7 * S, 40, 10))
    for words in ("1/7 done", "step 1 train", "1/2 graded", "1 failed", "no event for 7 s", "1 x SandboxDied"):
        assert words in shown, shown


def test_a_finished_run_leaves_its_figures_and_no_actor_that_ended_well():
    log, recorder = recorded()
    shown = texts(last_view(log), recorder.now_ns + 3600 * S)
    assert shown[-1] == "ended     finished"
    assert not any(text.startswith(("publisher", "trials", "silence")) for text in shown)
    assert shown[0] == "t1actors  demo-run · 28 s"


def test_nothing_has_a_bar_unless_its_total_is_known():
    log, recorder = recorded(start)
    recorder.emit("actor", EffectIntended(key="step/0/actor", effect_kind="Update", effect=b"\x80"))
    (actor,) = [text for text in texts(last_view(log), recorder.now_ns) if text.startswith("actor ")]
    assert "█" not in actor
    assert "░" not in actor
    recorder.emit("actor", ProgressReported(key="step/0/actor", done=2, total=4, unit="batches"))
    (actor,) = [text for text in texts(last_view(log), recorder.now_ns, 50) if text.startswith("actor ")]
    assert actor == "actor     ██████░░░░░░ training · 2/4 batches"


def test_silence_is_shown_as_silence_with_what_is_waited_for_and_its_deadline():
    log, recorder = recorded(start)
    recorder.emit("pool", EffectIntended(key="s0.t0/create", effect_kind="Create", effect=b"\x80", deadline_s=120.0))
    view = last_view(log)
    later_ns = recorder.now_ns + 42 * S
    for width in (80, 60, 40):
        shown = "\n".join(texts(view, later_ns, width))
        assert "no event for 42 s, deadline 120 s" in shown
        assert "pool: creating s0.t0" in shown
    assert "waits for pool: creating s0.t0 · 78 s left" in texts(view, later_ns)
    assert "overdue by 60 s" in "\n".join(texts(view, recorder.now_ns + 180 * S))
    assert not any("no event" in text for text in texts(view, recorder.now_ns))
    out = io.StringIO()
    display = LineDisplay(out, as_json=False)
    display.show([], view, later_ns)
    display.show([], view, later_ns + S)
    assert out.getvalue().count("no event for 42 s, deadline 120 s (pool: creating s0.t0)") == 1


def test_a_deadline_starts_again_with_its_actor():
    log, recorder = recorded(start)
    recorder.emit("pool", EffectIntended(key="s0.t0/create", effect_kind="Create", effect=b"\x80", deadline_s=120.0))
    recorder.emit("supervisor", ActorStopped(actor="pool", epoch=1, exit_code=-9, reason="killed"))
    recorder.emit("supervisor", ActorStarted(actor="pool", journal="pool", epoch=2, pid=7), seconds=100)
    recorder.emit("supervisor", ActorReady(actor="pool", epoch=2, seconds=1.0))
    assert "waits for pool: creating s0.t0 · 78 s left" in texts(last_view(log), recorder.now_ns + 42 * S)


def test_a_run_whose_actors_start_says_for_whom_it_waits():
    log, recorder = recorded(start)
    recorder.emit("supervisor", ActorStarted(actor="critic", journal="critic", epoch=2, pid=7))
    assert "waits for critic to start" in texts(last_view(log), recorder.now_ns + 8 * S)


def test_replicas_share_a_row_that_names_those_in_trouble():
    log, recorder = recorded(start)
    for n in range(1, 12):
        name = f"sampler{n}"
        recorder.emit("supervisor", ActorStarted(actor=name, journal=name, epoch=1, pid=n))
        recorder.emit("supervisor", ActorReady(actor=name, epoch=1, seconds=1.0))
    (row,) = [text for text in texts(last_view(log), recorder.now_ns) if text.startswith("sampler")]
    assert row == "samplers  12 up · idle"
    recorder.emit("supervisor", ActorStopped(actor="sampler3", epoch=1, exit_code=-9, reason="killed"))
    (row,) = [text for text in texts(last_view(log), recorder.now_ns) if text.startswith("sampler")]
    assert row == "samplers  11 of 12 up · idle · sampler3 stopped, exit -9: killed"
    short = texts(last_view(log), recorder.now_ns, 60, 6)
    assert "actors    sampler3 stopped, exit -9: killed · 17 idle" in short


def test_a_resumed_run_counts_neither_the_pause_nor_its_actors_new_start():
    log, recorder = recorded(start)
    view = last_view(log)
    before = texts(view, recorder.now_ns)[0]
    recorder.emit("supervisor", RunStopped(reason="interrupted", cpu_s=1.0))
    again = RunStarted(run="demo-run", config_digest="", config_toml="", code_version="", environment={}, resumed=True)
    recorder.emit("supervisor", again, seconds=3600)
    recorder.emit("supervisor", ActorStarted(actor="pool", journal="pool", epoch=2, pid=7))
    view = last_view(log)
    assert texts(view, recorder.now_ns)[0] == before
    assert view.actors["pool"].restarts == 0
    assert "waits for publisher, pool, sampler, verifier, assembler, critic, actor to start" in texts(
        view, recorder.now_ns + 6 * S, 100
    )


# --- lines ------------------------------------------------------------------------------------------------------------


def lines_of(log, mode="plain"):
    out = io.StringIO()
    display = open_display(mode, out)
    for view, happened in states(log):
        display.show(happened, view, view.last_ns)
    return out.getvalue().splitlines()


def test_plain_lines_tell_the_run_from_start_to_end_with_one_line_a_step():
    log, _ = recorded()
    lines = lines_of(log, "auto")
    assert lines[0].endswith("code 0.1.0)")
    assert lines[1].endswith("7 actors ready after 0.5 s, 70.0 MB of memory")
    steps = [line.split(" ", 1)[1] for line in lines if " done): " in line]
    assert [line.split(" (")[0] for line in steps] == [
        "step 0 evaluate",
        "step 1 evaluate, greedy",
        "step 2 recalibrate",
        "step 3 train",
        "step 4 train",
        "step 5 evaluate",
        "step 6 evaluate, greedy",
    ]
    assert steps[4].startswith("step 4 train (5/7 done): reward 0.150, passed 75.0 %, 2 trials, EV 0.25, gap 1.0e-06")
    assert "stale 1" in steps[4]
    assert steps[4].endswith(" left")
    assert not steps[2].endswith(" left")
    assert lines[-1].endswith("run stopped: finished")
    assert len(lines) == 2 + 7 + 2


def test_plain_lines_have_no_escape_codes_whatever_the_environment_asks_for(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    log, _ = recorded()
    for mode in ("auto", "live", "plain", "json"):
        text = "\n".join(lines_of(log, mode))
        assert "\x1b" not in text
        assert "\r" not in text


def test_a_dumb_terminal_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    out.isatty = lambda: True
    log, recorder = recorded()
    display = open_display("auto", out)
    for view, happened in states(log):
        display.show(happened, view, recorder.now_ns)
    assert "\x1b" not in out.getvalue()
    assert "step 4 train (5/7 done)" in out.getvalue()


def test_of_many_alike_failures_one_is_shown_and_the_step_counts_them_all():
    log, recorder = recorded(start)
    open_step(recorder, 0, "train")
    for n in range(2):
        recorder.emit("pool", TrialFailed(trial=f"s0.t{n}", cause="SandboxDied", detail="gone"))
    lines = lines_of(log)
    assert sum("SandboxDied" in line for line in lines) == 1
    assert sum("SandboxDied" in line for line in lines_of(log, "json")) == 2


def test_a_long_step_says_now_and_then_how_it_stands():
    log, recorder = recorded(start)
    open_step(recorder, 0, "evaluate")
    run_trial(recorder, "s0.t0", passed=1, version=0)
    out = io.StringIO()
    display = LineDisplay(out, as_json=False)
    view = last_view(log)
    for second in range(100):
        view.last_ns = recorder.now_ns + second * S  # events go on, none of them worth a line
        display.show([], view, view.last_ns)
    said = [line.split(" ", 1)[1] for line in out.getvalue().splitlines()]
    assert said == ["step 0 evaluate: 1/2 trials graded, 1 waiting"] * 3


JSON_FIELDS = {
    "run_started": {"run", "config_digest"},
    "actor_ready": {"actor", "seconds", "rss_bytes"},
    "actors_ready": {"actors", "seconds", "rss_bytes"},
    "step_opened": {"step", "purpose", "trials", "version_index", "temperature"},
    "batch_sealed": {"step", "purpose", "trials", "failed", "cancelled", "reward", "fraction"},
    "critic_updated": {"step", "explained_variance", "loss"},
    "actor_updated": {"step", "engine_gap_mean", "engine_gap_max", "clip_share", "kl", "staleness"},
    "step_done": {"step", "purpose", "done", "planned", "reward", "fraction", "trials", "failed", "cancelled", "turns",
                  "explained_variance", "engine_gap_mean", "clip_share", "kl", "staleness", "seconds", "left_low_s",
                  "left_high_s"},
    "weights_published": {"version", "version_index"},
    "run_finished": {"steps", "version"},
    "run_stopped": {"reason"},
}  # fmt: skip
"""Programs read these names: they are documented and do not change."""


def test_every_json_line_is_an_object_with_time_kind_words_and_the_documented_fields():
    log, _ = recorded()
    lines = [json.loads(line) for line in lines_of(log, "json")]
    fields = {line["kind"]: line.keys() - {"at", "kind", "text"} for line in lines}
    assert all({"at", "kind", "text"} <= line.keys() for line in lines)
    assert fields == JSON_FIELDS
    done = [line for line in lines if line["kind"] == "step_done"]
    assert [line["step"] for line in done] == [0, 1, 2, 3, 4, 5, 6]
    assert done[4]["reward"] == pytest.approx(0.15)


def test_json_has_no_number_that_json_has_not():
    log, recorder = recorded()
    view = last_view(log)
    out = io.StringIO()
    display = LineDisplay(out, as_json=True)
    display.show([(0, Happening("step_done", "", {"kl": float("nan")}))], view, recorder.now_ns)
    assert json.loads(out.getvalue(), parse_constant=pytest.fail)["kl"] is None


def test_quiet_prints_nothing():
    log, _ = recorded()
    assert lines_of(log, "quiet") == []


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_display_whose_stream_is_closed_says_so_once_and_never_fails(capsys):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    log, recorder = recorded()
    display = open_display("plain", Closed())
    for view, happened in states(log):
        display.show(happened, view, recorder.now_ns)
    display.close(view, recorder.now_ns)
    assert capsys.readouterr().err == "t1: the display is closed (Broken pipe); the run goes on\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("mode", ["live", "plain"])
def test_a_stream_that_cannot_write_unicode_gets_ascii(mode, encoding, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    out.isatty = lambda: True
    log, recorder = recorded(half_a_run)
    recorder.emit("pool", TrialFailed(trial="s1.t0", cause="日本", detail="ü"), seconds=1.0)
    display = open_display(mode, out)
    for view, happened in states(log):
        display.show(happened, view, recorder.now_ns)
    display.close(view, recorder.now_ns)
    out.flush()
    text = raw.getvalue().decode("ascii")
    assert "\\u65e5" in text
    assert "##" in text or mode == "plain"


@pytest.mark.parametrize("width", [80, 60, 40])
def test_the_live_screen_is_redrawn_in_place_on_a_terminal_of_any_width(width):
    log, recorder = recorded(half_a_run)
    terminal = Terminal(width, 30)
    display = LiveDisplay(Console(file=terminal, width=width, height=30, force_terminal=True))
    assert not terminal.cursor_shown
    for view, happened in states(log):
        display.show(happened, view, recorder.now_ns)
    display.close(view, recorder.now_ns)
    assert terminal.text() == texts(view, recorder.now_ns, width, 29)
    assert terminal.cursor_shown


@pytest.mark.parametrize(("before", "after"), [((80, 30), (40, 30)), ((40, 30), (80, 30)), ((80, 30), (60, 10))])
def test_a_terminal_resized_during_a_run_shows_one_screen(before, after):
    view = last_view(HALF)
    terminal = Terminal(*before)
    console = Console(file=terminal, width=before[0], height=before[1], force_terminal=True)
    display = LiveDisplay(console)
    display.show([], view, view.last_ns)
    terminal.resize(*after)
    console.size = after
    display.show([], view, view.last_ns)
    display.close(view, view.last_ns)
    assert terminal.visible() == texts(view, view.last_ns, after[0], after[1] - 1)


def test_what_is_printed_meanwhile_goes_above_the_screen(capsys, monkeypatch):
    view = last_view(HALF)
    terminal = Terminal(60, 30)
    monkeypatch.setattr("sys.stdout", terminal)
    display = LiveDisplay(Console(file=terminal, width=60, height=30, force_terminal=True))
    display.show([], view, view.last_ns)
    print("a warning")
    display.show([], view, view.last_ns)
    display.close(view, view.last_ns)
    assert terminal.text() == ["a warning", *texts(view, view.last_ns, 60, 29)]


# --- quantities -------------------------------------------------------------------------------------------------------


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
    assert duration_range(0.1, 0.4) == "under 1 s"


def test_text_from_outside_cannot_move_the_cursor_or_break_the_line():
    log, recorder = recorded(start)
    open_step(recorder, 0, "train")
    recorder.emit("pool", TrialFailed(trial="s0.t0", cause="task", detail="\x1b[2J\ngone \x9b ü"))
    out = io.StringIO()
    display = open_display("plain", out)
    for view, happened in states(log):
        display.show(happened, view, recorder.now_ns)
    assert "(\\x1b[2J\\ngone \\x9b ü)" in out.getvalue().splitlines()[-1]


def test_the_page_on_reports_names_every_kind_and_field_of_the_json_display():
    page = (Path(__file__).parents[2] / "docs" / "reports.md").read_text()
    for kind, fields in JSON_FIELDS.items():
        (line,) = [line for line in page.splitlines() if line.startswith("| `") and f"`{kind}`" in line.split("|")[1]]
        assert all(f"`{name}`" in line for name in fields), (kind, line)
