"""The reaper: what nobody owns goes, whatever died; what lives is never touched; another directory's neither."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from t1actors.sandbox.interface import RunRequest, SandboxSpec
from t1actors.sandbox.reaper import holds_sandboxes, reap, sandbox_mounts
from t1actors.sandbox.wire import group_prefix
from tests.sandbox.conftest import Live
from tests.sandbox.pools import start_and_kill_a_pool


@pytest.fixture
def live(namespaces):
    """Containers are found by their backend (test_backend)."""
    return namespaces


def kinds(leftovers):
    assert not [leftover.trouble for leftover in leftovers if leftover.trouble]
    return sorted({leftover.kind for leftover in leftovers})


def signal_shims(live, number):
    for pid, name in live.processes():
        if name == "t1-shim":
            os.kill(pid, number)


def until(condition):
    for _ in range(500):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("not within ten seconds")


def shims(live):
    return [pid for pid, name in live.processes() if name == "t1-shim"]


def test_sandboxes_that_outlive_their_pool_are_left_alone_until_their_leases_end(live):
    start_and_kill_a_pool(live, 3.0)
    began_s = time.monotonic()
    assert reap(live.root) == []
    assert len(shims(live)) == 5
    while shims(live):  # being looked at renews no lease
        assert reap(live.root, dry_run=True) == []
        time.sleep(0.1)
        assert time.monotonic() - began_s < 60
    live.assert_nothing_left()


def test_a_dry_run_finds_what_the_run_after_it_removes(live):
    start_and_kill_a_pool(live, 60.0)
    signal_shims(live, signal.SIGKILL)
    until(lambda: not live.processes())
    found = reap(live.root, dry_run=True)
    assert kinds(found) == (["control group", "directory"] if live.groups() else ["directory"])
    assert len(os.listdir(live.root)) == 5
    assert reap(live.root) == found
    live.assert_nothing_left()
    assert reap(live.root) == []


def test_sandboxes_whose_directory_was_deleted_under_them_are_ended(live):
    start_and_kill_a_pool(live, 60.0)
    shutil.rmtree(live.root)
    assert len(shims(live)) == 5
    assert "process" in kinds(reap(live.root, dry_run=True))
    assert shims(live)
    assert "process" in kinds(reap(live.root))
    live.root.mkdir()
    live.assert_nothing_left()


def test_a_shim_that_hangs_when_its_directory_is_gone_is_killed(live):
    start_and_kill_a_pool(live, 60.0)
    signal_shims(live, signal.SIGSTOP)
    assert reap(live.root) == []  # it may be one that lives
    shutil.rmtree(live.root)
    assert "process" in kinds(reap(live.root))
    live.root.mkdir()
    live.assert_nothing_left()


def test_a_sandbox_under_the_name_of_one_whose_directory_was_deleted_lives_on(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        old = shims(live)
        shutil.rmtree(live.root / "one")
        await backend.create(SandboxSpec(key="one"))
        assert kinds(await backend.reap()) == ["process"]
        assert not set(old) & set(shims(live))
        assert (await backend.run("one", RunRequest(key="1", command="echo alive", limit_s=20))).text == "alive\n"

    live(body)


def test_a_directory_that_a_dead_fork_server_was_making_goes_and_one_being_made_stays(live):
    live.root.mkdir()
    dead = live.root / ".one-999999999"
    dead.mkdir()
    (dead / "sock").touch()
    assert kinds(reap(live.root)) == ["directory"]

    async def body(backend):
        await backend.create(SandboxSpec(key="two"))
        [maker] = [pid for pid, name in live.processes() if name == "t1-forkserver"]
        making = live.root / f".three-{maker}"
        making.mkdir()
        assert await backend.reap() == []
        making.rmdir()

    live(body)


def test_a_control_group_without_a_directory_goes_with_whoever_is_in_it(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        return [os.path.dirname(group) for group in live.groups()]

    parents = live(body)
    if not parents:
        pytest.skip("no control groups can be made on this host")
    group = Path(parents[0], f"{group_prefix(str(live.root))}stray")
    group.mkdir()
    with subprocess.Popen(["sleep", "1000"]) as process:
        (group / "cgroup.procs").write_text(str(process.pid))
        assert kinds(reap(live.root)) == ["control group"]
        assert process.wait() == -signal.SIGKILL
    live.assert_nothing_left()


MOUNTINFO = """\
27 1 254:0 / / rw - ext4 /dev/vda rw
25 27 0:23 / /proc rw - proc proc rw
30 27 0:25 / /run rw - tmpfs tmpfs rw
31 30 0:26 / /run/sandboxes rw - tmpfs tmpfs rw
32 31 0:27 / /run/sandboxes/one/fs rw - tmpfs tmpfs rw
33 32 0:28 / /run/sandboxes/one/fs/merged\\040tree rw - overlay overlay rw
34 31 0:29 / /run/sandboxes/one/other rw - tmpfs tmpfs rw
35 31 0:29 / /run/sandboxes/two rw - tmpfs tmpfs rw
36 30 0:30 / /run/sandboxes-of-others/one/fs rw - tmpfs tmpfs rw
"""


def test_only_what_is_mounted_in_a_sandboxs_own_place_counts_as_its_mount():
    merged = "/run/sandboxes/one/fs/merged tree"
    assert sandbox_mounts("/run/sandboxes", MOUNTINFO) == [("one", merged), ("one", "/run/sandboxes/one/fs")]
    assert sandbox_mounts("/run/sandboxes/one", MOUNTINFO) == []
    assert sandbox_mounts("/", MOUNTINFO) == []
    assert sandbox_mounts("/nowhere", MOUNTINFO) == []


REAPS_A_MOUNT = """
import subprocess, sys
from pathlib import Path
from t1actors.sandbox.reaper import reap

