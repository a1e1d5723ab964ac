"""Grades in the agent's own sandbox, after its phase and before the seal (mode ``same-sandbox``): for tasks whose
answer is a running service, or what was installed.

Tests and tool layer come in by commands, the agent's shell is ended first, and what the tests left is read from outside
and judged like any other evidence. All that was done is a plain value, ``Tested``, so a verdict can be made again from
the record.

What it cannot promise: processes of the agent live on as the same user, and programs, libraries and the interpreter are
those it had power over. Whoever wants to can forge a report here. The verdict says so in its warnings.
"""

from __future__ import annotations

import base64
import io
import posixpath
import secrets
import tarfile
from dataclasses import replace

import anyio
import msgspec

from t1actors.events import GradingMode, Isolation, Outcome
from t1actors.payloads import digest_of
from t1actors.sandbox.archive import walk
from t1actors.sandbox.errors import SandboxDied
from t1actors.sandbox.interface import HOST, Layer, RunRequest, SandboxBackend
from t1actors.tasks.layers import tests_layer
from t1actors.tasks.task import Task
from t1actors.verify.command import PLAIN_PATH, has_grader, tests_command, uses_pytest, without_tools
from t1actors.verify.evidence import Evidence, gather
from t1actors.verify.inside.places import NOTES, SCRATCH, TESTS, TOOLS
from t1actors.verify.judge import judge
from t1actors.verify.toolbox import ToolLayer
from t1actors.verify.tools import digest_on
from t1actors.verify.verdict import NO_ISOLATION, Verdict

WARNING = "graded in the agent's own sandbox: its processes, programs and user were the grader's too"
_MODE: GradingMode = "same-sandbox"
_PART_BYTES = 3 << 20
_CARRY_S = 60.0
_PARCEL = "/var/tmp/t1.parcel"


