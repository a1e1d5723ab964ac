"""The fold of a run and the figures of its report, against a run small enough to work out by hand."""

import msgpack
import msgspec
import pytest

from t1actors.events import ActorStarted, ActorStopped, EffectIntended, ProgressReported, RunStarted, TrialFailed
from t1actors.log.frame import CommitHead
from t1actors.log.memory import MemoryLog
from t1actors.observe.figures import figures
from t1actors.observe.fold import fold
from t1actors.observe.follow import RunReader
from t1actors.observe.progress import silence, time_left
from t1actors.observe.view import RunView
from t1actors.observe.warning_signs import warning_signs
from t1actors.observe.words import what_happened
from tests.observe.recorded import START_NS, Recorder, actor, critic, open_step, run_trial, seal, start, whole_run


def view_of(log):
    reader = RunReader(log)
    view = RunView()
    while frames := reader.poll():
        fold(view, frames)
    return view


@pytest.fixture
def finished():
    log = MemoryLog()
    whole_run(Recorder(log))
    return view_of(log)


def test_the_report_has_every_name_that_was_promised(finished):
    names = {f.name for f in msgspec.structs.fields(figures(finished))}
    promised = (
        "reward_first5 reward_last5 heldout_before heldout_after sft_greedy engine_gap_mean engine_gap_max "
        "policy_movement_mean drift_loss_region staleness_by_step steps seconds cpu_seconds seconds_by_phase bytes_by_step"
    )
    assert set(promised.split()) <= names


def test_rewards_are_passed_over_the_scale_and_held_out_figures_are_shares_of_the_assertions(finished):
    found = figures(finished)
    # Two training steps: (1, 1) and (2, 4) of 4 passed; both are among the first and the last five.
    assert found.reward_first5 == pytest.approx((1 / 20 + 3 / 20) / 2)
    assert found.frac_first5 == pytest.approx((1 / 4 + 3 / 4) / 2)
    assert found.heldout_before == pytest.approx(1.5 / 4)
    assert found.heldout_after == pytest.approx(3.5 / 4)
    assert found.heldout_gain == pytest.approx(0.5)
    assert found.sft_greedy == pytest.approx(2 / 4)
    assert found.trained_greedy == pytest.approx(4 / 4)
    assert found.sft_greedy_reward == pytest.approx(2 / 20)
    assert found.heldout_before_error == pytest.approx(0.125)


def test_gap_staleness_steps_and_times_come_from_the_training_steps(finished):
    found = figures(finished)
    assert found.engine_gap_mean == pytest.approx(1e-6)
    assert found.engine_gap_max == pytest.approx(1e-5)
    assert found.policy_movement_mean == pytest.approx(1e-3)
    assert found.drift_loss_region == 0
    assert found.staleness_by_step == [0, 1]
    assert found.steps == 2
    assert found.cpu_seconds == 12.5
    assert found.seconds_by_phase["critic"] == pytest.approx(3.0)
    assert found.seconds_by_phase["actor"] == pytest.approx(3.0)
    assert found.seconds_by_phase["values"] == pytest.approx(1.5)
    assert found.finished
    assert found.complete


def test_the_gap_is_weighted_by_sampled_tokens():
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder)
    for step, gap, trials in ((0, 1e-6, 1), (1, 4e-6, 2)):
        open_step(recorder, step, "train")
        for n in range(trials):
            run_trial(recorder, f"s{step}.t{n}", passed=1, version=0)
        seal(recorder, step, "train", [1] * trials)
        critic(recorder, step)
        actor(recorder, step, staleness=step, engine_gap=gap)
    assert figures(view_of(log)).engine_gap_mean == pytest.approx((1e-6 * 1 + 4e-6 * 2) / 3)


def test_the_view_does_not_depend_on_how_the_frames_were_cut_into_calls(finished):
    log = MemoryLog()
    whole_run(Recorder(log))
    reader = RunReader(log)
    one_by_one = RunView()
    while frames := reader.poll():
        for frame in frames:
            one_by_one = fold(one_by_one, [frame])
    assert figures(one_by_one) == figures(finished)
    assert one_by_one.as_of == finished.as_of