def mounted():
    return [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]

before = mounted()
fs = Path(sys.argv[1], "one", "fs")
fs.mkdir(parents=True)
subprocess.run(["mount", "-t", "tmpfs", "none", fs], check=True)
print(sorted(leftover.kind for leftover in reap(Path(sys.argv[1]))), mounted() == before)
"""


def test_a_mount_that_is_visible_here_goes_and_no_other(live):
    own = ["unshare", "--mount", "--propagation", "private"]  # a mistake would be the machine's
    command = [*own, sys.executable, "-c", REAPS_A_MOUNT, str(live.root)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "['directory', 'mount'] True\n"
    live.assert_nothing_left()


def test_another_directory_is_not_touched(live, tmp_path):
    other = Live(tmp_path / "other")
    start_and_kill_a_pool(other, 60.0)
    for pid in shims(other):
        os.kill(pid, signal.SIGKILL)
    start_and_kill_a_pool(live, 60.0)
    assert reap(live.root) == []
    assert len(os.listdir(other.root)) == 5
    assert len(shims(live)) == 5
    reap(other.root)
    other.assert_nothing_left()
    signal_shims(live, signal.SIGTERM)
    live.assert_nothing_left()


def test_while_a_pool_works_its_reaper_takes_nothing(live):
    async def body(backend):
        async def trial(number):
            for turn in range(4):
                key = f"{number}.{turn}"
                await backend.create(SandboxSpec(key=key))
                assert (await backend.run(key, RunRequest(key="1", command="echo x", limit_s=20))).text == "x\n"
                await backend.kill(key)

        async def look():
            while True:
                assert await backend.reap() == []

        async with anyio.create_task_group() as lookers:
            lookers.start_soon(look)
            async with anyio.create_task_group() as trials:
                for number in range(6):
                    trials.start_soon(trial, number)
            lookers.cancel_scope.cancel()

    live(body)


def test_what_is_no_sandbox_stays_where_it_is(live, tmp_path):
    start_and_kill_a_pool(live, 60.0)
    signal_shims(live, signal.SIGKILL)
    until(lambda: not live.processes())
    (live.root / "notes.txt").write_text("mine")
    (live.root / "elsewhere").symlink_to(tmp_path)
    (live.root / "data" / "fs").mkdir(parents=True)
    (live.root / "data" / "fs" / "kept").touch()
    (live.root / "letters").mkdir()
    (live.root / "letters" / "one").touch()
    assert sum(leftover.kind == "directory" for leftover in reap(live.root)) == 5
    assert sorted(os.listdir(live.root)) == ["data", "elsewhere", "letters", "notes.txt"]
    assert (live.root / "data" / "fs" / "kept").exists()


def test_a_directory_of_something_else_is_known(tmp_path):
    assert holds_sandboxes(tmp_path)
    assert holds_sandboxes(tmp_path / "missing")
    (tmp_path / "documents").mkdir()
    assert not holds_sandboxes(tmp_path)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "log").touch()
    assert holds_sandboxes(tmp_path)
    (tmp_path / "documents" / "letter").touch()
    assert not holds_sandboxes(tmp_path)
    assert not holds_sandboxes(tmp_path / "documents")
