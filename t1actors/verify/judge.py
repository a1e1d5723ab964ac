"""From evidence to a verdict. Pure.

The best report there is decides, in this order: the cases that the project's own plugin wrote, JUnit, CTRF, what pytest
printed with ``-rA``, and for a task that declares no assertions the 0 or 1 of reward.txt. A report that is there and
cannot be believed is never passed over for a weaker one.

Guarantees: "graded" only with a complete report whose control assertion (if the task has one) passed, or that fallback;
an exit status alone decides nothing; expected assertions that a report lacks are failed ones, and ones it invents are
ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from t1actors.events import AssertionResult, Channel, Outcome
from t1actors.tasks.task import Task
from t1actors.verify.cases import CutOff, parse_cases
from t1actors.verify.evidence import CTRF, JUNIT, Evidence
from t1actors.verify.inside.places import CASES
from t1actors.verify.junit import parse_junit
from t1actors.verify.printed import parse_printed
from t1actors.verify.report import Report, ReportError, parse_binary, parse_ctrf
from t1actors.verify.verdict import Verdict

_SAID = 500


def judge(task: Task, evidence: Evidence) -> Verdict:
    """The outcome of tests that left ``evidence``."""
    said = evidence.text.strip()[-_SAID:]
    if evidence.timed_out:
        return Verdict("verifier_timeout", detail=f"the tests were stopped after {evidence.seconds:g} s: {said}")
    channel: Channel = ""
    try:
        for channel, where, read in _reports(evidence):
            if (report := read()) is not None:
                return replace(_with_report(task, report, where, said), channel=channel)
    except CutOff as error:
        outcome: Outcome = "verifier_crash" if _says_well_or_was_killed(evidence) else "partial_report"
        return Verdict(outcome, channel=channel, detail=f"{CASES}: {error}: {said}")
    except ReportError as error:
        return Verdict("partial_report", channel=channel, detail=f"{error}: {said}")
    return _without_report(task, evidence, said)


def _reports(evidence: Evidence) -> list[tuple[Channel, str, Callable[[], Report | None]]]:
    """Channel, where its report lies, and how it is read; best first."""
    found: list[tuple[Channel, str, Callable[[], Report | None]]] = []

    def offer(channel: Channel, where: str, data: bytes | None, parse: Callable[[bytes], Report]) -> None:
        def read(data: bytes) -> Report:
            try:
                return parse(data)
            except CutOff:
                raise
            except ReportError as error:
                raise ReportError(f"{where}: {error}") from error

        if data is not None:
            found.append((channel, where, lambda: read(data)))

    offer("plugin", CASES, evidence.cases, parse_cases)
    offer("junit", JUNIT[0], evidence.junit, parse_junit)
    offer("ctrf", CTRF, evidence.ctrf, parse_ctrf)
    if not found and not evidence.text_cut:
        found.append(("printed", "what pytest printed", lambda: parse_printed(evidence.text)))
    return found


def _says_well_or_was_killed(evidence: Evidence) -> bool:
    """A verifier that says it failed may have failed to report; one that says it is well, or was killed, is broken."""
    return not 0 < evidence.exit_code <= 128


def _without_report(task: Task, evidence: Evidence, said: str) -> Verdict:
    if evidence.reward is not None and not task.expected:
        try:
            return Verdict("graded", binary=parse_binary(evidence.reward), channel="reward.txt")
        except ReportError as error:
            return Verdict("partial_report", channel="reward.txt", detail=str(error))
    outcome: Outcome = "verifier_crash" if _says_well_or_was_killed(evidence) else "no_report"
    return Verdict(outcome, detail=f"exit status {evidence.exit_code} and no report (no {CTRF}): {said}")


def _with_report(task: Task, report: Report, where: str, said: str) -> Verdict:
    results = dict(report.results)
    warnings = (
        (f"tests imported the agent's modules into the grader's process: {', '.join(report.imported)}",)
        if report.imported
        else ()
    )
    broken = "; ".join(report.broken)[-_SAID:]  # a traceback ends with what is wrong
    if task.control and not results.get(task.control, False):
        return Verdict(
            "verifier_crash", detail=f"the control assertion {task.control!r} did not pass: {broken or said}"
        )
    if broken and not task.expected:
        return Verdict(
            "verifier_crash", detail=f"{where}: cases are missing, for tests could not be collected: {broken}"
        )
    expected = task.expected or tuple(name for name in results if name != task.control)
    if not expected or not (results or broken):
        return Verdict("verifier_crash", detail=f"{where}: no tests ran: {said}")
    assertions = tuple(
        AssertionResult(id=name, passed=results.get(name, False), baseline=name in task.baseline) for name in expected
    )
    return Verdict(
        "graded", assertions, warnings=warnings, detail=f"could not be collected: {broken}" if broken else ""
    )
