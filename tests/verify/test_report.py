"""Reports are believed only when they are whole: whatever an agent or a crash could leave instead is named, not scored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t1actors.verify.report import ReportError, parse_binary, parse_ctrf

STATUSES = ["passed", "failed", "skipped", "pending", "other"]


def ctrf(tests: list[tuple[str, str]], /, **summary: Any) -> dict[str, Any]:
    counts = {"tests": len(tests), **{status: sum(s == status for _, s in tests) for status in STATUSES}}
    return {
        "results": {
            "tool": {"name": "x"},
            "summary": {**counts, "start": 0, "stop": 0, **summary},
            "tests": [{"name": name, "status": status, "duration": 1.5} for name, status in tests],
        }
    }


def encode(value: object) -> bytes:
    return json.dumps(value).encode()


names = st.text(min_size=1, max_size=5)


@given(st.lists(st.tuples(names, st.sampled_from(STATUSES)), max_size=12))
def test_a_whole_report_is_read_and_a_shared_name_passes_only_if_all_its_cases_do(tests: list[tuple[str, str]]):
    expected: dict[str, bool] = {}
    for name, status in tests:
        expected[name] = expected.get(name, True) and status == "passed"
    assert dict(parse_ctrf(encode(ctrf(tests))).results) == expected


@given(st.lists(st.tuples(names, st.sampled_from(STATUSES)), min_size=1, max_size=6), st.data())
def test_a_report_cut_anywhere_is_refused(tests: list[tuple[str, str]], data: st.DataObject):
    whole = encode(ctrf(tests))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ReportError):
        parse_ctrf(whole[:cut])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_report_or_an_error_never_another_exception(data: bytes):
    with pytest.raises(ReportError):
        parse_ctrf(data)


GOOD = ctrf([("a", "passed"), ("b", "failed")])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "no object 'results'"),
        (b"{}", "no object 'results'"),
        (b"1" * 5000, "not JSON"),
        (b"[" * 100_000, "nested too deep|not JSON"),
        (encode(GOOD).replace(b'"duration": 1.5', b'"duration": NaN', 1), "holds NaN"),
        (encode(GOOD).replace(b'"duration": 1.5', b'"duration": -Infinity', 1), "holds -Infinity"),
        (encode(GOOD).replace(b'"duration": 1.5', b'"duration": 1e999', 1), "holds 1e999"),
        (encode(GOOD).replace(b'"name": "b"', b'"name": "b", "name": "c"'), "repeats a key"),
        (encode(ctrf([("a", "passed")], passed=-1)), r"passed = -1: expected a count"),
        (encode(ctrf([("a", "passed")], passed=True)), r"passed = True: expected a count"),
        (encode(ctrf([("a", "passed")], passed=2)), r"passed = 2, but 1 are listed"),
        (encode(ctrf([("a", "passed")], tests=3)), r"tests = 3, but 1 are listed"),
        (encode(ctrf([("a", "passed")], failed=None)), r"failed = None: expected a count"),
        (encode(ctrf([("a", "great")])), r"status = 'great'"),
        (encode(ctrf([("", "passed")])), r"tests\[0\] has no name"),
        (encode({"results": {"tests": "all", "summary": {}}}), "results.tests is not a list"),
        (encode({"results": {"tests": [1], "summary": {}}}), r"tests\[0\] is not an object"),
        (encode({"results": {"tests": []}}), "no object 'summary'"),
    ],
)
def test_each_fault_in_a_report_is_named(text: bytes, says: str):
    with pytest.raises(ReportError, match=says):
        parse_ctrf(text)


def test_a_binary_reward_is_0_or_1_and_nothing_else():
    assert [parse_binary(text) for text in (b"0", b"1\n", b" 1.0 ", b"0.0")] == [0, 1, 1, 0]
    for text in (b"", b"0.5", b"2", b"-1", b"nan", b"inf", b"1000000", b"yes", b"\xff", b"1 1"):
        with pytest.raises(ReportError, match="expected 0 or 1"):
            parse_binary(text)
