"""Machines that lack something, really made so for a child process: it is fine, or one message says what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from t1actors.cli import checks_machine, checks_place
from t1actors.cli.checks import Check
from t1actors.cli.doctor import lines
from t1actors.cli.errors import explain
from t1actors.cli.run import _make_directory
from t1actors.sandbox.shim import abilities

T1 = [sys.executable, "-c", "from t1actors.cli.main import main; raise SystemExit(main())"]
NO_GROUP = "no group can be made"
ROOT_OUTSIDE = "being an ordinary user: this is root of a user namespace, and the host's root outside"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="taking something away needs root to begin with")

# Takes something away from itself, by name, and becomes the command.
TAKE = """
import ctypes, os, resource, struct, sys
from t1actors.sandbox.shim import linux

def seccomp():  # as Docker's own filter: unshare is refused
    def op(code, value, if_true=0, if_false=0): return struct.pack("HBBI", code, if_true, if_false, value)
    number = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
    linux.install_filter(op(0x20, 0) + op(0x15, number, 0, 1) + op(6, 0x50001) + op(6, 0x7FFF0000))

def capabilities(*lost):
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
    held = int(status["CapPrm"], 16)
    linux.keep_only_capabilities({bit for bit in range(64) if held >> bit & 1} - set(lost))

def nobody():
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as after exec: /proc/self belongs to that user

def user_namespace():
    uid = os.getuid()
    linux.unshare(linux.CLONE_NEWUSER, "user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1")):
        linux.write_file(f"/proc/self/{name}", text)

def user_namespace_without_any_below():
    user_namespace()
    linux.write_file("/proc/sys/user/max_user_namespaces", "0")

def mounted(place, kind, options):
    linux.unshare(linux.CLONE_NEWNS, "here")
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("none", place, kind, options=options)

def read_only(place):
    linux.unshare(linux.CLONE_NEWNS, "here")
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount(place, place, flags=linux.MS_BIND)
    linux.mount(place, place, flags=linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY)

def low_limits():
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

def no_network():
    linux.unshare(linux.CLONE_NEWNET, "network")

for step in sys.argv[1].split(";"):
    eval(step)