def test_every_byte_of_events_is_attributed_to_a_step_or_to_the_run(finished):
    log = MemoryLog()
    whole_run(Recorder(log))
    written = sum(len(raw) for name in log.journals() for frame in log.open_reader(name).read() for raw in frame.events)
    counted = sum(step.size_bytes["events"] for step in finished.steps.values()) + finished.run_bytes["events"]
    assert counted == written


def test_an_unfinished_run_says_so_and_has_the_figures_it_can_have():
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder)
    open_step(recorder, 0, "evaluate")
    run_trial(recorder, "s0.t0", passed=1, version=0)
    view = view_of(log)
    found = figures(view)
    assert not found.complete
    assert found.reward_first5 is None
    assert found.heldout_before is None
    assert "not over" in what_happened(found)
    step = view.current
    assert step is not None
    assert (len(step.trials), step.over) == (2, 1)


def test_unknown_kinds_are_counted_and_change_nothing_else(finished):
    log = MemoryLog()
    recorder = Recorder(log)
    whole_run(recorder)
    recorder.close()
    dream = msgpack.packb({"kind": "DreamHad", "v": 1, "about": "sheep"})
    log.open_writer("actor").append(CommitHead(wall_ns=finished.last_ns), [dream])
    found = figures(view_of(log))
    assert found.unknown_events == 1
    assert found.reward_last5 == figures(finished).reward_last5
    assert any("does not know" in sign.text for sign in warning_signs(found))


def test_what_an_actor_is_busy_with_follows_its_open_effects():
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder)
    open_step(recorder, 0, "train")
    intended = [
        EffectIntended(key=f"s0.t{n}/0/sample", effect_kind="Sample", effect=b"\x80", deadline_s=60.0) for n in range(2)
    ]
    waiting = EffectIntended(key="s0.t0/deadline", effect_kind="Wait", effect=b"\x80", deadline_s=None)
    recorder.emit("sampler", *intended, waiting)
    view = view_of(log)
    assert +view.actors["sampler"].busy == {"sample": 2}
    assert +view.actors["pool"].busy == {}


def test_a_long_effects_progress_is_known_only_when_it_states_a_total():
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder)
    recorder.emit("actor", EffectIntended(key="step/0/actor", effect_kind="Update", effect=b"\x80"))
    assert view_of(log).actors["actor"].intents["step/0/actor"].total is None
    recorder.emit("actor", ProgressReported(key="step/0/actor", done=3, total=8, unit="batches"))
    intent = view_of(log).actors["actor"].intents["step/0/actor"]
    assert (intent.done, intent.total, intent.unit) == (3, 8, "batches")


def test_silence_names_the_effect_whose_deadline_comes_first():
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder)
    recorder.emit("pool", EffectIntended(key="s0.t0/create", effect_kind="Create", effect=b"\x80", deadline_s=120.0))
    recorder.emit("sampler", EffectIntended(key="s0.t1/0/sample", effect_kind="S", effect=b"\x80", deadline_s=3600.0))
    quiet = silence(view_of(log), recorder.now_ns + 42_000_000_000)
    assert quiet is not None
    assert quiet.seconds == pytest.approx(42)
    assert quiet.waiting_for is not None
    assert quiet.waiting_for.key == "s0.t0/create"
    assert quiet.left_s == pytest.approx(78)


def test_time_left_is_hidden_for_two_steps_and_then_spans_the_fastest_and_slowest_recent_step():
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder, sets=["schedule.train_steps=9", "schedule.evaluate=false"])
    lefts = []
    for step, pause_s in enumerate([0.0, 0.0, 4.0]):
        recorder.now_ns += round(pause_s * 1e9)
        open_step(recorder, step, "recalibrate" if step == 0 else "train")
        seal(recorder, step, "train", [])
        critic(recorder, step)
        if step:
            actor(recorder, step, staleness=0)
        lefts.append(time_left(view_of(log)))
    assert lefts[0] is None
    assert lefts[1] is not None
    # Steps take 2.6 s and 6.6 s; seven are left.
    assert lefts[2] is not None
    assert lefts[2].low_s == pytest.approx(7 * 2.6)
    assert lefts[2].high_s == pytest.approx(7 * 6.6)


