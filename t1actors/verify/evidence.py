"""What a grading left to judge by: how the tests ended, and the reports they wrote, read from outside.

Guarantees: every file is a regular one, reached through no link, of a bounded size (the backend's ``read_file``); what
is not so is as if it were not there. Evidence is a plain value: it can be stored and judged again.
"""

from __future__ import annotations

import msgspec

from t1actors.sandbox.interface import RunResult, SandboxBackend
from t1actors.verify.inside.places import CASES, STAND_INS

CTRF = "/logs/verifier/ctrf.json"
JUNIT = ("/logs/verifier/junit.xml", "/logs/verifier/report.xml", "/logs/verifier/results.xml")
REWARD = "/logs/verifier/reward.txt"
LARGEST_REPORT_BYTES = 4 << 20
_LARGEST_REWARD_BYTES = 64
_MOST_STAND_INS = 50
_LONGEST_STAND_IN = 200


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """``cases``, ``junit``, ``ctrf`` and ``reward`` are files as the tests left them; None: not there. ``text`` is what
    the tests printed, ``text_cut`` whether that is not all."""

    exit_code: int
    seconds: float
    timed_out: bool = False
    text: str = ""
    text_cut: bool = False
    cases: bytes | None = None
    junit: bytes | None = None
    ctrf: bytes | None = None
    reward: bytes | None = None
    stand_ins: tuple[str, ...] = ()


class _StandIn(msgspec.Struct, frozen=True):
    program: str
    did: str


_stand_in = msgspec.json.Decoder(_StandIn)


async def gather(backend: SandboxBackend, sandbox: str, result: RunResult) -> Evidence:
    """The evidence in ``sandbox`` after its tests ended with ``result``. Raises ``SandboxError``."""

    async def read(path: str, max_bytes: int = LARGEST_REPORT_BYTES) -> bytes | None:
        return await backend.read_file(sandbox, path, max_bytes=max_bytes)

    cases = await read(CASES) or None  # an empty one is of a pytest that refused its command line
    junit = None
    for path in JUNIT if cases is None else ():
        junit = junit or await read(path)
    return Evidence(
        exit_code=result.exit_code,
        seconds=result.seconds,
        timed_out=result.timed_out,
        text=result.text,
        text_cut=result.truncated_bytes > 0,
        cases=cases,
        junit=junit,
        ctrf=await read(CTRF) if cases is None else None,
        reward=await read(REWARD, _LARGEST_REWARD_BYTES),
        stand_ins=_lines(await read(STAND_INS)),
    )


def _lines(data: bytes | None) -> tuple[str, ...]:
    found: list[str] = []
    for line in (data or b"").splitlines()[:_MOST_STAND_INS]:
        try:
            done = _stand_in.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # only for the record
        found.append(f"{done.program}: {done.did}"[:_LONGEST_STAND_IN])
    return tuple(dict.fromkeys(found))