class Tested(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the tests: ``evidence``, or ``outcome`` and ``detail`` where they did not come to an end.
    ``isolation``: the trial's own, which was the tests' too."""

    evidence: Evidence | None = None
    outcome: Outcome = "infra"
    detail: str = ""
    tests_digest: str = ""
    tools_digest: str = ""
    tool_layer_digest: str = ""
    lacks_tools: bool = False
    """The tests name pytest, and the sandbox has not the Python that the tool layer is made for."""
    seconds: float = 0.0
    isolation: Isolation = NO_ISOLATION


async def run_live(
    task: Task,
    backend: SandboxBackend,
    sandbox: str,
    *,
    key: str,
    isolation: Isolation,
    deadline_s: float,
    tool_layer: ToolLayer | None,
    base: str = HOST,
) -> Tested:
    """Run the tests of ``task`` in ``sandbox``, made with ``isolation`` on ``base``; what the agent and its services do there
    goes on.
    Idempotent by ``key``.

    Raises:
        VerifyError, TaskError: tests or tools cannot be read.
        SandboxError: the sandbox is gone, sealed, or cannot be reached.
    """
    began_s = anyio.current_time()
    tests = tests_layer(task)
    given = tool_layer if tool_layer is not None and uses_pytest(tests) else None
    limit_s = min(task.verifier_timeout_s, deadline_s)
    evidence, outcome, detail, lacks_tools = None, "infra", "", False
    try:
        await _end_shell(backend, sandbox, key)
        if given is not None and not await has_grader(backend, sandbox):
            given, lacks_tools = None, True
        layers = (tests, *((given.layer,) if given else ()))
        evidence = await _run(task, backend, sandbox, key, limit_s, layers, on_image=base != HOST)
    except SandboxDied as error:
        outcome, detail = ("verifier_crash" if error.cause == "memory" else "infra"), str(error)
    except _Refused as error:
        outcome, detail = "verifier_crash", str(error)
    return Tested(
        evidence=evidence,
        outcome=outcome,
        detail=detail,
        tests_digest=digest_of(tests.archive),
        tools_digest=digest_on(base),
        tool_layer_digest=given.digest if given is not None else "",
        lacks_tools=lacks_tools,
        seconds=anyio.current_time() - began_s,
        isolation=isolation,
    )


def judge_live(task: Task, tested: Tested) -> Verdict:
    """The verdict on what the tests left. Pure."""
    if tested.evidence is None:
        verdict = Verdict(tested.outcome, detail=tested.detail)
    else:
        verdict = replace(judge(task, tested.evidence), stand_ins=tested.evidence.stand_ins)
    if tested.lacks_tools:
        verdict = without_tools(verdict)
    return replace(
        verdict,
        mode=_MODE,
        tests_digest=tested.tests_digest,
        tools_digest=tested.tools_digest,
        tool_layer_digest=tested.tool_layer_digest,
        seconds=tested.seconds,
        isolation=tested.isolation,
        warnings=(*verdict.warnings, WARNING),
    )


class _Refused(Exception):
    """What the agent left does not let the tests in."""


async def _end_shell(backend: SandboxBackend, sandbox: str, key: str) -> None:
    """An expansion that fails ends a shell whatever functions, aliases and traps it was given; the next command gets a new
    one."""
    command = f': "${{t1_{secrets.token_hex(8)}:?}}"'
    await backend.run(sandbox, RunRequest(key=f"{key}/shell", command=command, limit_s=_CARRY_S))


async def _run(
    task: Task,
    backend: SandboxBackend,
    sandbox: str,
    key: str,
    limit_s: float,
    layers: tuple[Layer, ...],
    *,
    on_image: bool,
) -> Evidence:
    async def command(name: str, text: str, within_s: float = _CARRY_S) -> str | None:
        """None, or what it said when it failed."""
        result = await backend.run(sandbox, RunRequest(key=f"{key}/{name}", command=text, limit_s=within_s))
        return None if result.exit_code == 0 else result.text[-500:]

    parcel = base64.b64encode(_packed(layers)).decode()
    places = f"{TESTS} {TOOLS} {NOTES} {SCRATCH} /logs/verifier {_PARCEL}"
    steps = [f"rm -rf {places} && mkdir -p {NOTES} /logs/verifier {posixpath.dirname(_PARCEL)} && : > {_PARCEL}"]
    for at in range(0, len(parcel), _PART_BYTES):
        steps.append(f"base64 -d >> {_PARCEL} <<'T1'\n{parcel[at : at + _PART_BYTES]}\nT1\n")
    steps.append(f"tar -C / --no-same-owner -xzf {_PARCEL} && rm {_PARCEL}")
    for number, step in enumerate(steps):
        if (said := await command(f"in{number}", f"(export PATH={PLAIN_PATH}; {step}\n)")) is not None:
            raise _Refused(f"the tests could not be put into the agent's sandbox: {said}")
    tests = tests_command(task, tools=len(layers) > 1, subject="", image=on_image)
    request = RunRequest(key=f"{key}/tests", command=f"cd {task.workdir}; {tests}", limit_s=limit_s)
    evidence = await gather(backend, sandbox, await backend.run(sandbox, request))
    await command("out", f"rm -rf {TESTS} {TOOLS} {SCRATCH}")  # reports stay: asked again, the same evidence is there
    return evidence


def _packed(layers: tuple[Layer, ...]) -> bytes:
    """The layers as a compressed tar, rooted at /."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as tar:
        for layer in layers:
            names: list[bytes] = []
            for member in walk(layer.archive):
                if member.kind == "E":
                    del names[-1:]
                    continue
                path = "/".join(
                    [layer.at.strip("/"), *(name.decode(errors="surrogateescape") for name in names if name)]
                )
                if member.name:
                    path = f"{path}/{member.name.decode(errors='surrogateescape')}"
                info = tarfile.TarInfo(path)
                info.mode = member.mode
                if member.kind in "DO":
                    info.type = tarfile.DIRTYPE
                    names.append(member.name)
                    tar.addfile(info)
                elif member.kind == "L":
                    info.type, info.linkname = tarfile.SYMTYPE, member.target.decode(errors="surrogateescape")
                    tar.addfile(info)
                elif member.kind == "F":
                    data = bytearray(member.size_bytes)
                    for extent in member.extents:
                        data[extent.offset : extent.offset + len(extent.data)] = extent.data
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(bytes(data)))
    return file.getvalue()
