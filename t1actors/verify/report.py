"""A verifier's report, and CTRF read as one, strictly. The bytes come from a place where untrusted code may have run.

Guarantees: a ``Report`` is complete (its summary counts what it lists) and names every result; whatever is cut, is not
JSON, holds NaN, infinities or negative counts, or contradicts itself is a ``ReportError``. What the results mean for a task
is ``verify.grade``'s business.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NoReturn, cast

STATUSES: Final = ("passed", "failed", "skipped", "pending", "other")


class ReportError(Exception):
    """The report is there and cannot be believed: says what is wrong in it."""


@dataclass(frozen=True)
class Report:
    """(id, passed) in reported order, each id once. Skipped and pending tests did not pass."""

    results: tuple[tuple[str, bool], ...]
    broken: tuple[str, ...] = ()
    """Test modules that could not be collected, and why."""
    imported: tuple[str, ...] = ()
    """Modules of the agent that the tests imported into their own process."""


def merged_results(results: Iterable[tuple[str, bool]]) -> tuple[tuple[str, bool], ...]:
    """A repeated id (in CTRF parametrised cases share one) passed only if all its entries did."""
    merged: dict[str, bool] = {}
    for name, passed in results:
        merged[name] = merged.get(name, True) and passed
    return tuple(merged.items())


def parse_ctrf(data: bytes) -> Report:
    """The report in CTRF ``data``. Raises ``ReportError``."""
    try:
        top: object = json.loads(
            data.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_no_repeats,
        )
    except ValueError as error:  # not UTF-8, not JSON, or an integer of thousands of digits
        raise ReportError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise ReportError("nested too deep") from error
    results = _object(top, "results")
    tests = results.get("tests")
    if not isinstance(tests, list):
        raise ReportError("results.tests is not a list")
    listed: list[tuple[str, bool]] = []
    counts = dict.fromkeys(STATUSES, 0)
    for place, test in enumerate(cast("list[object]", tests)):
        if not isinstance(test, dict):
            raise ReportError(f"results.tests[{place}] is not an object")
        entry = cast("dict[str, object]", test)
        name, status = entry.get("name"), entry.get("status")
        if not isinstance(name, str) or not name:
            raise ReportError(f"results.tests[{place}] has no name")
        if not isinstance(status, str) or status not in STATUSES:
            raise ReportError(f"results.tests[{place}].status = {status!r}: expected one of {', '.join(STATUSES)}")
        counts[status] += 1
        listed.append((name, status == "passed"))
    summary = _object(results, "summary")
    _check_count(summary, "tests", sum(counts.values()))
    for status in STATUSES:
        _check_count(summary, status, counts[status])
    return Report(merged_results(listed))


def parse_binary(data: bytes) -> int:
    """The 0 or 1 of a reward.txt. Raises ``ReportError`` for anything else: also for shares, NaN and sums above 1."""
    try:
        value = float(data.decode("ascii").strip())
    except ValueError as error:
        raise ReportError(f"reward.txt holds {data[:40]!r}: expected 0 or 1") from error
    if value not in (0.0, 1.0):
        raise ReportError(f"reward.txt holds {value}: expected 0 or 1")
    return int(value)


def _object(parent: object, key: str) -> dict[str, object]:
    value = cast("dict[str, object]", parent).get(key) if isinstance(parent, dict) else None
    if not isinstance(value, dict):
        raise ReportError(f"no object {key!r}")
    return cast("dict[str, object]", value)


def _check_count(summary: dict[str, object], key: str, listed: int) -> None:
    value = summary.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise ReportError(f"results.summary.{key} = {value!r}: expected a count")
    if value != listed:
        raise ReportError(f"results.summary.{key} = {value}, but {listed} are listed")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse_constant(text)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ReportError(f"holds {name}; every number must be finite")


def _no_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ReportError(f"an object repeats a key: {', '.join(key for key, _ in pairs)}")
    return found
