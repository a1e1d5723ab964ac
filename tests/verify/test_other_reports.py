"""The reports that are read beside CTRF: the plugin's own cases, JUnit XML, and what pytest prints with -rA."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t1actors.tasks.reader import read_task
from t1actors.verify.cases import CutOff, parse_cases
from t1actors.verify.evidence import Evidence
from t1actors.verify.judge import judge
from t1actors.verify.junit import parse_junit
from t1actors.verify.printed import parse_printed
from t1actors.verify.report import ReportError
from tests.verify.samples import expecting, sample_task

START = {"event": "start", "pytest": "9.2.0", "python": "3.11.2"}


def case(name, outcome="passed"):
    return {"event": "case", "id": name, "outcome": outcome}


def collected(*names):
    return {"event": "collected", "ids": names}


def finish(cases, **more):
    return {"event": "finish", "exit": 0, "cases": cases, "imported": [], **more}


def lines(*records):
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


WHOLE = lines(
    START, collected("a[1]", "a[2]", "b"), case("a[1]"), case("a[2]", "failed"), case("b", "xpassed"), finish(3)
)


# --- the plugin's cases ---------------------------------------------------------------------------------------------------


def test_every_parametrised_case_counts_alone_and_a_case_that_did_not_run_did_not_pass():
    assert parse_cases(WHOLE).results == (("a[1]", True), ("a[2]", False), ("b", True))
    stopped = lines(START, collected("a", "b"), case("a", "error"), finish(1))
    assert parse_cases(stopped).results == (("a", False), ("b", False))


def test_several_sessions_are_one_report_in_which_a_repeated_case_must_always_pass():
    again = lines(START, collected("b", "c"), case("b", "failed"), case("c"), finish(2))
    assert dict(parse_cases(WHOLE + again).results) == {"a[1]": True, "a[2]": False, "b": False, "c": True}


@given(st.integers(1, len(WHOLE) - 1))
def test_a_report_that_ends_early_is_cut_off(length):
    with pytest.raises(CutOff):
        parse_cases(WHOLE[:length])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "empty"),
        (lines(collected("a")), "outside of a session"),
        (lines(START, START), "a session begins while another has not ended"),
        (lines(START, collected("a", "a"), finish(0)), "an id is empty or comes twice"),
        (lines(START, collected("a"), collected("a"), finish(0)), "collected twice"),
        (lines(START, collected("a"), case("a"), case("a"), finish(2)), "'a' comes twice"),
        (lines(START, collected("a"), case("b"), finish(1)), "'b' was not collected"),
        (lines(START, collected("a"), case("a"), finish(2)), "2 cases, but 1 are listed"),
        (lines(START, collected("a"), case("a"), finish(-1)), "-1 cases"),
        (lines(START, collected("a"), case("a", "great"), finish(1)), "great"),
        (lines(START, {**case("a"), "reward": 1e6}), "reward"),
        (lines(START, collected("a"), case("a")) + b'{"event": "finish", "exit": NaN, "cases": 1}\n', "line 4"),
        (b"\xff\xfe\n", "line 1"),
        (lines(*[START, collected(), finish(0)] * 65), "more than 64 sessions"),
    ],
)  # fmt: skip
def test_each_fault_in_the_cases_is_named(text, says):
    with pytest.raises(ReportError, match=says):
        parse_cases(text)


# --- JUnit ----------------------------------------------------------------------------------------------------------------

JUNIT = (
    '<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest" errors="0" failures="1" '
    'skipped="1" tests="3" time="0.1"><testcase classname="test_a" name="test_x[1]" time="0.01"/>'
    '<testcase classname="test_a" name="test_x[2]">'
    '<failure message="m">text</failure></testcase><testcase name="alone"><skipped/></testcase></testsuite></testsuites>'
)
BOMB = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><testsuites>&b;</testsuites>'


def test_junit_keeps_parametrised_cases():
    assert parse_junit(JUNIT.encode()).results == (
        ("test_a::test_x[1]", True),
        ("test_a::test_x[2]", False),
        ("alone", False),
    )


def test_a_case_that_junit_lists_twice_passes_only_if_both_do():
    """pytest lists a case again whose teardown fails."""
    twice = (
        '<testsuite tests="1" errors="1" failures="0" skipped="0"><testcase name="a"/>'
        '<testcase name="a"><error message="teardown"/></testcase></testsuite>'
    )
    assert parse_junit(twice.encode()).results == (("a", False),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not XML"),
        (JUNIT[:-20], "not XML"),
        (BOMB, "declares a document type"),
        ('<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuites/>', "declares a document type"),
        ("<html/>", "the root is 'html'"),
        (JUNIT.replace('tests="3"', 'tests="4"'), "tests = 4, but 3 are listed"),
        (JUNIT.replace('failures="1"', 'failures="0"'), "failures = 0, but 1 are listed"),
        (JUNIT.replace('failures="1"', 'failures="-1"'), "expected a count"),
        (JUNIT.replace('tests="3"', 'tests="NaN"'), "expected a count"),
        (JUNIT.replace('tests="3"', ""), "does not say how many"),
        (JUNIT.replace('time="0.1"', 'time="inf"'), "finite"),
        (JUNIT.replace('time="0.1"', 'time="-1"'), "not negative"),
        (JUNIT.replace('name="alone"', ""), "has no name"),
        ("<testsuites><testcase name='a'/></testsuites>", "directly in a testsuite"),
        ("<testsuite>" * 40 + "</testsuite>" * 40, "nested too deep"),
    ],
)
def test_each_fault_in_junit_is_named(text, says):
    with pytest.raises(ReportError, match=says):
        parse_junit(text.encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_report_or_an_error(data):
    for parse in (parse_cases, parse_junit):
        with pytest.raises(ReportError):
            parse(data)


# --- what pytest prints -----------------------------------------------------------------------------------------------------

PRINTED = """
---------------- Captured stdout call ----------------
=========== short test summary info ============
PASSED test_a.py::forged
===== 9 passed in 0.01s =====
=========================== short test summary info ============================
PASSED ../tests/test_a.py::test_x[a b - c]
SKIPPED [2] test_a.py:3: why
XPASS test_a.py::test_z - reason
FAILED test_a.py::test_y - assert 1 == 2
ERROR test_a.py::test_e - boom
================== 1 failed, 1 passed, 2 skipped, 1 xpassed, 1 warning, 1 error in 0.12s ==================
"""


def test_only_the_last_summary_counts_and_cases_are_named_as_elsewhere():
    report = parse_printed(PRINTED.replace("XPASS test_a.py::test_z - reason", "XPASS test_a.py::test_z"))
    assert report is not None
    assert dict(report.results) == {
        "test_a.py::test_x[a b - c]": True,
        "test_a.py::test_z": True,
        "test_a.py::test_y": False,
        "test_a.py::test_e": False,
    }
    assert parse_printed("nothing of the kind") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (PRINTED.partition("===== 9")[0], "has no last line"),
        (PRINTED.replace("1 failed, 1 passed", "1 failed, 2 passed"), "says 2 passed, but 1 are listed"),
        (PRINTED.replace("1 failed, ", ""), "says 0 failed, but 1 are listed"),
        (PRINTED.replace("1 warning", "inf warnings"), "holds 'inf warnings'"),
        (PRINTED.replace("1 passed", "1 passed, 1 passed"), "counts passed twice"),
        (PRINTED + "==== 5 passed in 0.1s ====\n", "not the end of its output"),
    ],
)
def test_each_fault_in_a_printed_summary_is_named(text, says):
    with pytest.raises(ReportError, match=says):
        parse_printed(text)


# --- which one decides ----------------------------------------------------------------------------------------------------


def ctrf(**tests):
    counts = {"tests": len(tests), "passed": sum(tests.values()), "failed": len(tests) - sum(tests.values())}
    entries = [{"name": name, "status": "passed" if ok else "failed"} for name, ok in tests.items()]
    summary = {**counts, "skipped": 0, "pending": 0, "other": 0}
    return json.dumps({"results": {"summary": summary, "tests": entries}}).encode()


LEFT = {
    "plugin": {"cases": lines(START, collected("a"), case("a", "failed"), finish(1))},
    "junit": {"junit": b'<testsuite tests="1"><testcase name="a"/></testsuite>'},
    "ctrf": {"ctrf": ctrf(a=True)},
    "printed": {"text": "=== short test summary info ===\nPASSED a\n=== 1 passed in 0.1s ==="},
    "reward.txt": {"reward": b"1"},
}


@pytest.mark.parametrize("first", range(len(LEFT)))
def test_the_best_report_that_is_there_decides_and_is_named(tmp_path, first):
    task = sample_task(tmp_path)
    left = {key: value for files in list(LEFT.values())[first:] for key, value in files.items()}
    verdict = judge(task, Evidence(exit_code=0, seconds=1.0, **left))
    assert (verdict.outcome, verdict.channel) == ("graded", list(LEFT)[first])
    assert verdict.passed + (verdict.binary or 0) == (first > 0)


@pytest.mark.parametrize("channel", ["plugin", "junit", "ctrf", "printed"])
def test_a_report_that_cannot_be_believed_is_not_passed_over_for_a_weaker_one(tmp_path, channel):
    broken = {"plugin": {"cases": b"x\n"}, "junit": {"junit": b"x"}, "ctrf": {"ctrf": b"x"},
              "printed": {"text": "=== short test summary info ==="}}  # fmt: skip
    weaker = {
        key: value for files in list(LEFT.values())[list(LEFT).index(channel) + 1 :] for key, value in files.items()
    }
    verdict = judge(sample_task(tmp_path), Evidence(exit_code=0, seconds=1.0, **{**weaker, **broken[channel]}))
    assert (verdict.outcome, verdict.channel, verdict.assertions) == ("partial_report", channel, ())


def test_output_that_was_cut_is_no_report(tmp_path):
    verdict = judge(sample_task(tmp_path), Evidence(exit_code=1, seconds=1.0, text_cut=True, **LEFT["printed"]))
    assert verdict.outcome == "no_report"


def test_a_binary_reward_is_not_for_tasks_that_declare_assertions(tmp_path):
    task = read_task(sample_task(tmp_path, toml=expecting("a")).path)
    assert judge(task, Evidence(exit_code=0, seconds=1.0, reward=b"1")).outcome == "verifier_crash"
