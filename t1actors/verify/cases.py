"""Reads what the project's own pytest plugin wrote (``verify.inside.cases``), strictly.

A file holds one session or several, one after another. Guarantees: a ``Report`` comes only from sessions that all came to
their end, in which every collected case has one outcome and no id comes twice; a session that was cut off is
``CutOff``, which is no report, and anything else that does not fit is a ``ReportError``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from t1actors.verify.report import Report, ReportError, merged_results

MOST_SESSIONS = 64
Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]
PASSED = ("passed", "xpassed")


class CutOff(ReportError):
    """A session began and did not end: pytest was killed, or something in it ended the process."""


class _Line(msgspec.Struct, frozen=True, tag_field="event", forbid_unknown_fields=True):
    pass


class _Start(_Line, frozen=True, tag="start"):
    pytest: str
    python: str


class _Collected(_Line, frozen=True, tag="collected"):
    ids: list[str]


class _Broken(_Line, frozen=True, tag="broken"):
    id: str
    text: str


class _Case(_Line, frozen=True, tag="case"):
    id: str
    outcome: Outcome


class _Finish(_Line, frozen=True, tag="finish"):
    exit: int
    cases: int
    imported: list[str]


_decoder = msgspec.json.Decoder(_Start | _Collected | _Broken | _Case | _Finish)


def parse_cases(data: bytes) -> Report:
    """The report in ``data``. Raises ``ReportError``, ``CutOff`` among them."""
    if not data:
        raise ReportError("empty")
    results: list[tuple[str, bool]] = []
    broken: list[str] = []
    imported: list[str] = []
    session: _Session | None = None
    sessions = 0
    if not data.endswith(b"\n"):
        raise CutOff("the last line is cut")
    for number, text in enumerate(data[:-1].split(b"\n"), 1):
        try:
            line = _decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ReportError(f"line {number}: {error}") from error
        if isinstance(line, _Start):
            if session is not None:
                raise CutOff(f"line {number}: a session begins while another has not ended")
            session, sessions = _Session(), sessions + 1
            if sessions > MOST_SESSIONS:
                raise ReportError(f"more than {MOST_SESSIONS} sessions")
        elif session is None:
            raise ReportError(f"line {number}: outside of a session")
        elif isinstance(line, _Finish):
            results += session.finished(line, number)
            broken += session.broken
            imported += line.imported
            session = None
        else:
            session.take(line, number)
    if session is not None:
        raise CutOff(f"pytest did not come to its end: {session.so_far()}")
    return Report(merged_results(results), tuple(broken), tuple(dict.fromkeys(imported)))


class _Session:
    def __init__(self) -> None:
        self._collected: list[str] | None = None
        self._done: dict[str, bool] = {}
        self.broken: list[str] = []

    def take(self, line: _Collected | _Broken | _Case, number: int) -> None:
        match line:
            case _Broken():
                self.broken.append(f"{line.id}: {line.text}")
            case _Collected():
                if self._collected is not None:
                    raise ReportError(f"line {number}: collected twice")
                if len(set(line.ids)) != len(line.ids) or not all(line.ids):
                    raise ReportError(f"line {number}: an id is empty or comes twice among the collected cases")
                self._collected = line.ids
            case _Case():
                if line.id in self._done:
                    raise ReportError(f"line {number}: {line.id!r} comes twice")
                if line.id not in (self._collected or ()):
                    raise ReportError(f"line {number}: {line.id!r} was not collected")
                self._done[line.id] = line.outcome in PASSED

    def finished(self, line: _Finish, number: int) -> list[tuple[str, bool]]:
        """Cases that were collected and not run (the script asked to stop at the first failure, say) did not pass."""
        if line.cases != len(self._done):
            raise ReportError(f"line {number}: {line.cases} cases, but {len(self._done)} are listed")
        return [(name, self._done.get(name, False)) for name in self._collected or ()]

    def so_far(self) -> str:
        if self._collected is None:
            return "it ended while collecting"
        return f"{len(self._done)} of {len(self._collected)} cases were done"
