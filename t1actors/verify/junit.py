"""Reads a JUnit XML report, strictly and safely: the bytes come from a place where untrusted code may have run.

Guarantees: no document type and so no entities (nothing expands, nothing is fetched), bounded depth and number; counts
are whole, not negative, and agree with what is listed; what does not fit is a ``ReportError``. An id is
``classname::name``, with a parametrised case's parameters in its name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn
from xml.parsers import expat

from t1actors.verify.report import Report, ReportError, merged_results

DEEPEST = 32
MOST_CASES = 100_000
_COUNTS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


@dataclass
class _Case:
    id: str
    marks: set[str]


def parse_junit(data: bytes) -> Report:
    """The report in ``data``. Raises ``ReportError``."""
    reader = _Reader()
    parser = expat.ParserCreate("utf-8")  # whatever it declares
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.StartDoctypeDeclHandler = reader.refuse_doctype
    parser.EntityDeclHandler = reader.refuse_doctype
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ReportError(f"not XML: {error}") from error
    return Report(merged_results(reader.results))


class _Reader:
    def __init__(self) -> None:
        self.results: list[tuple[str, bool]] = []
        self._path: list[str] = []
        self._case: _Case | None = None
        self._suites: list[tuple[dict[str, str], list[_Case]]] = []

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._path) >= DEEPEST:
            raise ReportError("nested too deep")
        if not self._path and name not in ("testsuites", "testsuite"):
            raise ReportError(f"the root is {name!r}, not testsuites or testsuite")
        self._path.append(name)
        if "time" in attributes:
            _number(name, "time", attributes["time"])
        if name == "testsuite":
            if self._case is not None:
                raise ReportError("a testsuite inside a testcase")
            self._suites.append((attributes, []))
        elif name == "testcase":
            if self._case is not None or not self._suites:
                raise ReportError("a testcase must lie directly in a testsuite")
            if not attributes.get("name"):
                raise ReportError("a testcase has no name")
            classname = attributes.get("classname", "")
            self._case = _Case(f"{classname}::{attributes['name']}" if classname else attributes["name"], set())
        elif self._case is not None and self._path[-2] == "testcase" and name in _COUNTS.values():
            self._case.marks.add(name)

    def end(self, name: str) -> None:
        self._path.pop()
        if name == "testcase" and self._case is not None:
            self._suites[-1][1].append(self._case)
            self.results.append((self._case.id, not self._case.marks))
            self._case = None
            if len(self.results) > MOST_CASES:
                raise ReportError(f"more than {MOST_CASES:,} cases")
        elif name == "testsuite":
            attributes, cases = self._suites.pop()
            _check_counts(attributes, cases)
            if self._suites:
                self._suites[-1][1].extend(cases)

    def refuse_doctype(self, *_: object) -> NoReturn:
        raise ReportError("declares a document type or entities; reports have none")


def _check_counts(attributes: dict[str, str], cases: list[_Case]) -> None:
    if "tests" not in attributes:
        raise ReportError("a testsuite does not say how many tests it has")
    # pytest lists a case whose teardown fails as well a second time, and counts it once.
    again = len(cases) - len({case.id for case in cases})
    tests = _count("tests", attributes["tests"])
    if not len(cases) - again <= tests <= len(cases):
        raise ReportError(f"testsuite.tests = {tests}, but {len(cases)} are listed")
    for key, mark in _COUNTS.items():
        listed = sum(mark in case.marks for case in cases)
        if key in attributes and _count(key, attributes[key]) != listed:
            raise ReportError(f"testsuite.{key} = {attributes[key]}, but {listed} are listed")


def _count(key: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ReportError(f"testsuite.{key} = {text[:40]!r}: expected a count")
    return int(text)


def _number(name: str, key: str, text: str) -> None:
    try:
        value = float(text.replace(",", ""))
    except ValueError as error:
        raise ReportError(f"{name}.{key} = {text[:40]!r}: expected seconds") from error
    if not math.isfinite(value) or value < 0:
        raise ReportError(f"{name}.{key} = {text[:40]}; every number must be finite and not negative")
