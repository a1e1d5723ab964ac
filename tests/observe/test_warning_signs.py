"""Each warning sign appears when what it names is there, and only then; it names the steps and what to type next."""

import msgspec
import pytest

from t1actors.log.memory import MemoryLog
from t1actors.observe.families import FamilyFigures
from t1actors.observe.figures import figures
from t1actors.observe.fold import fold
from t1actors.observe.follow import RunReader
from t1actors.observe.view import RunView
from t1actors.observe.warning_signs import named, warning_signs
from tests.observe.recorded import Recorder, whole_run

FIRST = 3
"""Number of the first training step."""


def changed(value, **fields):
    return msgspec.structs.replace(value, **fields)


@pytest.fixture(scope="module")
def healthy():
    """The figures of a run with twelve training steps, all alike, and nothing wrong."""
    log = MemoryLog()
    whole_run(Recorder(log))
    view = RunView()
    reader = RunReader(log)
    while frames := reader.poll():
        fold(view, frames)
    f = figures(view)
    before, after = f.by_step[0], f.by_step[-2]
    model = next(s for s in f.by_step if s.purpose == "train")
    steps = [changed(model, step=FIRST + n, staleness=min(1, n)) for n in range(12)]
    return changed(f, steps=12, by_step=[before, *steps, changed(after, step=FIRST + 12)])


def with_steps(f, steps, **fields):
    """``f`` with these training steps (counted from 0) changed."""
    numbers = {FIRST + n for n in steps}
    return changed(f, by_step=[changed(s, **fields) if s.step in numbers else s for s in f.by_step])


def found(f):
    return {sign.name: sign for sign in warning_signs(f)}


def test_a_healthy_run_has_no_sign(healthy):
    assert warning_signs(healthy) == []


@pytest.mark.parametrize(
    ("name", "below", "at"),
    [
        ("clip share", {"clip_share": 0.0299}, {"clip_share": 0.03}),
        ("KL", {"kl": 4.99e-3}, {"kl": 5e-3}),
        ("gradient grid", {"quantum_over_rms": 0.99e-3}, {"quantum_over_rms": 1e-3}),
        ("critic", {"explained_variance": 0.0}, {"explained_variance": -1e-6}),
        ("drift", {"drift_in_loss": 0}, {"drift_in_loss": 1}),
        ("staleness", {"staleness": 1}, {"staleness": 2}),
        ("short batches", {"short_of": 0}, {"short_of": 1}),
        (
            "boundaries",
            {"boundaries": {"STRICT": 981, "RETOKENIZED": 12, "SPLIT": 7}},
            {"boundaries": {"STRICT": 980, "RETOKENIZED": 12, "SPLIT": 8}},
        ),
    ],
)
def test_a_sign_of_single_steps_appears_at_its_threshold_and_names_the_steps(healthy, name, below, at):
    assert name not in found(with_steps(healthy, [2, 7], **below))
    sign = found(with_steps(healthy, [2, 7], **at))[name]
    assert sign.steps == (FIRST + 2, FIRST + 7)
    assert "steps 5, 10" in sign.text
    assert sign.look.startswith("t1 ")


@pytest.mark.parametrize(
    ("name", "field", "first", "below", "above"),
    [
        ("reward", "reward", 0.5, 0.45, 0.449),
        ("entropy", "entropy", 0.4, 0.5, 0.501),
        ("turns", "turns", 4.0, 6.0, 6.01),
        ("engine gap", "engine_gap_mean", 1e-4, 2e-4, 2.01e-4),
        ("engine gap", "engine_gap_mean", 1e-7, 1e-5, 1.01e-5),
    ],
)
def test_a_trend_is_a_sign_once_the_last_five_steps_leave_the_first_five_far_enough(
    healthy, name, field, first, below, above
):
    begun = with_steps(healthy, range(12), **{field: first})
    assert name not in found(with_steps(begun, range(7, 12), **{field: below}))
    sign = found(with_steps(begun, range(7, 12), **{field: above}))[name]
    assert sign.steps == tuple(range(FIRST + 7, FIRST + 12))
    assert "steps 3 to 7 against 10 to 14" in sign.text


def test_a_run_too_short_to_compare_has_no_trends(healthy):
    short = changed(healthy, steps=9)
    rising = with_steps(short, range(5, 12), entropy=9.0, turns=90.0, engine_gap_mean=1.0)
    assert found(rising).keys().isdisjoint({"entropy", "turns", "engine gap"})