os.execv(sys.argv[2], sys.argv[2:])
"""


def without(what, command, **options):
    return subprocess.run(
        [sys.executable, "-c", TAKE, what, *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )


# --- what a sandbox is made of ----------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize(
    ("taken", "missing"),
    [
        ("seccomp()", {"namespaces": "unshare mount namespace: Operation not permitted (EPERM)"}),
        ("capabilities(21)", {"mounts": "unshare mount and pid namespaces: Operation not permitted (EPERM)"}),
        ("capabilities(27)", {"mounts": "making device nodes: Operation not permitted (EPERM)"}),
        ("user_namespace()", {"user": f"{ROOT_OUTSIDE}: Operation not permitted (EPERM)"}),
        (
            "nobody();user_namespace_without_any_below()",
            {"namespaces": "unshare user namespace: No space left on device (ENOSPC)"},
        ),
        ("mounted('/sys/fs/cgroup', 'tmpfs', '')", {"hard limits": f"memory: {NO_GROUP}, pids: {NO_GROUP}"}),
        (
            "mounted('/etc', 'tmpfs', '');nobody()",
            {"separate users": "one id only: user 65534 has no name, and /usr/bin/newuidmap wants one"},
        ),
    ],
)  # fmt: skip
def test_the_part_that_a_host_refuses_is_named(taken, missing):
    # The system's Python: another user may not be allowed to read this one's home.
    done = without(taken, ["/usr/bin/env", "python3", "-I", "-S", abilities.__file__])
    found = {name: what for name, works, what in json.loads(done.stdout) if not works}
    assert missing.items() <= found.items(), found
    assert done.returncode == (0 if set(missing) <= {"hard limits", "separate users"} else 1)


@needs_root
def test_a_run_where_sandboxes_are_forbidden_is_refused_at_once_and_leaves_nothing(tmp_path):
    command = [*T1, "run", "--preset", "smoke", "--dir", str(tmp_path / "r")]
    done = without("seccomp()", command)
    assert done.returncode == 1
    assert "unshare mount and pid namespaces: Operation not permitted (EPERM)" in done.stderr
    assert done.stderr.strip().endswith("`t1 doctor` shows all checks")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@needs_root
def test_the_doctor_says_all_in_one_json_object_and_low_limits_do_not_matter(host_makes_sandboxes, tmp_path):
    """umask 077, 256 descriptors, no network, no home, no usable TMPDIR, no terminal."""
    environment = {**os.environ, "HOME": "/proc", "TMPDIR": "/nonexistent", "LANG": "C", "LC_ALL": "C"}
    command = [*T1, "doctor", "--json", "--dir", str(tmp_path)]
    done = without("low_limits();no_network()", command, env=environment, stdin=subprocess.DEVNULL)
    told = json.loads(done.stdout)
    found = {check["name"]: check for check in told["checks"]}
    bad = {name: check["found"] for name, check in found.items() if check["verdict"] == "bad" and name != "disk"}
    assert bad == {}
    assert found["shell"]["verdict"] == "good"
    assert found["limits tried"]["found"] == "output, memory, processes, disk: all held"
    assert found["open files"]["fix"].startswith("raise it")
    groups = [
        "Python",
        "machine",
        "where runs are kept",
        "kernels",
        "sandbox",
        "images",
        "sandbox (docker)",
        "optional",
    ]
    assert list(dict.fromkeys(check["group"] for check in told["checks"])) == groups
    assert (done.returncode == 0) == told["ready"]


# --- streams and directories ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_end_no_command(closed):
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *T1, "config", "show"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("[run]" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("exec >/dev/full", "No space left on device; the disk is full"),
        ("mkdir gone; cd gone; rmdir ../gone", "the directory you are in was removed: cd to one that exists"),
    ],
)
def test_a_full_output_and_a_removed_directory_are_one_message(before, told, tmp_path):
    script = f'{before}; exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *T1, "config", "show"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_the_machine_ran_short_of_is_explained_though_the_error_names_no_file():
    for number in (28, 30, 24, 12, 11, 122):
        explained = explain(OSError(number, os.strerror(number)))
        assert explained is not None
        assert explained[1] == 1
    assert explain(MemoryError()) is not None
    assert explain(OSError(22, "a bug")) is None


def test_two_runs_that_begin_in_the_same_second_get_a_directory_each(tmp_path):
    made = [_make_directory(tmp_path / "runs" / "smoke-1", given=False) for _ in range(3)]
    assert [place.name for place in made] == ["smoke-1", "smoke-1-2", "smoke-1-3"]
    assert _make_directory(tmp_path / "runs" / "smoke-1", given=True) == made[0]


# --- where runs are kept ----------------------------------------------------------------------------------------------

LOOK = """
import sys
from pathlib import Path
from t1actors.cli.checks_place import of_the_place
for check in of_the_place(Path(sys.argv[1])): print(check.verdict, check.text)
"""


@needs_root
@pytest.mark.parametrize(
    ("made_so", "told"),
    [
        ("mounted({0!r}, 'tmpfs', 'size=64k')", "bad disk: 65.5 kB free in {0}. a run needs 2.0 GB: free some"),
        ("mounted({0!r}, 'tmpfs', 'nr_inodes=100')", "more files in {0}. a run needs room for 20,000 files"),
        ("mounted({0!r}, 'tmpfs', '')", "warning file system: tmpfs: runs use up memory"),
        (
            "read_only({0!r})",
            "bad disk: {0} cannot be written (Read-only file system). choose another place with --dir",
        ),
    ],
)
def test_a_place_where_no_run_fits_is_refused(made_so, told, tmp_path):
    done = without(made_so.format(str(tmp_path)), [sys.executable, "-c", LOOK, str(tmp_path / "a" / "b")])
    assert told.format(tmp_path) in done.stdout, done
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_of_other_machines_is_warned_of(monkeypatch, tmp_path):
    monkeypatch.setattr(checks_place, "kind_of_file_system", lambda place: "nfs4")
    found = {check.name: check for check in checks_place.of_the_place(tmp_path)}
    if found["disk"].verdict == "good":
        assert found["file system"].verdict == "warning"
        assert "nfs4" in found["file system"].found


def test_the_kind_of_a_file_system_is_that_of_the_nearest_mount():
    assert checks_place.kind_of_file_system(Path("/proc/self")) == "proc"


# --- the machine ------------------------------------------------------------------------------------------------------


def test_a_containers_share_counts_and_not_the_hosts(monkeypatch):
    def memory(allowed):
        monkeypatch.setattr(checks_machine, "_memory_allowed", lambda: allowed)
        return next(check for check in checks_machine.of_this_machine() if check.name == "memory")

    assert memory(500 * 10**6).verdict == "bad"
    assert "left of what a control group allows" in memory(15 * 10**8).found
    monkeypatch.setattr(checks_machine, "_processes_left", lambda: 200)
    monkeypatch.setattr(checks_machine, "_processor_share", lambda: 0.5)
    found = {check.name: check for check in checks_machine.of_this_machine()}
    assert found["processes"].verdict == "warning"
    assert "a control group allows 0.5 of them" in found["processor"].found


def test_the_groups_of_this_process_are_read_without_a_trace_where_there_are_none(monkeypatch):
    monkeypatch.setattr(checks_machine, "_text", lambda path: "")
    assert all(check.verdict != "bad" for check in checks_machine.of_this_machine())


def test_the_doctor_prints_group_by_group_and_the_fix_below():
    checks = [
        Check("python", "good", "3.11", group="Python"),
        Check("root", "bad", "user 7", "run as root", group="sandbox"),
        Check("docker", "absent", "not here", "get it", group="optional"),
    ]
    shown = lines(checks)
    assert shown[0] == "Python"
    assert shown[1].split() == ["ok", "python", "3.11"]
    assert shown[4].strip() == "-> run as root"
    assert shown[-1] == "not ready: root"
    assert lines(checks[:1])[-1] == "a run can start here"
