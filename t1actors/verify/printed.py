"""Reads the summary that pytest prints with ``-rA``: the weakest report, for tests that leave no other.

Guarantees: only the last summary counts, and only when it is the end of pytest's output and its own last line counts what it
lists; anything else is a ``ReportError``. Captured output of the agent's programs is printed above the summary, so what
looks like one there is not taken for it.
"""

from __future__ import annotations

import re

from t1actors.verify.report import Report, ReportError, merged_results

_HEADER = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
_CASE = re.compile(r"^(PASSED|FAILED|ERROR|XPASS|XFAIL) (.+)$")
_FROM_ELSEWHERE = re.compile(r"^(?:\.\./)*/?tests/(?=[^/:]*\.py)")
_SKIPPED = re.compile(r"^SKIPPED \[(\d{1,6})\] ")
_END = re.compile(r"^=+ (.+) in [0-9.]+s(?: \([0-9:]+\))? =+$")
_COUNT = re.compile(r"^(\d{1,6}) (passed|failed|errors?|skipped|xfailed|xpassed|warnings?|deselected)$")
_WORDS = {"PASSED": "passed", "FAILED": "failed", "ERROR": "error", "XPASS": "xpassed", "XFAIL": "xfailed"}


def parse_printed(text: str) -> Report | None:
    """The report in what the tests printed; None when there is no summary in it. Raises ``ReportError``."""
    headers = list(_HEADER.finditer(text))
    if not headers:
        return None
    results: list[tuple[str, bool]] = []
    listed = dict.fromkeys((*_WORDS.values(), "skipped"), 0)
    counted: dict[str, int] | None = None
    for line in text[headers[-1].end() :].splitlines():
        if counted is not None and line.startswith("="):
            raise ReportError("pytest's summary is not the end of its output")
        if end := _END.match(line):
            counted = _counts(end[1])
        elif counted is None and (case := _CASE.match(line)):
            word, name = _WORDS[case[1]], case[2]
            listed[word] += 1
            if word not in ("passed", "xpassed"):
                name = name.split(" - ", 1)[0]
            name = _FROM_ELSEWHERE.sub("", name)  # as the other channels name it, wherever pytest was started
            results.append((name, word in ("passed", "xpassed")))
        elif counted is None and (skipped := _SKIPPED.match(line)):
            listed["skipped"] += int(skipped[1])
    if counted is None:
        raise ReportError("pytest's summary has no last line: it was cut, or pytest was killed")
    for word, number in listed.items():
        if number != counted.get(word, 0):
            raise ReportError(f"pytest's summary says {counted.get(word, 0)} {word}, but {number} are listed")
    return Report(merged_results(results))


def _counts(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(", "):
        match = _COUNT.match(part)
        if match is None:
            raise ReportError(f"pytest's last line holds {part[:40]!r}")
        word = "error" if match[2].startswith("error") else match[2]
        if word in found:
            raise ReportError(f"pytest's last line counts {word} twice")
        found[word] = int(match[1])
    return found
