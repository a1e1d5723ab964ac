"""pytest plugin: writes what every test case did, one JSON line an event, into a file that only the grader may write.

    start       pytest and Python versions
    collected   ids of all cases that are to run, parametrised ones each with its own
    broken      a module that could not be collected
    case        id and outcome: passed failed error skipped xfailed xpassed
    finish      the session came to its end: pytest's exit status, and what of the agent's code was imported into it

Guarantees: a line is written when its event happens, so a session that was killed lacks ``finish`` and shows how far it
came; a case is written once, after its teardown; a session that came to its end leaves what it and those before it wrote,
whatever else was written into the file meanwhile. ``--ctrf FILE`` is understood, for scripts made for pytest-json-ctrf.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

LONGEST_TEXT = 2000
MOST_MODULES = 20


class Cases:
    """The plugin. ``graded`` are the directories whose modules are the agent's."""

    def __init__(self, file: int, graded: Sequence[str]) -> None:
        self._file = file  # open for reading too
        self._written = _content(file)
        self._graded = tuple(f"{path.rstrip('/')}/" for path in graded if path)
        self._outcomes: dict[str, str] = {}
        self._done: list[tuple[str, str]] = []
        self._began_s = time.time()

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        """--ctrf."""
        parser.addoption("--ctrf", default=None, help="write a CTRF report to this file")

    def pytest_sessionstart(self) -> None:
        """Write ``start``."""
        self._write(event="start", pytest=pytest.__version__, python=platform.python_version())

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write ``broken`` for a module that cannot be collected."""
        if report.failed:
            self._write(event="broken", id=report.nodeid, text=str(report.longrepr)[-LONGEST_TEXT:])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write ``collected``: what is left after deselecting."""
        self._write(event="collected", ids=[item.nodeid for item in session.items])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in what one phase of a case came to; a failure in any phase stays."""
        before = self._outcomes.get(report.nodeid)
        now = _outcome(report)
        if now is not None and (before is None or now in ("failed", "error")):
            self._outcomes[report.nodeid] = now

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Write ``case``."""
        outcome = self._outcomes.pop(nodeid, "error")
        self._done.append((nodeid, outcome))
        self._write(event="case", id=nodeid, outcome=outcome)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write ``finish``, last of all that pytest does."""
        path = session.config.getoption("--ctrf")
        if path:
            self._write_ctrf(str(path))
        modules = [name for name, module in sorted(sys.modules.items()) if self._is_agents(module)]
        self._write(event="finish", exit=int(exitstatus), cases=len(self._done), imported=modules[:MOST_MODULES])
        if _content(self._file) != self._written:
            os.ftruncate(self._file, 0)
            _write_all(self._file, self._written)

    def _is_agents(self, module: Any) -> bool:
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and os.path.realpath(file).startswith(self._graded) if self._graded else False

    def _write(self, **record: object) -> None:
        line = json.dumps(record, ensure_ascii=True).encode() + b"\n"
        self._written += line
        _write_all(self._file, line)

    def _write_ctrf(self, path: str) -> None:
        statuses = {"passed": "passed", "xpassed": "passed", "skipped": "skipped", "xfailed": "skipped"}
        tests = [{"name": name, "status": statuses.get(how, "failed"), "duration": 0} for name, how in self._done]
        counts = {s: sum(t["status"] == s for t in tests) for s in ("passed", "failed", "skipped", "pending", "other")}
        times = {"start": int(self._began_s), "stop": int(time.time())}
        summary = {"tests": len(tests), **counts, **times}
        report = {"results": {"tool": {"name": "pytest"}, "summary": summary, "tests": tests}}
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(report, file)


def _content(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _outcome(report: pytest.TestReport) -> str | None:
    """What this phase says of the case; None: nothing."""
    expected_to_fail = hasattr(report, "wasxfail")
    if report.failed:
        return "failed" if report.when == "call" else "error"
    if report.skipped:
        return "xfailed" if expected_to_fail else "skipped"
    if report.when == "call":
        return "xpassed" if expected_to_fail else "passed"
    return None