def test_a_finished_run_has_done_exactly_the_steps_that_were_planned(finished):
    assert sum(step.done_ns is not None for step in finished.steps.values()) == finished.planned_steps == 7


def test_evaluations_still_to_come_are_in_the_time_left():
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder, sets=["schedule.train_steps=2"])
    for step, purpose in enumerate(["evaluate", "evaluate", "recalibrate", "train", "train"]):
        open_step(recorder, step, purpose)
        recorder.now_ns += 3_000_000_000
        seal(recorder, step, purpose, [])
        if purpose != "evaluate":
            critic(recorder, step)
        if purpose == "train":
            actor(recorder, step, staleness=0)
    left = time_left(view_of(log))
    # All training steps are done; the two evaluations behind them take as long as the first two: 3.1 s from its opening,
    # and 3.6 s from the end of the one before.
    assert left is not None
    assert (left.low_s, left.high_s) == (pytest.approx(6.2), pytest.approx(7.2))


def test_a_failed_trial_is_unmeasured_and_said_to_be(finished):
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder)
    open_step(recorder, 0, "train")
    recorder.emit("pool", TrialFailed(trial="s0.t0", cause="SandboxDied", detail="gone"))
    view = view_of(log)
    assert view.failures == {"SandboxDied": 1}
    assert view.steps[0].failed == 1
    assert view.steps[0].trials["s0.t0"].reward is None
    assert any("SandboxDied" in sign.text for sign in warning_signs(figures(view)))
    assert warning_signs(figures(finished)) == []


def test_restarts_are_counted_from_the_supervisors_words():
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder)
    recorder.emit("supervisor", ActorStopped(actor="pool", epoch=1, exit_code=-9, reason="killed"))
    recorder.emit("supervisor", ActorStarted(actor="pool", journal="pool", epoch=2, pid=7))
    view = view_of(log)
    assert view.actors["pool"].restarts == 1
    assert view.actors["pool"].exits == ["exit -9: killed"]
    assert figures(view).restarts == {"pool": 1}


def test_the_pause_before_a_resume_is_not_time_of_the_run(finished):
    log = MemoryLog()
    recorder = Recorder(log)
    whole_run(recorder)
    again = RunStarted(run="demo-run", config_digest="", config_toml="", code_version="", environment={}, resumed=True)
    recorder.emit("supervisor", again, seconds=3600)
    view = view_of(log)
    assert view.sessions == 2
    assert not view.complete
    assert view.seconds == pytest.approx(finished.seconds)
    assert view.first_ns == START_NS


def test_wrong_staleness_and_clipping_are_called_out():
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder)
    for step, staleness in ((0, 0), (1, 2)):
        open_step(recorder, step, "train")
        seal(recorder, step, "train", [])
        critic(recorder, step, variance=-0.5)
        actor(recorder, step, staleness=staleness, clip=0.08)
    sentences = " ".join(sign.text for sign in warning_signs(figures(view_of(log))))
    assert "it was not in step 1." in sentences
    assert "clipped in steps 0, 1" in sentences
    assert "negative in 2 of 2" in sentences


def test_a_short_run_is_described_and_not_judged(finished):
    words = what_happened(figures(finished))
    assert "finished after 2 training steps" in words
    assert "from 37.5 % +- 12.5 to 87.5 %" in words
    assert "better than that even when it is sampled" in words
    assert "too few training steps" in words
    assert "gate" not in words


@pytest.mark.parametrize(("last", "verdict"), [(2, "is passed"), (1, "is not passed")])
def test_the_gate_is_judged_once_first_and_last_steps_are_apart(finished, last, verdict):
    f = figures(finished)
    longer = msgspec.structs.replace(f, steps=10, reward_first5=1.0, reward_last5=float(last), reward_gain=float(last))
    words = what_happened(longer)
    assert f"({last}.00 times)" in words
    assert f"held-out up by 0.10) {verdict}" in words
