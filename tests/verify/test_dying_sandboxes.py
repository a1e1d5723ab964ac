"""A sandbox that dies under its verifier (S4): grading is bounded, and the cause decides what the trial is worth."""

import signal
from contextlib import suppress

import anyio

from t1actors.sandbox.errors import SandboxError
from tests.sandbox.conftest import Live
from tests.verify.samples import IDS, WORK, expecting, sample_task

WAITS = "touch /logs/verifier/begun; sleep 1000\n"
HOG = """
import subprocess

def test_it():
    assert subprocess.run(["/app/hog"]).returncode == 0

def test_other():
    pass
"""
HOGGING = ("printf '#!/usr/bin/python3\\nx = bytearray(900 << 20)\\n' > hog; chmod 755 hog",)


def test_a_grading_whose_sandbox_is_killed_from_outside_measures_nothing(tmp_path, on_a_bench):
    task = sample_task(tmp_path, script=WAITS, toml=expecting(*IDS))

    async def test(bench):
        async def kill_when_it_has_begun():
            with anyio.fail_after(30):
                while not await begun(bench.graders):  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            Live(bench.graders.root).signal("t1-shim", signal.SIGKILL)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill_when_it_has_begun)
            verdict = await bench.trial(task, WORK, "t")
        await bench.graders.reap()
        return verdict

    verdict = on_a_bench(test)
    assert (verdict.outcome, verdict.passed) == ("infra", 0)
    assert "its shim ended" in verdict.detail


async def begun(graders):
    for key in await graders.list():
        with suppress(SandboxError):  # it is only being made
            return await graders.read_file(key, "/logs/verifier/begun", max_bytes=10) is not None
    return False


def test_a_program_that_takes_all_memory_fails_its_test_and_the_rest_counts(tmp_path, on_a_bench):
    task = sample_task(tmp_path, cases=HOG)
    verdict = on_a_bench(lambda bench: bench.trial(task, HOGGING, "t"))
    assert (verdict.outcome, verdict.passed, verdict.expected) == ("graded", 1, 2), verdict.detail
