"""A host that can't make sandboxes is told which step failed, why, and what to do: before a run, not in the middle."""

import json
import os
import subprocess
import sys

import anyio
import pytest

from t1actors.sandbox.probe import probe
from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.linux import StepFailed

# Really takes a power away from a child process, then asks for sandboxes.
CHILD = """
import dataclasses, json, os, sys, anyio
from pathlib import Path
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.errors import SandboxUnavailable
from t1actors.sandbox.interface import SandboxSpec
from t1actors.sandbox.probe import probe
from t1actors.sandbox.shim import linux

anyio.run(anyio.sleep, 0, backend="trio")  # imports what an ordinary user may not be able to read
if sys.argv[1] == "no sys_admin":
    status = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    held = int(status["CapPrm"], 16)
    linux.keep_only_capabilities({bit for bit in range(64) if held >> bit & 1} - {21})
elif sys.argv[1] == "no bash":
    linux.unshare(linux.CLONE_NEWNS, "here")
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("/dev/null", "/usr/bin/bash", flags=linux.MS_BIND)
else:
    os.setuid(65534)

async def main():
    report = await probe(Path(sys.argv[2]))
    backend = NamespaceBackend(Path(sys.argv[2]) / "b", name="b")
    try:
        async with backend.running():
            await backend.create(SandboxSpec(key="one"))
    except SandboxUnavailable as error:
        print(json.dumps([report.works, report.checks[-1].name, report.checks[-1].fix, error.step, error.reason, str(error)]))
        left = os.listdir(backend.root) if backend.root.exists() else []
        assert left == [], left

anyio.run(main, backend="trio")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="taking a power away needs root to begin with")
@pytest.mark.parametrize(
    ("taken", "step", "reason"),
    [
        ("no sys_admin", "unshare mount and pid namespaces", "Operation not permitted (EPERM)"),
        ("no bash", "finding /usr/bin/bash", "No such file or directory (ENOENT)"),
        ("no root", "starting the fork server", "user 65534 is not root"),
    ],
)
def test_a_host_that_forbids_namespaces_is_refused_with_step_reason_and_fix(tmp_path, taken, step, reason):
    for path in (tmp_path, *list(tmp_path.parents)[:3]):
        if path.owner() == "root" and path.name.startswith(("pytest-", "test_")):
            path.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, taken, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    works, check, fix, failed_step, failed_reason, message = json.loads(done.stdout)
    assert not works
    assert (check, failed_step, failed_reason) == (step, step, reason)
    assert "root of the host" in fix
    assert step in message


def test_the_probe_uses_a_whole_sandbox_and_leaves_nothing(host_makes_sandboxes, tmp_path):
    report = anyio.run(probe, tmp_path)
    assert report.works
    assert report.isolation is not None
    assert {"create", "shell", "seal", "kill", "python3 in the sandbox"} <= {check.name for check in report.checks}
    assert list(tmp_path.iterdir()) == []


def test_no_process_enters_the_namespaces_that_it_is_in():
    """What an attendant does to a container would else be done to the host, once the number of a process is used again."""
    own = os.pidfd_open(os.getppid())
    try:
        for flag in (linux.CLONE_NEWNS, linux.CLONE_NEWPID, linux.CLONE_NEWNS | linux.CLONE_NEWNET):
            with pytest.raises(StepFailed, match="none of a container"):
                linux.enter(own, flag, "the container's namespaces")
    finally:
        os.close(own)