def family(**fields):
    usual = FamilyFigures(family="sed", before=0.8, after=0.8, before_error=0.05, after_error=0.05, trials=20)
    return changed(usual, **fields)


@pytest.mark.parametrize(
    ("made", "fell"),
    [
        (family(after=0.66), False),  # two standard errors are .1414
        (family(after=0.65), True),
        (family(after=0.65, trials=4), False),
        (family(after=0.1, after_error=None), False),
        (family(before=None), False),
        (family(after=1.0), False),
    ],
)
def test_a_family_fell_when_it_lost_more_than_two_standard_errors(healthy, made, fell):
    signs = found(changed(healthy, families=[family(family="tar"), made]))
    assert ("families that fell" in signs) is fell
    if fell:
        assert "sed (80.0 % to 65.0 %)" in signs["families that fell"].text
        assert "tar" not in signs["families that fell"].text
        assert signs["families that fell"].steps == (FIRST + 12,)


def test_families_that_are_lost_twice_as_often_as_the_rest_are_named(healthy):
    lost = {"sed": (40, 9), "tar": (40, 2), "sum": (160, 8), "rare": (19, 9)}
    sign = found(with_steps(healthy, [4], lost_by_family=lost))["lost families"]
    # 28 of 259 are lost: 10.8 %; sed loses 22.5 %, and rare has too few trials to tell.
    assert "sed (9 of 40)" in sign.text
    assert "tar" not in sign.text
    assert "rare" not in sign.text
    assert sign.steps == (FIRST + 4,)
    assert "lost families" not in found(with_steps(healthy, [4], lost_by_family={**lost, "sed": (40, 8)}))


def test_unmeasured_trials_and_gradings_are_counted_by_cause_with_the_steps(healthy):
    broken = changed(
        with_steps(healthy, [3], failed=2),
        failures={"SandboxDied": 2},
        outcomes={"graded": 9, "infra": 1},
        ungraded_tasks=[("l1-5", 1, 1)],
    )
    signs = found(broken)
    assert "2 x SandboxDied (step 6)" in signs["unmeasured trials"].text
    assert signs["unmeasured trials"].look == "t1 log cat . --kind TrialFailed"
    assert "1 x infra" in signs["unmeasured gradings"].text
    assert "Of tasks: l1-5 (1 of 1)" in signs["unmeasured gradings"].text
    assert "graded" not in signs["unmeasured gradings"].text


def test_commands_that_ran_out_of_time_are_a_sign_since_a_busy_machine_costs_reward(healthy):
    assert "slow commands" not in found(with_steps(healthy, [4], timed_out_turns=0.009))
    sign = found(with_steps(healthy, [4, 5], timed_out_turns=0.25))["slow commands"]
    assert sign.steps == (7, 8)
    assert "25.0 %" in sign.text or "25 %" in sign.text
    assert "rollout.command_deadline_s" in sign.text


def test_how_a_run_ended_comes_first(healthy):
    failed = changed(healthy, finished=False, failed_reason="barrier after step 4: no answer from sampler")
    assert next(iter(warning_signs(with_steps(failed, [1], kl=1.0)))).name == "failed"
    stopped = changed(healthy, finished=False, stopped_reason="interrupted")
    assert [sign.name for sign in warning_signs(stopped)] == ["stopped"]
    assert warning_signs(stopped)[0].look == "t1 run --resume ."


def test_restarts_and_unknown_events_are_signs_of_the_whole_run(healthy):
    signs = found(changed(healthy, restarts={"pool": 2}, unknown_events=3))
    assert "pool 2x" in signs["restarts"].text
    assert signs["restarts"].steps == signs["unknown events"].steps == ()


def test_many_steps_are_named_up_to_eight():
    assert named([4]) == "step 4"
    assert named([4, 5]) == "steps 4, 5"
    assert named(range(12)) == "steps 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"


def test_quarantined_tasks_retries_and_what_was_leaked_are_signs(healthy):
    signs = found(
        changed(
            healthy,
            quarantined={"l1-5": "task: no such base", "l1-6": "task: no such base"},
            retries={"TimeoutError": 2},
            leaked={"directory": 3},
        )
    )
    assert "l1-5: task: no such base; l1-6" in signs["quarantined tasks"].text
    assert signs["quarantined tasks"].look == "t1 log cat . --kind TaskQuarantined"
    assert "2 x TimeoutError" in signs["retries"].text
    assert "3 x directory" in signs["leaked"].text
