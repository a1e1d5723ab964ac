"""A host that can't make sandboxes is told which step failed, why, and what to do: before a run, not in the middle."""

import json
import os
import subprocess
import sys

import anyio
import pytest

from t1actors.sandbox.probe import probe
from t1actors.sandbox.remedies import fix_of_namespaces
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

if sys.argv[1] == "no sys_admin":
    status = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    held = int(status["CapPrm"], 16)
    linux.keep_only_capabilities({bit for bit in range(64) if held >> bit & 1} - {21})
else:
    linux.unshare(linux.CLONE_NEWNS, "here")
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("/dev/null", "/usr/bin/bash", flags=linux.MS_BIND)

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
    ],
)
def test_a_host_that_forbids_namespaces_is_refused_with_step_reason_and_fix(tmp_path, taken, step, reason):
    done = subprocess.run(
        [sys.executable, "-c", CHILD, taken, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    works, check, fix, failed_step, failed_reason, message = json.loads(done.stdout)
    assert not works
    assert (check, failed_step, failed_reason) == (step, step, reason)
    assert "root of the host" in fix
    assert step in message


def test_an_ordinary_user_who_may_make_no_namespaces_is_refused_with_step_reason_and_fix(user):
    def forbidden():
        # As on a host where user.max_user_namespaces is 0; the setting is of a namespace and those below it.
        uid = os.getuid()
        linux.unshare(linux.CLONE_NEWUSER, "here")
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1")):
            linux.write_file(f"/proc/self/{name}", text)
        linux.write_file("/proc/sys/user/max_user_namespaces", "0")
        return anyio.run(probe, user.directory)

    report = user.run(forbidden)
    assert not report.works
    assert (report.checks[-1].name, report.checks[-1].detail) == (
        "unshare user namespace",
        "No space left on device (ENOSPC)",
    )
    assert "`sysctl -w user.max_user_namespaces=15000`" in report.checks[-1].fix


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
        ("user/max_user_namespaces", "96364", "Linux 6.6"),
    ],
)
def test_the_setting_that_keeps_ordinary_users_from_it_is_named(tmp_path, setting, value, named):
    (tmp_path / setting).parent.mkdir()
    (tmp_path / setting).write_text(f"{value}\n")
    assert named in fix_of_namespaces(privileged=False, settings=tmp_path)


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
